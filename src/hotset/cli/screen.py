"""What goes to the terminal: answers to stdout, everything about them to stderr."""

from __future__ import annotations

import io
import os
import signal
import sys
import unicodedata
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.engine.watch import Progress

__all__ = ["LoadingLine", "harmless", "note", "settle_streams", "signals_held"]

_KEPT_CONTROLS = frozenset("\n\t")


def harmless(text: str) -> str:
    """`text` without what would drive a terminal: control characters and escape sequences.

    A model may have learned any byte sequence, and a file may name itself anything.
    """
    return "".join(
        c for c in text if c in _KEPT_CONTROLS or unicodedata.category(c) not in ("Cc", "Cs")
    )


def note(text: str) -> None:
    """A line about the work, not of it: where nobody can read it, the work goes on without.

    The reader of a log may leave, and its disk may be full; answers are given all the same.
    """
    with suppress(OSError):
        print(harmless(text), file=sys.stderr, flush=True)


def settle_streams() -> None:
    """Make stdin, stdout and stderr usable whatever the caller left of them.

    A closed one becomes the null device: else a file opened later would take its number, and
    `print` would put notes among the answers. A character that stdout's encoding lacks must not
    end an answer, so it is escaped, as Python does on stderr.
    """
    for number in (0, 1, 2):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # takes the lowest free number: this one
    sys.stdin = sys.stdin or os.fdopen(0, encoding="utf-8", closefd=False)
    sys.stdout = sys.stdout or os.fdopen(1, "w", encoding="utf-8", closefd=False)
    sys.stderr = sys.stderr or os.fdopen(2, "w", encoding="utf-8", closefd=False)
    if isinstance(sys.stdout, io.TextIOWrapper):
        sys.stdout.reconfigure(errors="backslashreplace")


@contextmanager
def signals_held() -> Iterator[None]:
    """Within the block Ctrl-C and the like wait: a half-made change would stay on the terminal.

    For a thread that is started within, they wait for ever, and so go to the others.
    """
    ends = {signal.SIGINT, signal.SIGTERM, signal.SIGHUP}
    before = signal.pthread_sigmask(signal.SIG_BLOCK, ends)
    try:
        yield
    finally:
        signal.pthread_sigmask(signal.SIG_SETMASK, before)


class LoadingLine:
    """Progress of a start: one changing line on a terminal, a line per phase elsewhere."""

    def __init__(self, first: str = "starting the engine") -> None:
        from rich.console import Console

        self._console = Console(stderr=True, highlight=False)
        self._status = self._console.status(first, spinner="dots")
        self._phase = ""
        self._fifths = 0

    def __enter__(self) -> LoadingLine:
        if self._console.is_terminal:
            try:
                with signals_held():
                    self._status.start()
            except BaseException:
                self._stop()
                raise
        return self

    def __exit__(self, *_: object) -> None:
        self._stop()

    def _stop(self) -> None:
        with signals_held():
            self._status.stop()

    def show(self, progress: Progress) -> None:
        share = "" if progress.fraction is None else f" {progress.fraction:.0%}"
        if self._console.is_terminal:
            self._status.update(f"{progress.phase}{share} · {progress.elapsed_s:.0f} s")
        elif progress.phase != self._phase:
            self._phase = progress.phase
            note(f"loading: {progress.phase}")

    def show_share(self, phase: str, share: float) -> None:
        """Work of many short phases: elsewhere than on a terminal a line for each fifth of it."""
        if self._console.is_terminal:
            self._status.update(f"{phase} · {share:.0%}")
        elif int(5 * share) > self._fifths:
            self._fifths = int(5 * share)
            note(f"{share:.0%} · {phase}")
