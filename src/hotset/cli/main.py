"""The `hotset` command: its commands, and what a failure looks like.

Importing this must stay cheap: each command imports what it needs when it runs.
"""

from __future__ import annotations

import os
import signal
import sys
from types import FrameType
from typing import Annotated, NoReturn

import typer

from hotset import __version__
from hotset.cli.demo import demo
from hotset.cli.doctor import doctor
from hotset.cli.inspect import inspect
from hotset.cli.run import run
from hotset.cli.serve import serve
from hotset.core.errors import ConfigProblem, HotsetError

__all__ = ["app", "main"]

_INTERRUPTED = 128 + signal.SIGINT

app = typer.Typer(
    name="hotset",
    help="Run large Mixture-of-Experts models on this computer.",
    no_args_is_help=True,
    rich_markup_mode=None,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (inspect, run, serve, doctor, demo):
    app.command()(command)


def _show_version(is_wanted: bool) -> None:
    if is_wanted:
        typer.echo(f"hotset {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: Annotated[
        bool,
        typer.Option("--version", help="Show the version.", callback=_show_version, is_eager=True),
    ] = False,
) -> None:
    """Options of the command as a whole. `version` acts through its callback."""
    del version


def _end(number: int, frame: FrameType | None) -> NoReturn:
    """A polite request to end: unwind, so that every engine is stopped and reaped."""
    del frame
    raise SystemExit(128 + number)


def main() -> NoReturn:
    """Run the command line. Every failure is one line on stderr and an exit code of its kind."""
    signal.signal(signal.SIGTERM, _end)
    signal.signal(signal.SIGHUP, _end)
    try:
        code = app(standalone_mode=False)
    except HotsetError as problem:
        _complain(problem.message)
        code = problem.exit_code
    except typer.TyperException as problem:
        _complain(f"{problem.format_message()} (see hotset --help)")
        code = ConfigProblem.exit_code
    except (KeyboardInterrupt, typer.Abort):
        code = _INTERRUPTED
    except BrokenPipeError:
        # Whoever read our output has left, as `| head` does. Keep Python from flushing again.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        code = 0
    except Exception as bug:
        if os.environ.get("HOTSET_DEBUG"):
            raise
        _complain(
            f"internal error, please report it: {type(bug).__name__}: {bug}"
            " (HOTSET_DEBUG=1 shows where)"
        )
        code = HotsetError.exit_code
    sys.exit(code)


def _complain(message: str) -> None:
    print(f"hotset: {message}", file=sys.stderr)


if __name__ == "__main__":
    main()
