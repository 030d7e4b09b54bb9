"""The store's counters, read from the page that it shares (layout: docs/plugin.md)."""

from __future__ import annotations

import os
import re
import struct
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from hotset.core.errors import EngineProblem

__all__ = ["Counters", "LayerCounters", "StoreState", "read_counters"]

_MAGIC = b"HOTSETCT"
_VERSION = 2
_MARK = struct.Struct("<8sII")  # magic, version, number of totals: the same in every version
_HEADER = struct.Struct("<8sIIIIII")
_TOTALS = struct.Struct("<12Q")
_LAYER = struct.Struct("<64sIIQ7Q")


class StoreState(IntEnum):
    """Of the store in an engine: none was made (yet, or ever), open, or closed with its model."""

    NONE = 0
    OPEN = 1
    CLOSED = 2


@dataclass(frozen=True, slots=True)
class LayerCounters:
    """What one layer with experts has counted since the store was opened.

    Attributes:
        name: as in the file, for instance "blk.7".
        copy: 0, but for a layer of that name of a further model in the same engine.
        expert_bytes: all matrices of one expert.
        resident_bytes: memory that its experts occupy now.
        num_requests: experts asked for.
        num_hits: of them in memory or already on their way.
        num_evictions: experts of this layer that made room.
        wait_ns: time spent waiting for reads.
    """

    name: str
    copy: int
    num_experts: int
    expert_bytes: int
    resident_bytes: int
    num_requests: int
    num_hits: int
    num_evictions: int
    read_bytes: int
    num_reads: int
    wait_ns: int

    @property
    def num_misses(self) -> int:
        return self.num_requests - self.num_hits


@dataclass(frozen=True, slots=True)
class Counters:
    """Totals since the engine started, in the order of the page, and the layers.

    A product is one MUL_MAT_ID of one layer and batch; a request is one expert of one layer.
    Without a memory budget only the first four move.

    Attributes:
        layers: in the order of the model; of more than 512 the first 512 that the store was told.
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
    state: StoreState = field(default=StoreState.NONE, kw_only=True)
    layers: tuple[LayerCounters, ...] = field(default=(), kw_only=True)

    @property
    def num_misses(self) -> int:
        return self.num_requests - self.num_hits


def read_counters(path: Path) -> Counters:
    """The counters in the page at `path`, which the engine goes on writing.

    Each number is whole, but they are not of one instant.

    Raises:
        EngineProblem: the page is not there, not complete, or of another version.
    """
    try:
        with path.open("rb") as page:
            return _read(page, path)
    except OSError as error:
        raise EngineProblem(f"expert store counters {path}: {error.strerror}") from None


def _read(page: BinaryIO, path: Path) -> Counters:
    header = page.read(_HEADER.size)
    if len(header) < _MARK.size or not header.startswith(_MAGIC):
        raise EngineProblem(
            f"expert store counters {path}: {len(header)} bytes without the mark of a complete"
            " page; the engine has not loaded the store"
        )
    _, version, num_counters = _MARK.unpack_from(header)
    if version != _VERSION:
        raise EngineProblem(
            f"expert store counters {path}: version {version}, but this hotset reads version"
            f" {_VERSION}; the engine runs the store of another hotset: start it again with this"
            " one, or install hotset again"
        )
    header = header.ljust(_HEADER.size, b"\0")
    _, _, _, num_layers, layer_bytes, state, header_bytes = _HEADER.unpack(header)
    shape = (header_bytes, 8 * num_counters, layer_bytes)
    if shape != (_HEADER.size, _TOTALS.size, _LAYER.size) or state > max(StoreState):
        raise EngineProblem(
            f"expert store counters {path}: a header of {header_bytes} bytes, {num_counters}"
            f" totals, {layer_bytes} bytes per layer and state {state} do not belong to version"
            f" {version}; install hotset again"
        )
    whole_bytes = _HEADER.size + _TOTALS.size + num_layers * _LAYER.size
    if os.fstat(page.fileno()).st_size < whole_bytes:
        raise EngineProblem(
            f"expert store counters {path}: shorter than the {whole_bytes} bytes that {num_layers}"
            " layers need; install hotset again"
        )
    rest = page.read(whole_bytes - _HEADER.size)
    layers = (_layer(rest, _TOTALS.size + i * _LAYER.size) for i in range(num_layers))
    return Counters(
        *_TOTALS.unpack_from(rest),
        state=StoreState(state),
        layers=tuple(sorted(layers, key=_in_the_model)),
    )


def _layer(page: bytes, offset: int) -> LayerCounters:
    name, *numbers = _LAYER.unpack_from(page, offset)
    return LayerCounters(name.split(b"\0")[0].decode(errors="replace"), *numbers)


def _in_the_model(layer: LayerCounters) -> tuple[int, list[str | int]]:
    """Sorts `blk.2` before `blk.10`, and a further model's layers behind the first one's."""
    words = re.split(r"(\d+)", layer.name)
    return layer.copy, [int(word) if i % 2 else word for i, word in enumerate(words)]
