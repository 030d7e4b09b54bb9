"""The `hotset` command: its commands, and what a failure looks like.

Importing this must stay cheap: each command imports what it needs when it runs.
"""

from __future__ import annotations

import errno
import os
import signal
import sys
from contextlib import suppress
from types import FrameType
from typing import Annotated, Any, NoReturn, TextIO

import typer
from typer.core import TyperGroup

from hotset import __version__
from hotset.cli.demo import demo
from hotset.cli.doctor import doctor
from hotset.cli.inspect import inspect
from hotset.cli.machine import machine
from hotset.cli.plan import plan
from hotset.cli.remote import load, logs, ps, unload, why
from hotset.cli.run import run
from hotset.cli.screen import settle_streams
from hotset.cli.serve import serve
from hotset.cli.simulate import simulate
from hotset.cli.store import store
from hotset.cli.trace import trace
from hotset.core.errors import ConfigProblem, HotsetError, MachineProblem

__all__ = ["app", "main"]

_INTERRUPTED = 128 + signal.SIGINT
_AGAIN_S = 0.001
_DISK_FULL = (errno.ENOSPC, errno.EDQUOT)


class _ReaderLeft(Exception):  # never leaves this module
    """Whoever read our output has left, as `head` does after its lines."""


class _Commands(TyperGroup):
    """Takes a broken pipe to `main`; typer would end on it by itself, as a failure."""

    def invoke(self, ctx: Any) -> Any:
        try:
            return super().invoke(ctx)
        except BrokenPipeError as error:
            raise _ReaderLeft from error


app = typer.Typer(
    name="hotset",
    cls=_Commands,
    help="Run large Mixture-of-Experts models on this computer.",
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    inspect, plan, run, serve, ps, load, unload, logs, why, doctor, demo, simulate,
):  # fmt: skip
    app.command()(command)
for group in (machine, store, trace):
    app.add_typer(group)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"hotset {__version__}")
        raise typer.Exit


@app.callback(invoke_without_command=True)
def options(
    context: typer.Context,
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the command as a whole. `version` acts through its callback."""
    del version
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """A polite request to end: unwind, so that every engine is stopped and reaped."""
    del frame
    raise SystemExit(128 + number)


def _signal_behind(error: BaseException | None) -> int:
    """The signal whose exception this is, or has become the cause of this; 0 if none."""
    while error is not None:
        if isinstance(error, KeyboardInterrupt):
            return signal.SIGINT
        if isinstance(error, SystemExit) and isinstance(error.code, int):
            return max(0, error.code - 128)  # as `_end` made it
        error = error.__cause__
    return 0


def _deliver_again(lost: sys.UnraisableHookArgs) -> None:
    """A signal whose exception fell where Python discards them comes again a moment later.

    That happens in callbacks of its own, as while it imports a module; the work would go on as if
    nobody had pressed Ctrl-C.
    """
    number = _signal_behind(lost.exc_value)
    if not number:
        sys.__unraisablehook__(lost)
        return
    signal.signal(signal.SIGALRM, lambda *_: signal.raise_signal(number))
    signal.setitimer(signal.ITIMER_REAL, _AGAIN_S)


def main() -> NoReturn:
    """Run the command line. Every failure is one line on stderr and an exit code of its kind."""
    for number in (signal.SIGTERM, signal.SIGHUP):
        if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores one for its program
            signal.signal(number, _end)
    sys.unraisablehook = _deliver_again
    if signal.getsignal(signal.SIGINT) == signal.SIG_DFL:  # as while the modules were loading
        signal.signal(signal.SIGINT, signal.default_int_handler)
    settle_streams()
    code = _run()
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # all is done; nothing is left to interrupt
    # CPython notes a Ctrl-C that falls into an `exec` of a text (dataclasses do that in an import),
    # and ends by killing itself with SIGINT, whatever became of the exception. A new one clears it.
    exec("")  # noqa: S102
    try:
        sys.stdout.flush()
    except BrokenPipeError:
        _give_up(sys.stdout)
    except OSError as error:
        code = _cannot_write(error)
    try:
        sys.stderr.flush()  # what could not be written before is still there
    except OSError:
        _give_up(sys.stderr)
    sys.exit(code)


def _run() -> int:
    """Run the command; returns the exit code."""
    try:
        return app(prog_name="hotset", standalone_mode=False) or 0
    except HotsetError as problem:
        _complain(problem.message)
        return problem.exit_code
    except typer.TyperException as problem:
        _complain(f"{problem.format_message()} (see hotset --help)")
        return ConfigProblem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        return _INTERRUPTED
    except _ReaderLeft:
        _give_up(sys.stdout)
        return 0
    except Exception as bug:
        if number := _signal_behind(bug):  # Python makes it another one while it makes a class
            return 128 + number
        if isinstance(bug, OSError) and bug.errno in _DISK_FULL:
            return _cannot_write(bug)
        if os.environ.get("HOTSET_DEBUG"):
            raise
        _complain(
            f"internal error, please report it: {type(bug).__name__}: {bug}"
            " (HOTSET_DEBUG=1 shows where)"
        )
        return HotsetError.exit_code


def _give_up(stream: TextIO) -> None:
    """Keep Python from writing what is left again when it ends."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), stream.fileno())


def _cannot_write(error: OSError) -> int:
    _give_up(sys.stdout)
    _complain(f"the output cannot be written: {error.strerror}")
    return MachineProblem.exit_code


def _complain(message: str) -> None:
    # Not every message has been through HotsetError, which makes it one harmless line.
    with suppress(OSError):  # the exit code says it, too
        print(f"hotset: {HotsetError(message).message}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
