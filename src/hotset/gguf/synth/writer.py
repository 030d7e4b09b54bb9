"""Writes GGUF version 3 files: a header from plain values, tensors streamed behind it.

The layout is that of ggml's include/gguf.h: magic, version, counts, key-value pairs, tensor
descriptions, padding, data; little-endian. Shard sets follow llama.cpp's tools/gguf-split: the
first shard carries all metadata, the others only `split.*`.
"""

from __future__ import annotations

import itertools
import os
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import BinaryIO

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.tensortypes import TensorType

__all__ = [
    "DEFAULT_ALIGNMENT",
    "Chunk",
    "Encoded",
    "Scalar",
    "TensorEntry",
    "Typed",
    "Value",
    "ValueType",
    "shard_paths",
    "write_gguf",
    "write_shards",
]

DEFAULT_ALIGNMENT = 32

Chunk = bytes | bytearray | memoryview
Scalar = bool | int | float | str


class ValueType(IntEnum):
    """The metadata value types, by their number in the file."""

    UINT8 = 0
    INT8 = 1
    UINT16 = 2
    INT16 = 3
    UINT32 = 4
    INT32 = 5
    FLOAT32 = 6
    BOOL = 7
    STRING = 8
    ARRAY = 9
    UINT64 = 10
    INT64 = 11
    FLOAT64 = 12


_PACK = {
    ValueType.UINT8: "B",
    ValueType.INT8: "b",
    ValueType.UINT16: "H",
    ValueType.INT16: "h",
    ValueType.UINT32: "I",
    ValueType.INT32: "i",
    ValueType.FLOAT32: "f",
    ValueType.BOOL: "?",
    ValueType.UINT64: "Q",
    ValueType.INT64: "q",
    ValueType.FLOAT64: "d",
}


@dataclass(frozen=True, slots=True)
class Typed:
    """A value whose type in the file is stated; a sequence becomes an array of that type."""

    type: ValueType
    value: Scalar | Sequence[Scalar]


@dataclass(frozen=True, slots=True)
class Encoded:
    """A value as it stands in another file, its type first."""

    raw: bytes


