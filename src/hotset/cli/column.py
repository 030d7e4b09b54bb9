"""Where the cursor of a terminal stands, as far as that can be known from what was printed."""

from __future__ import annotations

import unicodedata

__all__ = ["Column", "most_cells"]

_TAB_CELLS = 8
_FIRST_COMPLEX_SCRIPT = 0x0590  # from Hebrew on, letters may join, stack or turn
_CJK = range(0x2E80, 0xD7A4)  # radicals to Hangul syllables: two cells in every terminal


class Column:
    """The cells that were printed since the last line break: a lower and an upper bound.

    Terminals agree on plain letters and on CJK, and on little else: what they do not agree on
    widens the bounds. A terminal as wide as `width` breaks long lines by itself.
    """

    def __init__(self) -> None:
        self._least = self._most = 0

    def forget(self) -> None:
        """The cursor may be anywhere until the next line break."""
        self._most = self._least + 1_000_000

    def pass_by(self, text: str, width: int) -> bool:
        """`text` is printed. False if the cursor may leave its row, or come to its very end."""
        before = self.row(width)
        for char in text:
            self._pass_one(char, width)
        return "\n" not in text and before is not None and self.row(width) == before

    def row(self, width: int) -> int | None:
        """The row since the last line break, from 0; None where it is not sure.

        After the last cell of a row it is never sure: a terminal waits there for the next
        character, and not every one still knows so after the cursor has been elsewhere.
        """
        row = self._least // width
        is_between = self._least == 0 or self._least % width
        return row if is_between and self._most // width == row else None

    def _pass_one(self, char: str, width: int) -> None:
        if char == "\n":
            self._least = self._most = 0
        elif char == "\t":
            at = self._least % width
            if self._least != self._most or (self._least and not at):
                self.forget()
            else:
                self._least += min((at // _TAB_CELLS + 1) * _TAB_CELLS, width - 1) - at
                self._most = self._least
        else:
            least, most = _cells(char)
            if least == 2:
                # No half of it stays on a row: the last cell is left empty.
                is_sure = self._least == self._most
                gap = 1 if self._least % width == width - 1 else 0
                self._most += most + (gap if is_sure else 1)
                self._least += least + (gap if is_sure else 0)
            else:
                self._least += least
                self._most += most


def most_cells(text: str) -> int:
    """The cells that `text`, of one line, takes at most."""
    return sum(_cells(char)[1] for char in text)


def _cells(char: str) -> tuple[int, int]:
    """The cells of one character, at least and at most."""
    if " " <= char <= "~":
        return 1, 1
    kind, width = unicodedata.category(char), unicodedata.east_asian_width(char)
    if kind[0] in "LN" and width == "W" and ord(char) in _CJK:
        return 2, 2
    if kind[0] in "LNPS" and ord(char) < _FIRST_COMPLEX_SCRIPT:
        return 1, 2 if width == "A" else 1
    return 0, 2
