"""The tensor table of a GGUF header: each entry checked by itself, then all against the file."""

from __future__ import annotations

import math
import struct
from dataclasses import dataclass, replace
from itertools import pairwise
from operator import attrgetter

from hotset.core.tensortypes import REMOVED_TYPES, TENSOR_TYPES, TensorType
from hotset.core.units import format_count
from hotset.gguf.window import Window, printable

__all__ = ["MAX_TENSORS", "TensorInfo", "aligned", "read_tensors"]

MAX_TENSORS = 65_536
"""Per file. Large models have some 2,000; with one tensor per expert, some 45,000."""

_MAX_NAME_BYTES = 63  # ggml's GGML_MAX_NAME, 64, counts a closing zero
_MAX_DIMS = 4
_MAX_ELEMENTS = 2**63 - 1
_MIN_ENTRY_BYTES = 32  # name length, dimension count, one dimension, type, offset

_DIM_COUNT = struct.Struct("<I")
_PLACEMENT = tuple(struct.Struct(f"<{n}QIQ") for n in range(_MAX_DIMS + 1))


@dataclass(frozen=True, slots=True)
class TensorInfo:
    """One tensor of a file.

    Attributes:
        name: unique in its file and its shard set.
        type: storage type.
        dims: 1 to 4 sizes in elements, the contiguous dimension first, as ggml counts them.
        offset_bytes: from the start of its file.
        n_bytes: size in the file, without padding.
    """

    name: str
    type: TensorType
    dims: tuple[int, ...]
    offset_bytes: int
    n_bytes: int

    @property
    def end_bytes(self) -> int:
        return self.offset_bytes + self.n_bytes


def aligned(offset_bytes: int, alignment_bytes: int) -> int:
    """`offset_bytes`, or the next multiple of the alignment (a power of two) after it."""
    return (offset_bytes + alignment_bytes - 1) & -alignment_bytes


def read_tensors(
    window: Window, count: int, alignment_bytes: int
) -> tuple[tuple[TensorInfo, ...], int]:
    """Read `count` entries from the window on.

    Returns:
        The tensors in the file's order with absolute offsets, and where the data starts.

    Raises:
        FileProblem: for an entry that is wrong in itself, a name that is there twice, a tensor
            that is not aligned, overlaps another, or ends beyond the file.
    """
    window.at = "the tensor table"
    if count > MAX_TENSORS:
        raise window.problem(
            f"damaged file: it claims {format_count(count)} tensors, more than "
            f"{format_count(MAX_TENSORS)}; download it again"
        )
    window.require(count * _MIN_ENTRY_BYTES)
    tensors: list[TensorInfo] = []
    names: set[str] = set()
    for _ in range(count):
        tensor = _read_entry(window)
        if tensor.name in names:
            raise _damaged(window, tensor.name, "is there twice")
        names.add(tensor.name)
        tensors.append(tensor)
    data_offset = aligned(window.offset_bytes, alignment_bytes)
    for i, tensor in enumerate(tensors):
        if tensor.offset_bytes % alignment_bytes:
            raise _damaged(
                window,
                tensor.name,
                f"starts at {format_count(tensor.offset_bytes)} in the data, no multiple of the "
                f"file's alignment of {alignment_bytes}",
            )
        tensors[i] = replace(tensor, offset_bytes=data_offset + tensor.offset_bytes)
    _check_extents(window, tensors)
    return tuple(tensors), data_offset


def _read_entry(window: Window) -> TensorInfo:
    """One entry; its offset still counts from the start of the data."""
    n_name_bytes = window.length()
    if not 0 < n_name_bytes <= _MAX_NAME_BYTES:
        raise window.problem(
            f"damaged file: a tensor name of {format_count(n_name_bytes)} bytes, 1 to "
            f"{_MAX_NAME_BYTES} are possible; download it again"
        )
    raw_name = window.take(n_name_bytes)
    try:
        name = raw_name.decode()
    except UnicodeDecodeError:
        raise _damaged(window, repr(raw_name)[2:-1], "has a name that is no UTF-8 text") from None
    (n_dims,) = window.unpack(_DIM_COUNT)
    if not 0 < n_dims <= _MAX_DIMS:
        raise _damaged(window, name, f"has {format_count(n_dims)} dimensions, not 1 to {_MAX_DIMS}")
    *dims, number, offset_bytes = window.unpack(_PLACEMENT[n_dims])
    n_elements = math.prod(dims)
    if not 0 < n_elements <= _MAX_ELEMENTS:
        shape = " x ".join(map(str, dims))
        raise _damaged(window, name, f"has the impossible shape {shape}")
    type_ = _type(window, name, number)
    if dims[0] % type_.block_elements:
        raise _damaged(
            window,
            name,
            f"has rows of {format_count(dims[0])} elements, no multiple of the "
            f"{type_.block_elements} of a {type_.name} block",
        )
    return TensorInfo(name, type_, tuple(dims), offset_bytes, type_.row_bytes(n_elements))


def _type(window: Window, name: str, number: int) -> TensorType:
    if number in TENSOR_TYPES:
        return TENSOR_TYPES[number]
    if number in REMOVED_TYPES:
        raise window.problem(
            f"tensor '{printable(name)}' has type {REMOVED_TYPES[number]}, which ggml no longer "
            "reads; get a newer quantization of this model"
        )
    raise window.problem(
        f"tensor '{printable(name)}' has type number {format_count(number)}, which hotset does "
        "not know; update hotset, or download the file again"
    )


def _check_extents(window: Window, tensors: list[TensorInfo]) -> None:
    """Every tensor inside the file, none over another."""
    in_order = sorted(tensors, key=attrgetter("offset_bytes"))
    for earlier, later in pairwise(in_order):
        if later.offset_bytes < earlier.end_bytes:
            raise _damaged(window, later.name, f"overlaps tensor '{printable(earlier.name)}'")
    for tensor in in_order:
        if tensor.end_bytes > window.file_bytes:
            raise window.problem(
                f"incomplete file: tensor '{printable(tensor.name)}' ends at byte "
                f"{format_count(tensor.end_bytes)}, the file has "
                f"{format_count(window.file_bytes)} of {format_count(in_order[-1].end_bytes)} "
                "bytes; download it again"
            )


def _damaged(window: Window, name: str, what: str) -> Exception:
    return window.problem(f"damaged file: tensor '{printable(name)}' {what}; download it again")
