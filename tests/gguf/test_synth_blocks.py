"""Random blocks against the gguf package's dequantizers, and plain decoders where it has none."""

from __future__ import annotations

import random
from typing import Any

import gguf
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.core.tensortypes import TENSOR_TYPES, tensor_type_named
from hotset.gguf.synth.blocks import SYNTHETIC_TYPES, Tile, random_blocks

_Floats = np.ndarray[Any, np.dtype[np.float64]]


def _decode_q1_0(raw: bytes) -> _Floats:
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, 18)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    bits = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").astype(np.float64)
    return (2 * bits - 1) * scale


def _decode_q2_0(raw: bytes) -> _Floats:
    blocks = np.frombuffer(raw, np.uint8).reshape(-1, 18)
    scale = blocks[:, :2].copy().view(np.float16).astype(np.float64)
    pairs = np.unpackbits(blocks[:, 2:], axis=1, bitorder="little").reshape(len(blocks), -1, 2)
    return (pairs[..., 0].astype(np.float64) + 2.0 * pairs[..., 1] - 1) * scale


def values_of(kind: str, raw: bytes) -> _Floats:
    """The numbers that `raw` stands for."""
    if kind == "Q1_0":
        return _decode_q1_0(raw)
    if kind == "Q2_0":
        return _decode_q2_0(raw)
    number = gguf.GGMLQuantizationType[kind]
    flat = {"F32": np.float32, "F16": np.float16}
    data = np.frombuffer(raw, flat.get(kind, np.uint8))
    rows = data if kind in flat else data.reshape(1, -1)
    decoded: _Floats = gguf.quants.dequantize(rows, number).astype(np.float64)
    return decoded


@pytest.mark.parametrize("n_in", [256, 2048, 8192])
@pytest.mark.parametrize("kind", SYNTHETIC_TYPES)
def test_blocks_decode_to_finite_centred_values_of_the_wanted_size(kind: str, n_in: int) -> None:
    std = n_in**-0.5
    t = tensor_type_named(kind)
    raw = random_blocks(t, 300_000 // t.block_elements, std, random.Random(1))
    values = values_of(kind, raw)
    assert np.isfinite(values).all()
    assert 0.85 < values.std() / std < 1.15
    assert abs(values.mean()) < 0.05 * std


@pytest.mark.parametrize("kind", SYNTHETIC_TYPES)
def test_the_seed_alone_decides_the_bytes(kind: str) -> None:
    t = tensor_type_named(kind)
    first, again, other = (random_blocks(t, 50, 0.1, random.Random(s)) for s in (1, 1, 2))
    assert len(first) == 50 * t.block_bytes
    assert first == again
    assert first != other


def test_ternary_blocks_hold_no_fourth_value() -> None:
    raw = random_blocks(tensor_type_named("TQ2_0"), 200, 1.0, random.Random(0))
    quants = np.frombuffer(raw, np.uint8).reshape(-1, 66)[:, :64]
    pairs = [(quants >> shift) & 3 for shift in (0, 2, 4, 6)]
    assert {int(v) for pair in pairs for v in np.unique(pair)} == {0, 1, 2}


def test_every_type_that_the_engine_multiplies_with_has_synthetic_blocks() -> None:
    weights = {t.name for t in TENSOR_TYPES.values() if t.is_computable and t.name != "I32"}
    assert set(SYNTHETIC_TYPES) == weights


@pytest.mark.parametrize("kind", ["F64", "Q8_K", "Q8_1", "I8", "I32"])
def test_a_type_without_products_is_refused_by_name(kind: str) -> None:
    with pytest.raises(ConfigProblem, match=f"tensor type {kind}: the engine has no product"):
        random_blocks(tensor_type_named(kind), 1, 1.0, random.Random(0))


@given(n_blocks=st.integers(0, 100), seed=st.integers(0, 1000))
def test_a_tile_streams_whole_blocks_of_its_own_and_exactly_as_many_as_asked(
    n_blocks: int, seed: int
) -> None:
    kind = tensor_type_named("Q4_0")
    tile = Tile(kind, 0.1, "seed", 7)
    own = random_blocks(kind, 7, 0.1, random.Random("seed"))
    known = {own[i : i + 18] for i in range(0, len(own), 18)}
    streamed = b"".join(tile.stream(n_blocks, random.Random(seed)))
    assert len(streamed) == n_blocks * 18
    assert {streamed[i : i + 18] for i in range(0, len(streamed), 18)} <= known
