"""Quantized blocks as numbers and back, for the types that the demo's model has.

Layouts: ggml-common.h of llama.cpp; 32 values share a scale.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.core.errors import FileProblem
from hotset.core.tensortypes import TensorType

__all__ = ["as_floats", "as_q8_0"]

Floats = NDArray[np.float32]

_BLOCK = 32


def as_floats(kind: TensorType, raw: NDArray[np.uint8], n_columns: int) -> Floats:
    """The values of whole rows, shape (rows, n_columns).

    Args:
        raw: the rows' bytes, one after the other.

    Raises:
        FileProblem: a type that is not known here.
    """
    match kind.name:
        case "F32":
            values = raw.view("<f4").astype(np.float32)
        case "F16":
            values = raw.view("<f2").astype(np.float32)
        case "Q8_0":
            blocks = raw.reshape(-1, 34)
            scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
            values = blocks[:, 2:].view(np.int8) * scales
        case "Q4_0":
            blocks = raw.reshape(-1, 18)
            scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
            values = (_nibbles(blocks[:, 2:]) - 8) * scales
        case "Q4_1":
            blocks = raw.reshape(-1, 20)
            scales = blocks[:, :2].copy().view("<f2").astype(np.float32)
            least = blocks[:, 2:4].copy().view("<f2").astype(np.float32)
            values = _nibbles(blocks[:, 4:]) * scales + least
        case _:
            raise FileProblem(
                f"tensor type {kind.name}: only F32, F16, Q8_0, Q4_0 and Q4_1 can be converted;"
                " use another quantization of this model"
            )
    return values.reshape(-1, n_columns)


def _nibbles(packed: NDArray[np.uint8]) -> Floats:
    """The low halves of the bytes are the first 16 values, the high halves the others."""
    return np.concatenate([packed & 15, packed >> 4], axis=1).astype(np.float32)


def as_q8_0(values: Floats) -> NDArray[np.uint8]:
    """Rows of values, their lengths a multiple of 32, as Q8_0: 34 bytes per 32 values."""
    blocks = values.reshape(-1, _BLOCK)
    scales = np.abs(blocks).max(axis=1, keepdims=True) / 127
    inverse = np.divide(1, scales, out=np.zeros_like(scales), where=scales > 0)
    raw = np.empty((len(blocks), 34), dtype=np.uint8)
    raw[:, :2] = scales.astype("<f2").view(np.uint8)
    raw[:, 2:] = np.rint(blocks * inverse).astype(np.int8).view(np.uint8)
    return raw.reshape(-1)
