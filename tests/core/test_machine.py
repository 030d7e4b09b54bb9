"""What can be worked out from the machine's facts alone."""

from __future__ import annotations

import itertools

import pytest

from hotset.core.machine import Gpu, Link
from hotset.core.units import GIB


@pytest.mark.parametrize(
    ("generation", "lanes", "published_gb_s"),
    # The usual rounded figures of a slot, in GB/s and one direction.
    [(1, 16, 4.0), (2, 16, 8.0), (3, 16, 15.75), (4, 16, 31.5), (4, 8, 15.75), (5, 16, 63.0)],
)
def test_a_slots_limit_is_the_published_figure(
    generation: int, lanes: int, published_gb_s: float
) -> None:
    assert Link(generation, lanes).limit_bytes_s / 1e9 == pytest.approx(published_gb_s, rel=0.002)


def test_each_generation_carries_more_than_the_one_before_and_at_most_about_twice() -> None:
    limits = [Link(generation, 8).limit_bytes_s for generation in range(1, 7)]
    for older, newer in itertools.pairwise(limits):
        assert older < newer <= 2.01 * older


def test_what_is_used_of_a_card_and_what_is_free_are_all_of_it() -> None:
    card = Gpu("card", 16 * GIB, 14 * GIB)
    assert card.used_bytes + card.free_bytes == card.total_bytes
