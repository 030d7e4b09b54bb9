"""A line of figures below what is being printed, which leaves nothing behind."""

from __future__ import annotations

import os
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from typing import TextIO

from hotset.cli.column import Column, most_cells
from hotset.cli.screen import harmless, signals_held
from hotset.core.errors import HotsetError

__all__ = ["LiveLine"]

_EVERY_S = 0.25
_LEAST_COLUMNS, _LEAST_ROWS = 40, 4
# Escape sequences that the Linux console and every emulator of a VT100 know.
_MAKE_ROOM = "\x1bD\x1b[A"  # a row down and back: at the bottom, all moves up
_ASIDE, _BACK = "\x1b7\x1bD\r", "\x1b8"  # to the row below; back with the old colours
_DIM, _PLAIN = "\x1b[2m", "\x1b[0m"
_CLEAR_ROW, _CLEAR_BELOW = "\x1b[2K", "\x1b[J"


class LiveLine:
    """Within the block, `describe()` is shown on the row below the cursor, anew while it changes.

    Only on stderr, and only where it can be done without harm: on a terminal that can move its
    cursor, that is neither narrow nor flat, and without NO_COLOR. Elsewhere nothing is shown, and
    `print` just prints.

    The line is drawn only while the cursor is surely between two cells of a row, and is gone
    before the cursor leaves that row; so it is never scrolled up among the text, and the text is
    printed as it would be without it.

    Args:
        describe: called every quarter of a second by a thread of its own; where it returns "" or
            raises a HotsetError, nothing is shown.
        after_s: nothing is shown before.
    """

    def __init__(
        self, describe: Callable[[], str], *, is_wanted: bool = True, after_s: float = 0.5
    ) -> None:
        self.is_on = is_wanted and _can_draw_on(sys.stderr)
        self._describe = describe
        self._after_s = after_s
        self._column = Column()
        self._width = self._rows = 0
        self._is_shown = False
        self._lock = threading.Lock()
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._work, name="live line", daemon=True)

    def __enter__(self) -> LiveLine:
        if self.is_on:
            self._measure()
            with signals_held():  # they are for the main thread
                self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ended.set()
        if self.is_on:
            self._thread.join()
            with signals_held():
                self._clear()

    def print(self, text: str, stream: TextIO) -> None:
        """Print `text` to stdout or stderr, as it is."""
        if not self.is_on or not stream.isatty():
            print(text, end="", file=stream, flush=True)
            return
        shown = text.encode(stream.encoding, stream.errors or "strict").decode(stream.encoding)
        with self._lock:
            self._measure()
            if not self._column.pass_by(shown, self._width):
                self._clear()
            print(text, end="", file=stream, flush=True)

    def refresh(self) -> None:
        """Draw the line anew now, if this is a moment for it."""
        if not self.is_on:
            return
        line = ""
        with suppress(HotsetError):
            line = harmless(self._describe())
        with self._lock:
            if not self._ended.is_set():
                self._draw(line)

    def _work(self) -> None:
        ended = self._ended.wait(self._after_s)
        while not ended:
            self.refresh()
            ended = self._ended.wait(_EVERY_S)

    def _draw(self, line: str) -> None:
        self._measure()
        if not line or self._width < _LEAST_COLUMNS or self._rows < _LEAST_ROWS:
            self._clear()
        elif self._column.row(self._width) is not None:
            while most_cells(line) >= self._width:
                line = line[:-1]
            room = "" if self._is_shown else _MAKE_ROOM
            _write(f"{room}{_ASIDE}{_CLEAR_ROW}{_DIM}{line}{_PLAIN}{_BACK}")
            self._is_shown = True

    def _clear(self) -> None:
        if self._is_shown:
            _write(_CLEAR_BELOW)
            self._is_shown = False

    def _measure(self) -> None:
        size = os.terminal_size((1, 1))  # of a terminal that is gone, or does not say
        with suppress(OSError):
            size = os.get_terminal_size(sys.stderr.fileno())
        if self._width not in (0, size.columns):
            self._column.forget()  # a terminal may break the text anew, or not
        self._width, self._rows = max(1, size.columns), size.lines


def _can_draw_on(stream: TextIO) -> bool:
    return (
        stream.isatty()
        and os.environ.get("TERM", "dumb") not in ("", "dumb", "unknown")
        and not os.environ.get("NO_COLOR")
    )


def _write(sequence: str) -> None:
    with suppress(OSError):  # the terminal may be gone
        sys.stderr.write(sequence)
        sys.stderr.flush()
