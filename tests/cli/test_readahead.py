"""Reading ahead: the pages are there afterwards, and never more of them than there is room for."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import pytest
from benchmarks.store.pagecache import drop, resident_bytes

from hotset.cli.readahead import Piece, read_ahead
from hotset.core.errors import MachineProblem
from hotset.core.units import MIB

CHUNK = 32 * MIB
SIZE = 100 * MIB


@pytest.fixture(name="cold")
def _cold(tmp_path: Path) -> Path:
    """A file of which nothing is in memory."""
    path = tmp_path / "model.gguf"
    path.write_bytes(os.urandom(MIB) * (SIZE // MIB))
    try:
        drop(path)
    except MachineProblem as problem:
        pytest.skip(problem.message)
    return path


def read(
    pieces: list[Piece],
    room_bytes: Callable[[], int] = lambda: 1 << 40,
    is_over: Callable[[], bool] = lambda: False,
) -> int:
    return read_ahead(pieces, room_bytes, is_over)


def test_afterwards_the_whole_file_is_in_memory(cold: Path) -> None:
    assert read([(cold, 0, SIZE)]) == SIZE
    assert resident_bytes(cold) == SIZE


def test_no_more_is_read_than_there_is_room_for(cold: Path) -> None:
    assert read([(cold, 0, SIZE)], lambda: 2 * CHUNK + 1) == 2 * CHUNK
    assert resident_bytes(cold) < 3 * CHUNK


def test_it_ends_when_the_room_goes(cold: Path) -> None:
    rooms = iter([SIZE, SIZE, 0])
    assert read([(cold, 0, SIZE)], lambda: next(rooms)) == 2 * CHUNK


def test_it_ends_when_nobody_wants_it_any_more(cold: Path) -> None:
    looks = iter([False, True])
    assert read([(cold, 0, SIZE)], is_over=lambda: next(looks)) == CHUNK
    assert resident_bytes(cold) < 2 * CHUNK


def test_only_the_pieces_that_are_named_are_read(cold: Path) -> None:
    """Of a model whose experts the store reads itself, these are what is no expert."""
    pieces = [(cold, 0, 8 * MIB), (cold, 90 * MIB, 92 * MIB)]
    assert read(pieces) == 10 * MIB
    # The kernel may add a little of its own.
    assert 10 * MIB <= resident_bytes(cold) < 16 * MIB


def test_an_empty_piece_and_a_missing_file(cold: Path) -> None:
    assert read([(cold, 5, 5)]) == 0
    with pytest.raises(OSError, match="No such file"):
        read([(cold.with_name("gone.gguf"), 0, 1)])