Value = Scalar | Sequence[Scalar] | Typed | Encoded
"""Without `Typed`: bool, UINT32, FLOAT32, string, or an array of what its first element is."""


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor to write.

    Attributes:
        name: as in the file.
        shape: dimensions, the contiguous one first (ggml's `ne`).
        type: storage type; shape[0] must be a multiple of its block.
        data: called once when the tensor's turn comes; its chunks together are exactly `n_bytes`
            long. None leaves a hole that reads as zeros and costs no disk.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    data: Callable[[], Iterable[Chunk]] | None = None

    def __post_init__(self) -> None:
        if self.shape[0] % self.type.block_elements:
            raise ValueError(
                f"{self.name}: {self.shape[0]} elements per row are no multiple of the "
                f"{self.type.block_elements} in a {self.type.name} block"
            )

    @property
    def n_rows(self) -> int:
        rows = 1
        for n in self.shape[1:]:
            rows *= n
        return rows

    @property
    def n_bytes(self) -> int:
        return self.type.row_bytes(self.shape[0]) * self.n_rows


def write_gguf(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[TensorEntry],
    *,
    alignment: int = DEFAULT_ALIGNMENT,
) -> None:
    """Write one file: whole or not at all (a temporary file beside it, then a rename).

    Args:
        path: where; an existing file is replaced.
        metadata: key-value pairs in file order; `general.alignment` is added where it differs
            from the default.
        tensors: in file order.
        alignment: of each tensor's data, bytes.

    Raises:
        MachineProblem: when the system refuses (disk full, no permission, no such directory).
        ValueError: when a tensor's chunks are not as long as its shape says.
    """
    if alignment != DEFAULT_ALIGNMENT:
        metadata = {**metadata, "general.alignment": alignment}
    header = _header(metadata, tensors, alignment)
    with _replacing(path) as file:
        file.write(header)
        position = len(header)
        for tensor in tensors:
            file.seek(position)
            if tensor.data is not None:
                _write_chunks(file, tensor, tensor.data())
            position += _padded(tensor.n_bytes, alignment)
        file.truncate(position)


def shard_paths(path: Path, n_shards: int) -> tuple[Path, ...]:
    """`model.gguf` itself for one shard, else `model-00001-of-0000N.gguf` and so on."""
    if n_shards == 1:
        return (path,)
    stem = path.name.removesuffix(".gguf")
    return tuple(
        path.with_name(f"{stem}-{number:05d}-of-{n_shards:05d}.gguf")
        for number in range(1, n_shards + 1)
    )


def write_shards(
    path: Path,
    metadata: Mapping[str, Value],
    tensors: Sequence[TensorEntry],
    *,
    n_shards: int = 1,
    alignment: int = DEFAULT_ALIGNMENT,
) -> tuple[Path, ...]:
    """Write a model as `n_shards` files with about equally many tensors each.

    Returns:
        The files, first shard first.

    Raises:
        ConfigProblem: for less than one shard, or more shards than tensors.
        MachineProblem, ValueError: as `write_gguf`; no shard of the set stays behind.
    """
    if not 1 <= n_shards <= len(tensors):
        raise ConfigProblem(
            f"{n_shards} shards for {len(tensors)} tensors: each shard holds at least one; "
            "choose a number in between"
        )
    paths = shard_paths(path, n_shards)
    if n_shards == 1:
        write_gguf(path, metadata, tensors, alignment=alignment)
        return paths
    bounds = [len(tensors) * i // n_shards for i in range(n_shards + 1)]
    try:
        for number, (shard, (start, end)) in enumerate(
            zip(paths, itertools.pairwise(bounds), strict=True)
        ):
            split: dict[str, Value] = {
                "split.no": Typed(ValueType.UINT16, number),
                "split.count": Typed(ValueType.UINT16, n_shards),
                "split.tensors.count": Typed(ValueType.INT32, len(tensors)),
            }
            shard_metadata = {**metadata, **split} if number == 0 else split
            write_gguf(shard, shard_metadata, tensors[start:end], alignment=alignment)
    except BaseException:
        for shard in paths:
            shard.unlink(missing_ok=True)
        raise
    return paths


def _header(metadata: Mapping[str, Value], tensors: Sequence[TensorEntry], alignment: int) -> bytes:
    parts = [b"GGUF", struct.pack("<IQQ", 3, len(tensors), len(metadata))]
    for key, value in metadata.items():
        parts += (_string(key), _encode(value))
    offset = 0
    for tensor in tensors:
        parts.append(_string(tensor.name))
        n_dims = len(tensor.shape)
        parts.append(
            struct.pack(f"<I{n_dims}QIQ", n_dims, *tensor.shape, tensor.type.number, offset)
        )
        offset += _padded(tensor.n_bytes, alignment)
    header = b"".join(parts)
    return header.ljust(_padded(len(header), alignment), b"\0")


def _padded(n_bytes: int, alignment: int) -> int:
    return -(-n_bytes // alignment) * alignment


def _string(text: str) -> bytes:
    raw = text.encode()
    return struct.pack("<Q", len(raw)) + raw


def _encode(value: Value) -> bytes:
    if isinstance(value, Encoded):
        return value.raw
    typed = value if isinstance(value, Typed) else Typed(_natural_type(value), value)
    content = typed.value
    if isinstance(content, str) or not isinstance(content, Sequence):
        return struct.pack("<I", typed.type) + _elements(typed.type, [content])
    start = struct.pack("<IIQ", ValueType.ARRAY, typed.type, len(content))
    return start + _elements(typed.type, content)


def _elements(kind: ValueType, values: Sequence[Scalar]) -> bytes:
    if kind is ValueType.STRING:
        return b"".join(_string(str(value)) for value in values)
    return struct.pack(f"<{len(values)}{_PACK[kind]}", *values)


def _natural_type(value: Scalar | Sequence[Scalar]) -> ValueType:
    if isinstance(value, bool):
        return ValueType.BOOL
    if isinstance(value, int):
        return ValueType.UINT32
    if isinstance(value, float):
        return ValueType.FLOAT32
    if isinstance(value, str):
        return ValueType.STRING
    return _natural_type(value[0])


def _write_chunks(file: BinaryIO, tensor: TensorEntry, chunks: Iterable[Chunk]) -> None:
    written = 0
    for chunk in chunks:
        written += file.write(chunk)
    if written != tensor.n_bytes:
        raise ValueError(f"{tensor.name}: {written} bytes of data, {tensor.n_bytes} expected")


@contextmanager
def _replacing(path: Path) -> Iterator[BinaryIO]:
    """A file that takes `path`'s place when the block ends well, and is gone when it does not."""
    part = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        with part.open("wb") as file:
            yield file
        part.replace(path)
    except OSError as error:
        raise MachineProblem(
            f"{path}: cannot write ({error.strerror}); free disk space or choose another place"
        ) from error
    finally:
        part.unlink(missing_ok=True)
