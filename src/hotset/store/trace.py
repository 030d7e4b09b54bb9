"""Routing traces: which experts the router chose, batch by batch (layout: docs/trace.md)."""

from __future__ import annotations

import os
import struct
import sys
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

from hotset.core.errors import FileProblem, MachineProblem

__all__ = [
    "MOST_DECODE_TOKENS",
    "TraceBatch",
    "TraceLayer",
    "read_trace",
    "write_trace",
]

MOST_DECODE_TOKENS = 8
"""A batch of more tokens is taken for a piece of a prompt."""

_MAGIC = b"HOTSETTR"
_VERSION = 1
_HEADER = struct.Struct("<8sII")
_RECORD = struct.Struct("<HHI")
_LAYER = struct.Struct("<IIQ")
_BATCH = struct.Struct("<QIIII")
_KIND_LAYER, _KIND_BATCH = 1, 2
_ID_BYTES = 2


@dataclass(frozen=True, slots=True)
class TraceLayer:
    """A layer with experts, told before its first batch.

    Attributes:
        layer: its number in this trace, from 0, in the order in which layers were computed.
        name: what the names of its tensors share, such as "blk.7".
        expert_bytes: one expert, all its matrices.
    """

    layer: int
    name: str
    num_experts: int
    expert_bytes: int


@dataclass(frozen=True, slots=True)
class TraceBatch:
    """What the router of one layer chose for the tokens of one batch.

    Attributes:
        batch: the same for all layers of one pass through the model, and growing.
        batch_tokens: tokens of the batch when it began. A model's last layer computes only those
            whose logits are wanted.
        num_tokens: tokens of the batch in this layer.
        num_used: experts per token.
        experts: num_tokens * num_used numbers, token by token, in the engine's order.
    """

    batch: int
    layer: int
    batch_tokens: int
    num_tokens: int
    num_used: int
    experts: array[int]

    @property
    def is_decode(self) -> bool:
        """Few tokens: the next ones of some answers, and not a piece of a prompt."""
        return self.batch_tokens <= MOST_DECODE_TOKENS


def read_trace(path: Path) -> Iterator[TraceLayer | TraceBatch]:
    """The records of the trace at `path`, in order; one at a time is in memory.

    Kinds of records that this version does not know are skipped.

    Raises:
        FileProblem: not a trace, of another version, damaged or cut off; with the place.
    """
    try:
        with path.open("rb") as file:
            yield from _Reader(path, file).records()
    except OSError as error:
        raise FileProblem(f"routing trace {path}: cannot be read: {error.strerror}") from error


def write_trace(path: Path, records: Iterable[TraceLayer | TraceBatch]) -> None:
    """Write `records` as a trace; what is at `path` is replaced.

    Raises:
        MachineProblem: the file cannot be written.
    """
    try:
        with path.open("wb") as file:
            file.write(_HEADER.pack(_MAGIC, _VERSION, 0))
            for record in records:
                file.write(_as_bytes(record))
    except OSError as error:
        raise MachineProblem(
            f"routing trace {path}: cannot be written: {error.strerror}; choose another place"
        ) from error


def _as_bytes(record: TraceLayer | TraceBatch) -> bytes:
    if isinstance(record, TraceLayer):
        kind = _KIND_LAYER
        head = _LAYER.pack(record.layer, record.num_experts, record.expert_bytes)
        content = head + record.name.encode()
    else:
        kind = _KIND_BATCH
        numbers = (record.batch, record.layer, record.batch_tokens)
        experts = array("H", record.experts)
        if sys.byteorder == "big":
            experts.byteswap()
        content = _BATCH.pack(*numbers, record.num_tokens, record.num_used) + experts.tobytes()
    return _RECORD.pack(kind, 0, len(content)) + content


class _Reader:
    def __init__(self, path: Path, file: BinaryIO) -> None:
        self._path = path
        self._file = file
        self._size = os.fstat(file.fileno()).st_size
        self._layers: list[TraceLayer] = []
        self._offset = 0  # of the record at hand

    def records(self) -> Iterator[TraceLayer | TraceBatch]:
        self._check_header()
        while self._offset < self._size:
            kind, _, n_bytes = _RECORD.unpack(self._take(0, _RECORD.size))
            payload = self._take(_RECORD.size, n_bytes)
            if kind == _KIND_LAYER:
                layer = self._layer(payload)
                self._layers.append(layer)
                yield layer
            elif kind == _KIND_BATCH:
                yield self._batch(payload)
            self._offset += _RECORD.size + n_bytes

    def _check_header(self) -> None:
        header = self._file.read(_HEADER.size)
        if len(header) < _HEADER.size or not header.startswith(_MAGIC):
            raise FileProblem(
                f"routing trace {self._path}: does not begin with {_MAGIC.decode()}: it is no trace"
            )
        _, version, _ = _HEADER.unpack(header)
        if version != _VERSION:
            raise FileProblem(
                f"routing trace {self._path}: version {version}, but this hotset reads version"
                f" {_VERSION}; use the version of hotset that recorded it"
            )
        self._offset = _HEADER.size

    def _take(self, begin: int, n_bytes: int) -> bytes:
        """The next bytes of the record at hand; nothing is read that the file does not hold."""
        left = self._size - self._offset - begin
        data = self._file.read(n_bytes) if n_bytes <= left else b""
        if len(data) < n_bytes:
            raise self._damaged(f"needs {n_bytes} bytes where {left} are left: the file is cut off")
        return data

    def _layer(self, payload: bytes) -> TraceLayer:
        if len(payload) < _LAYER.size:
            raise self._damaged(f"a layer in {len(payload)} bytes")
        number, num_experts, expert_bytes = _LAYER.unpack_from(payload)
        if number != len(self._layers):
            raise self._damaged(f"layer {number} comes where {len(self._layers)} must")
        if num_experts == 0:
            raise self._damaged("a layer without experts")
        try:
            name = payload[_LAYER.size :].decode("utf-8")
        except UnicodeDecodeError:
            raise self._damaged("a layer's name that is no UTF-8") from None
        return TraceLayer(number, name, num_experts, expert_bytes)

    def _batch(self, payload: bytes) -> TraceBatch:
        if len(payload) < _BATCH.size:
            raise self._damaged(f"a batch in {len(payload)} bytes")
        batch, layer, batch_tokens, num_tokens, num_used = _BATCH.unpack_from(payload)
        if layer >= len(self._layers):
            raise self._damaged(f"a batch of layer {layer}, which has not been told")
        num_ids, rest = divmod(len(payload) - _BATCH.size, _ID_BYTES)
        if rest or num_ids == 0 or num_ids != num_tokens * num_used:
            raise self._damaged(
                f"{num_tokens} tokens with {num_used} experts each in"
                f" {len(payload) - _BATCH.size} bytes"
            )
        experts = array("H", payload[_BATCH.size :])
        if sys.byteorder == "big":
            experts.byteswap()
        num_experts = self._layers[layer].num_experts
        if max(experts) >= num_experts:
            raise self._damaged(f"expert {max(experts)} of {num_experts}")
        return TraceBatch(batch, layer, batch_tokens, num_tokens, num_used, experts)

    def _damaged(self, what: str) -> FileProblem:
        return FileProblem(
            f"routing trace {self._path}: damaged at offset {self._offset:,}: {what}"
        )
