"""What the tests of synthetic files share: the gguf package as an oracle, by itself and by hand."""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import Any

import numpy as np

import gguf

__all__ = ["Floats", "read_gguf", "values_of"]

Floats = np.ndarray[Any, np.dtype[np.float64]]


def read_gguf(path: Path) -> gguf.GGUFReader:
    """The gguf package's reader; what it warns about numpy is not for these tests."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return gguf.GGUFReader(path)


def values_of(kind: str, raw: bytes) -> Floats:
    """The numbers that the blocks `raw` of the type called `kind` stand for."""
    if kind == "Q1_0":
        return _decode_q1_0(raw)
    if kind == "Q2_0":
        return _decode_q2_0(raw)
    number = gguf.GGMLQuantizationType[kind]
    flat = {"F32": np.float32, "F16": np.float16}
    data = np.frombuffer(raw, flat.get(kind, np.uint8))
    rows = data if kind in flat else data.reshape(1, -1)
    decoded: Floats = gguf.quants.dequantize(rows, number).astype(np.float64)
    return decoded


def _decode_q1_0(raw: bytes) -> Floats:
    # One bit per value: minus or plus the scale.
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, 18)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float64)
    return (2 * bits - 1) * scale


def _decode_q2_0(raw: bytes) -> Floats:
    # Two bits per value: minus one to two times the scale.
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, 18)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    pairs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), -1, 2)
    return (pairs[..., 0].astype(np.float64) + 2.0 * pairs[..., 1] - 1) * scale
