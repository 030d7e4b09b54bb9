"""Damaged headers of every kind: an answer or one clear line, in bounded memory."""

from __future__ import annotations

import random
import tracemalloc

import pytest
from ggufkit import Gguf
from ggufmutate import SEEDS, assert_sound, damage
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.core.errors import FileProblem
from hotset.core.units import MIB
from hotset.gguf.reader import read_header


@pytest.mark.parametrize("seed", SEEDS, ids=["types", "chat", "tensors", "shard"])
def test_the_seeds_are_sound_before_they_are_damaged(
    tmp_path_factory: pytest.TempPathFactory, seed: Gguf
) -> None:
    path = seed.write(tmp_path_factory.mktemp("seed") / "a.gguf")
    assert_sound(read_header(path))


@settings(max_examples=400, deadline=None)
@given(seed=st.sampled_from(SEEDS), number=st.integers(0, 2**64), wants_all=st.booleans())
def test_a_damaged_header_is_read_or_refused_in_bounded_memory(
    tmp_path_factory: pytest.TempPathFactory, seed: Gguf, number: int, wants_all: bool
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    damage(seed, random.Random(number)).write(path)
    want = [str(key) for key, _ in seed.keys] if wants_all else []
    tracemalloc.start()
    try:
        assert_sound(read_header(path, want=want))
    except FileProblem as problem:
        assert problem.message.startswith("damaged.gguf: ")
    finally:
        peak_bytes = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert peak_bytes < 64 * MIB
