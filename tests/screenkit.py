"""A terminal that draws what is sent to it, for tests of what a person would see."""

from __future__ import annotations

import re
from collections.abc import Callable

_TOKEN = re.compile(r"\x1b\[\??([0-9;]*)([A-Za-z])|\x1b(.)|(.)", re.DOTALL)


class Screen:
    """What the cursor, erasing and scrolling sequences of a VT100 do to text.

    Terminals differ; so do the screens of a test.

    Args:
        cells: of a character, 0 to 2.
        keeps_wrap: whether a cursor that waits behind the last cell of a row for the next
            character still waits there after it was saved and restored.
    """

    def __init__(
        self,
        rows: int,
        columns: int,
        *,
        cells: Callable[[str], int] = lambda _: 1,
        keeps_wrap: bool = True,
    ) -> None:
        self.rows, self.columns = rows, columns
        self.cells, self.keeps_wrap = cells, keeps_wrap
        self.scrolled: list[str] = []
        self.lines = [[" "] * columns for _ in range(rows)]
        self.row = self.column = 0  # the column may be `columns`: waiting to wrap
        self.saved = (0, 0)

    def send(self, text: str) -> None:
        for match in _TOKEN.finditer(text):
            parameters, command, escape, char = match.groups()
            if command:
                self._control(command, int(parameters.split(";")[0] or 0))
            elif escape:
                self._escape(escape)
            else:
                self._print(char)

    @property
    def text(self) -> str:
        """All that was scrolled up and all that is on the screen."""
        shown = ["".join(line).rstrip() for line in self.lines]
        return "\n".join([*self.scrolled, *shown]).rstrip("\n")

    @property
    def place(self) -> tuple[int, int]:
        """Of the cursor: the row from the first that there ever was, and the column."""
        return len(self.scrolled) + self.row, self.column

    def _print(self, char: str) -> None:
        if char == "\n":  # the driver of a terminal makes both of it
            self._down()
            self.column = 0
        elif char == "\r":
            self.column = 0
        elif char == "\t":
            if self.column < self.columns:
                self.column = min((self.column // 8 + 1) * 8, self.columns - 1)
        elif width := self.cells(char):
            if self.column + width > self.columns:
                self._down()
                self.column = 0
            self.lines[self.row][self.column] = char
            for covered in range(1, width):
                self.lines[self.row][self.column + covered] = ""
            self.column += width

    def _down(self) -> None:
        if self.row + 1 < self.rows:
            self.row += 1
            return
        self.scrolled.append("".join(self.lines.pop(0)).rstrip())
        self.lines.append([" "] * self.columns)

    def _escape(self, escape: str) -> None:
        if escape == "D":
            self._settle()
            self._down()
        elif escape == "7":
            self.saved = (self.row, self.column)
        elif escape == "8":
            self.row, self.column = self.saved
            if not self.keeps_wrap:
                self._settle()
        else:
            raise AssertionError(f"unknown escape {escape!r}")

    def _control(self, command: str, parameter: int) -> None:
        if command == "A":
            self._settle()
            self.row = max(0, self.row - (parameter or 1))
        elif command == "J":
            assert parameter == 0
            self._settle()
            self._erase(self.row, self.column)
            for row in range(self.row + 1, self.rows):
                self._erase(row, 0)
        elif command == "K":
            self._settle()
            self._erase(self.row, 0 if parameter == 2 else self.column)
        elif command not in "mlh":
            raise AssertionError(f"unknown sequence {command!r}")

    def _erase(self, row: int, column: int) -> None:
        self.lines[row][column:] = [" "] * (self.columns - column)

    def _settle(self) -> None:
        self.column = min(self.column, self.columns - 1)
