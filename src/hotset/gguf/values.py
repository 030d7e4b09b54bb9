"""The metadata of a GGUF header: key and value pairs, the large ones stepped over."""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TypeAlias

from hotset.core.units import MIB, format_count
from hotset.gguf.window import Window, printable

__all__ = [
    "ArrayInfo",
    "MetaValue",
    "Scalar",
    "TextInfo",
    "find_value",
    "locate_values",
    "read_metadata",
]

KEEP_TEXT_BYTES = 4096
"""Text up to this size is kept unasked; chat templates are longer."""

KEEP_ELEMENTS = 4096
"""Numeric arrays up to this count are kept unasked: figures per layer, not per token."""

KEEP_LIMIT_BYTES = 16 * MIB
"""What all kept metadata of one file may cost in memory, by a cautious estimate: ten times the
figures and short texts of a real file, or a vocabulary of 150,000 if one is wanted."""

MAX_KEYS = 65_536

_MAX_KEY_BYTES = 65_535  # the specification's limit
_OBJECT_BYTES = 64  # a small Python object with its place in a container
_SLOT_BYTES = 16  # a place in a container that grows
_UTF8_GROWTH = 4  # a str takes up to 4 bytes per character, a character 1 byte in the file
_STRING, _ARRAY = 8, 9
_NUMBERS = {
    0: struct.Struct("<B"),
    1: struct.Struct("<b"),
    2: struct.Struct("<H"),
    3: struct.Struct("<h"),
    4: struct.Struct("<I"),
    5: struct.Struct("<i"),
    6: struct.Struct("<f"),
    7: struct.Struct("<?"),
    10: struct.Struct("<Q"),
    11: struct.Struct("<q"),
    12: struct.Struct("<d"),
}
_TYPE_NAMES = {
    0: "u8",
    1: "i8",
    2: "u16",
    3: "i16",
    4: "u32",
    5: "i32",
    6: "f32",
    7: "bool",
    _STRING: "string",
    10: "u64",
    11: "i64",
    12: "f64",
}
_LENGTH_BYTES = 8
_MIN_ENTRY_BYTES = 14  # key length, one letter, type, one byte
_TYPE = struct.Struct("<I")
_ARRAY_HEAD = struct.Struct("<IQ")


@dataclass(frozen=True, slots=True)
class ArrayInfo:
    """An array that was stepped over: element type (`string`, `f32`, ...) and element count."""

    type: str
    count: int


@dataclass(frozen=True, slots=True)
class TextInfo:
    """A text that was stepped over: its size as UTF-8, bytes."""

    n_bytes: int


Scalar: TypeAlias = int | float | bool | str
MetaValue: TypeAlias = Scalar | tuple[Scalar, ...] | ArrayInfo | TextInfo


def read_metadata(window: Window, count: int, want: frozenset[str]) -> dict[str, MetaValue]:
    """Read `count` pairs from the window on.

    Args:
        want: keys whose text or array is kept whatever its size.

    Raises:
        FileProblem: for a key that is there twice, is no UTF-8 text, or has a value of no known
            type; for counts that the file cannot hold; for more than MAX_KEYS keys; when what
            is kept would cost more than KEEP_LIMIT_BYTES.
    """
    return dict(_Reader(window, want).pairs(count))


def find_value(window: Window, count: int, key: str) -> MetaValue | None:
    """The value of `key` among `count` pairs, reading no further than to it; None without it.

    Raises:
        FileProblem: as `read_metadata` does, for what comes before it.
    """
    return next((v for k, v in _Reader(window, frozenset()).pairs(count) if k == key), None)


def locate_values(window: Window, count: int) -> Iterator[tuple[str, MetaValue, int, int]]:
    """The same pairs with where each value begins, its type included, and where it ends: bytes from
    the file's start.

    Raises:
        FileProblem: as `read_metadata` does.
    """
    start = window.offset_bytes
    for key, value in _Reader(window, frozenset()).pairs(count):
        end = window.offset_bytes
        yield key, value, start + _LENGTH_BYTES + len(key.encode()), end
        start = end


