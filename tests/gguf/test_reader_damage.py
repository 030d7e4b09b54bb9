"""Damaged headers of every kind: an answer or one clear line, in bounded memory."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ggufkit import Gguf
from ggufmutate import SEEDS, assert_sound, damaged_file
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
@given(number=st.integers(0, 2**64))
def test_a_damaged_header_is_read_or_refused_in_bounded_memory(
    tmp_path_factory: pytest.TempPathFactory, number: int
) -> None:
    path = tmp_path_factory.getbasetemp() / "damaged.gguf"
    damaged, want = damaged_file(number)
    damaged.write(path)
    tracemalloc.start()
    try:
        message = outcome(path, want)
        peak_bytes = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert message == "" or message.startswith("damaged.gguf: ")
    assert peak_bytes < 64 * MIB


def outcome(path: Path, want: list[str]) -> str:
    """The message of a refusal; empty for a header that is read and sound."""
    try:
        assert_sound(read_header(path, want=want))
    except FileProblem as problem:
        return problem.message
    return ""
