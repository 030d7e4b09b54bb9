"""The store's counters, read from the page that it shares (layout: docs/plugin.md)."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import EngineProblem

__all__ = ["Counters", "read_counters"]

_MAGIC = b"HOTSETCT"
_VERSION = 1
_HEAD = struct.Struct("<8sII")


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the engine started, in the order of the page.

    A product is one MUL_MAT_ID of one layer and batch; a request is one expert of one layer.
    Without a memory budget only the first four move.
    """

    mapped_bytes: int
    num_matrices: int
    num_products: int
    num_rows: int
    budget_bytes: int
    resident_bytes: int
    num_requests: int
    num_hits: int
    num_evictions: int
    read_bytes: int
    num_reads: int
    wait_ns: int


def read_counters(path: Path) -> Counters:
    """The counters in the page at `path`, which the engine goes on writing.

    Each number is whole, but they are not of one instant.

    Raises:
        EngineProblem: the page is not there, not complete, or of another version.
    """
    try:
        page = path.read_bytes()
    except OSError as error:
        raise EngineProblem(f"expert store counters {path}: {error.strerror}") from None
    expected = len(Counters.__slots__)
    if len(page) < _HEAD.size + 8 * expected or not page.startswith(_MAGIC):
        raise EngineProblem(
            f"expert store counters {path}: {len(page)} bytes without the mark of a complete page; "
            "the engine has not loaded the store"
        )
    _, version, num_counters = _HEAD.unpack_from(page)
    if (version, num_counters) != (_VERSION, expected):
        raise EngineProblem(
            f"expert store counters {path}: version {version} with {num_counters} counters, but "
            f"this hotset reads version {_VERSION} with {expected}; install hotset again"
        )
    return Counters(*struct.unpack_from(f"<{expected}Q", page, _HEAD.size))