class _Reader:
    __slots__ = ("_kept_bytes", "_want", "_window")

    def __init__(self, window: Window, want: frozenset[str]) -> None:
        self._window = window
        self._want = want
        self._kept_bytes = 0

    def pairs(self, count: int) -> Iterator[tuple[str, MetaValue]]:
        window = self._window
        if count > MAX_KEYS:
            raise window.problem(
                f"damaged file: it claims {format_count(count)} metadata keys, more than "
                f"{format_count(MAX_KEYS)}; download it again"
            )
        window.at = "the metadata"
        window.require(count * _MIN_ENTRY_BYTES)
        seen: set[str] = set()
        for index in range(count):
            window.at = f"metadata key {index + 1} of {count}"
            key = self._key()
            window.at = f"the metadata value '{printable(key)}'"
            if key in seen:
                raise self._damaged(key, "is there twice")
            seen.add(key)
            yield key, self._value(key)

    def _key(self) -> str:
        window = self._window
        n_bytes = window.length()
        if not 0 < n_bytes <= _MAX_KEY_BYTES:
            raise window.problem(
                f"damaged file: {window.at} has {format_count(n_bytes)} bytes, 1 to "
                f"{format_count(_MAX_KEY_BYTES)} are possible; download it again"
            )
        self._keep(n_bytes * _UTF8_GROWTH + 2 * _OBJECT_BYTES)
        raw = window.take(n_bytes)
        try:
            return raw.decode()
        except UnicodeDecodeError:
            raise self._damaged(repr(raw)[2:-1], "is no UTF-8 text") from None

    def _value(self, key: str) -> MetaValue:
        (number,) = self._window.unpack(_TYPE)
        if number in _NUMBERS:
            value: Scalar = self._window.unpack(_NUMBERS[number])[0]
            return value
        if number == _STRING:
            return self._text(key)
        if number == _ARRAY:
            return self._array(key)
        raise self._damaged(key, f"has a value of unknown type {format_count(number)}")

    def _text(self, key: str) -> str | TextInfo:
        n_bytes = self._window.length()
        if n_bytes > KEEP_TEXT_BYTES and key not in self._want:
            self._window.skip(n_bytes)
            return TextInfo(n_bytes)
        return self._string(n_bytes)

    def _array(self, key: str) -> tuple[Scalar, ...] | ArrayInfo:
        window = self._window
        number, count = window.unpack(_ARRAY_HEAD)
        if number not in _TYPE_NAMES:
            what = (
                "an array of arrays" if number == _ARRAY else f"an array of unknown type {number}"
            )
            raise self._damaged(key, f"is {what}")
        if number == _STRING:
            if key in self._want:
                window.require(count * 8)
                self._keep(count * _SLOT_BYTES)
                return tuple(self._string(window.length()) for _ in range(count))
            window.skip_strings(count)
            return ArrayInfo(_TYPE_NAMES[number], count)
        layout = _NUMBERS[number]
        window.require(count * layout.size)
        if count > KEEP_ELEMENTS and key not in self._want:
            window.skip(count * layout.size)
            return ArrayInfo(_TYPE_NAMES[number], count)
        self._keep(count * _OBJECT_BYTES)
        return window.unpack(struct.Struct(f"<{count}{layout.format[1:]}"))

    def _string(self, n_bytes: int) -> str:
        """A text of `n_bytes`. What is no UTF-8 in it is replaced: it is only shown."""
        self._window.require(n_bytes)
        self._keep(n_bytes * _UTF8_GROWTH + _OBJECT_BYTES)
        return self._window.take(n_bytes).decode(errors="replace")

    def _keep(self, n_bytes: int) -> None:
        """Account for memory before it is taken."""
        self._kept_bytes += n_bytes
        if self._kept_bytes > KEEP_LIMIT_BYTES:
            raise self._window.problem(
                f"damaged file: {self._window.at} makes the metadata larger than "
                f"{KEEP_LIMIT_BYTES // MIB} MiB; download it again"
            )

    def _damaged(self, key: str, what: str) -> Exception:
        return self._window.problem(
            f"damaged file: metadata key '{printable(key)}' {what}; download it again"
        )
