"""The engine's allocator: where the next buffer goes."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from hotset.core.heap import NOTHING, Heap, Held

UNIT = 128  # what sizes are rounded up to


@given(
    steps=st.lists(st.tuples(st.integers(1, 40), st.integers(0, 9)), max_size=60),
)
def test_a_place_is_the_smallest_gap_that_holds_it_or_the_end(steps: list[tuple[int, int]]) -> None:
    heap, held = Heap(), list[Held]()
    peak = 0
    for n_units, action in steps:
        if action < 4 and held:
            heap.drop(held.pop(n_units % len(held)))
            continue
        gaps = _gaps(held)
        offset, size = heap.take(n_units * UNIT - action)
        assert size == n_units * UNIT
        large_enough = [gap for gap in gaps[:-1] if gap[1] >= size] or gaps[-1:]
        smallest = min(room for _, room in large_enough)
        assert (offset, smallest) in large_enough
        held.append((offset, size))
        peak = max(peak, offset + size)
        assert heap.peak_bytes == peak


def _gaps(held: list[Held]) -> list[tuple[int, float]]:
    """Offsets and sizes of what is free between places, by looking at every place."""
    found, at = list[tuple[int, float]](), 0
    for offset, size in sorted(held):
        if offset > at:
            found.append((at, offset - at))
        at = offset + size
    return [*found, (at, float("inf"))]


def test_what_all_have_given_back_is_one_gap_again() -> None:
    heap = Heap()
    places = [heap.take(n * UNIT) for n in (3, 1, 2)]
    heap.drop(places[1], places[0], places[2])
    assert heap.take(6 * UNIT)[0] == 0
    assert heap.peak_bytes == 6 * UNIT


def test_nothing_takes_no_place() -> None:
    heap = Heap()
    assert heap.take(0) == NOTHING
    heap.drop(NOTHING)
    assert heap.take(UNIT) == (0, UNIT)
