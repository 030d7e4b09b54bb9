"""Bounded reads from a file's header: nothing is read or allocated before its size is checked.

Plain reads, not a memory map: a file that shrinks under a map kills the process (SIGBUS), a
file that shrinks under a read is an error like any other.
"""

from __future__ import annotations

import os
import struct
from operator import length_hint
from typing import Any, NoReturn

from hotset.core.errors import FileProblem
from hotset.core.units import MIB, format_count

__all__ = ["HEADER_LIMIT_BYTES", "Window", "printable"]

HEADER_LIMIT_BYTES = 128 * MIB
"""The largest header that is read. Real ones stay under 40 MiB (a vocabulary of 262,144 with its
merges); at this size, stepping over nothing but empty strings takes about a second."""

_CHUNK_BYTES = MIB
_NAME_LIMIT = 80
_LENGTH = struct.Struct("<Q")


def printable(text: str, limit: int = _NAME_LIMIT) -> str:
    """`text` as it may go to a terminal: control characters escaped, cut after `limit`."""
    cut = text if len(text) <= limit else text[: limit - 3] + "..."
    if cut.isprintable():
        return cut
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in cut)


class Window:
    """A position in a file's header, and the few bytes around it that are in memory.

    Args:
        fd: open file; stays the caller's.
        file_bytes: its size, as `fstat` gave it.
        name: the file's name, for messages.

    Every method raises FileProblem where the file ends, or the header's limit is passed,
    before what was asked for; `at` says in which part of the header that was.
    """

    __slots__ = ("_data", "_fd", "_pos", "_start", "at", "file_bytes", "name")

    def __init__(self, fd: int, file_bytes: int, name: str) -> None:
        self.file_bytes = file_bytes
        self.name = name
        self.at = "the header"
        self._fd = fd
        self._data = b""
        self._start = 0
        self._pos = 0

    @property
    def offset_bytes(self) -> int:
        """Distance from the file's start to the next byte."""
        return self._start + self._pos

    def problem(self, what: str) -> FileProblem:
        """A FileProblem about this file, to be raised."""
        return FileProblem(f"{self.name}: {what}")

    def require(self, n_bytes: int) -> None:
        """Check that the header can hold `n_bytes` more."""
        end = self.offset_bytes + n_bytes
        if end > self.file_bytes or end > HEADER_LIMIT_BYTES:
            self._refuse(end)

    def take(self, n_bytes: int) -> bytes:
        """The next `n_bytes`. The caller has bounded them."""
        self._fill(n_bytes)
        pos = self._pos
        self._pos = pos + n_bytes
        return self._data[pos : pos + n_bytes]

    def peek(self, limit_bytes: int) -> bytes:
        """The next bytes, at most `limit_bytes` and what the file has, without going on."""
        n_bytes = min(limit_bytes, self.file_bytes - self.offset_bytes)
        self._fill(n_bytes)
        return self._data[self._pos : self._pos + n_bytes]

    def unpack(self, layout: struct.Struct) -> tuple[Any, ...]:
        """The next values, laid out as `layout` says."""
        self._fill(layout.size)
        values = layout.unpack_from(self._data, self._pos)
        self._pos += layout.size
        return values

    def length(self) -> int:
        """The next value, an unsigned 64-bit length or count."""
        length: int = self.unpack(_LENGTH)[0]
        return length

    def skip(self, n_bytes: int) -> None:
        """Go `n_bytes` further without reading them."""
        self.require(n_bytes)
        self._pos += n_bytes

    def skip_strings(self, count: int) -> None:
        """Go over `count` strings, each with its 64-bit length before it.

        A vocabulary with its merges has 300,000 of them: the loop is kept to one unpack each.
        """
        self.require(count * _LENGTH.size)
        unpack = _LENGTH.unpack_from
        while count:
            self._fill(_LENGTH.size)
            data, pos = self._data, self._pos
            steps = iter(range(count))
            try:
                for _ in steps:
                    pos += 8 + unpack(data, pos)[0]
                count = 0
            except (struct.error, OverflowError):  # the next length is not in memory
                count = length_hint(steps) + 1
            self.skip(pos - self._pos)

    def _fill(self, n_bytes: int) -> None:
        """Have at least `n_bytes` from the position on in memory."""
        if self._pos + n_bytes <= len(self._data):
            return
        self.require(n_bytes)
        offset = self.offset_bytes
        self._data = b""
        try:
            self._data = os.pread(self._fd, max(n_bytes, _CHUNK_BYTES), offset)
        except OSError as error:
            raise self.problem(
                f"cannot be read at byte {format_count(offset)} ({error.strerror}); "
                "check the disk or the network share it is on"
            ) from None
        self._start, self._pos = offset, 0
        if len(self._data) < n_bytes:
            raise self.problem("became shorter while it was read; wait until it is written")

    def _refuse(self, end: int) -> NoReturn:
        size = format_count(self.file_bytes)
        if end > self.file_bytes:
            raise self.problem(
                f"incomplete or damaged file: {self.at} needs {format_count(end)} bytes, "
                f"the file has {size}; download it again"
            )
        raise self.problem(
            f"damaged file: {self.at} makes the header larger than "
            f"{HEADER_LIMIT_BYTES // MIB} MiB; download it again"
        )
