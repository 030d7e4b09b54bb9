"""Random blocks against the gguf package's dequantizers, and plain decoders where it has none."""

from __future__ import annotations

import random

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.core.tensortypes import TENSOR_TYPES, tensor_type_named
from hotset.gguf.synth.blocks import SYNTHETIC_TYPES, Tile, leaning_blocks, random_blocks
from synthkit import values_of


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


@pytest.mark.parametrize("lean", [0.1, 0.25, 0.6])
def test_leaning_blocks_lie_around_a_vector_of_alternating_signs(lean: float) -> None:
    raw = leaning_blocks(20_000, 2.0, lean, random.Random(4))
    values = values_of("Q8_0", raw)
    signs = np.tile([1.0, -1.0], values.size // 2)
    along = values.ravel() * signs
    assert along.mean() == pytest.approx(lean * 2.0, rel=0.05)
    assert (along - along.mean()).std() == pytest.approx(2.0, rel=0.1)
    # Seen without the signs there is no lean.
    assert abs(values.mean()) < 0.05
