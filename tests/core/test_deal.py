"""Dealing out blocks, against trying every way there is."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.core.parts import cache_units, split_model
from hotset.core.placement import Placement
from hotset.core.plan.deal import Dealer
from hotset.core.speed import HostExperts, SpeedModel, decode_terms, speed_model, total_s
from hotset.core.units import GIB, MIB
from plankit import card, computer, real_model
from speckit import settings as cached
from speckit import small, spec_of, tensor

# 6 blocks with 8 experts each, of different sizes; a dense block in front.
SPEC = spec_of(
    "qwen3moe",
    small(
        block_count=7,
        embedding_length=1024,
        expert_count=8,
        expert_used_count=2,
        expert_feed_forward_length=512,
    ),
    [
        tensor("token_embd.weight", 1024, 4096),
        tensor("output.weight", 1024, 4096),
        tensor("blk.0.ffn_up.weight", 1024, 4096),
        *(tensor(f"blk.{n}.attn_q.weight", 1024, 1024) for n in range(7)),
        *(tensor(f"blk.{n}.ffn_up_exps.weight", 1024, 512 + 64 * n, 8) for n in range(1, 7)),
    ],
)
PARTS = split_model(SPEC)
CACHES = cache_units(SPEC, cached(1024), 256)
TOTAL = sum(PARTS.trunk_bytes) + sum(PARTS.expert_bytes) + sum(CACHES.n_bytes)


def machine_of(*bandwidths_gb_s: float) -> SpeedModel:
    cards = [card(16, bandwidth_gb_s=rate) for rate in bandwidths_gb_s]
    return speed_model(SPEC, computer(*cards), threads=8)


def seconds(model: SpeedModel, placement: Placement) -> float:
    return total_s(decode_terms(model, PARTS, CACHES, placement, HostExperts()))


def fits(rooms: tuple[int, ...], placement: Placement) -> bool:
    hosted = set(placement.host_moe_units)
    for room, units in zip(rooms, placement.ranges(PARTS.n_units), strict=True):
        need = sum(PARTS.trunk_bytes[u] + CACHES.n_bytes[u] for u in units)
        need += sum(PARTS.expert_bytes[u] for u in units if u not in hosted)
        if units and need > room:
            return False
    return True


def every_way(n_devices: int, first: int) -> Iterator[Placement]:
    """Every split of the units from `first` on, with every number of leading blocks' experts of
    each run in RAM."""
    n = PARTS.n_units
    for cuts in product(range(first, n + 1), repeat=n_devices - 1):
        ends = (first, *cuts, n)
        if list(ends) != sorted(ends):
            continue
        runs = list(pairwise(ends))
        for kept in product(*(range(end - start + 1) for start, end in runs)):
            hosted = [
                unit
                for (start, _), count in zip(runs, kept, strict=True)
                for unit in range(start, start + count)
                if PARTS.expert_bytes[unit]
            ]
            units = tuple(end - start for start, end in runs)
            yield Placement(units=units, host_moe_units=tuple(hosted))


@settings(max_examples=60, deadline=None)
@given(
    rooms=st.lists(st.integers(0, TOTAL), min_size=1, max_size=2),
    rates=st.tuples(st.sampled_from([20, 300, 1800]), st.sampled_from([20, 300, 1800])),
)
def test_a_deal_is_the_fastest_of_all_that_fit(rooms: list[int], rates: tuple[int, int]) -> None:
    model = machine_of(*rates[: len(rooms)])
    limits = tuple(rooms)
    deals = Dealer(model, PARTS, CACHES, limits, hosted=True).deals()
    if not deals:
        assert not any(fits(limits, way) for way in every_way(len(rooms), PARTS.output_unit))
        return
    deal, fewest = deals[0], deals[-1 if len(rooms) == 1 else 0]
    start = PARTS.n_units - sum(fewest.units)  # no way puts more units on devices
    assert not start or not any(fits(limits, way) for way in every_way(len(rooms), start - 1))
    placement = Placement(units=deal.units, host_moe_units=deal.host_moe_units)
    assert fits(limits, placement)
    first = PARTS.n_units - sum(deal.units)
    starts = range(PARTS.output_unit + 1) if len(rooms) == 1 else [first]
    ways = [way for start in starts for way in every_way(len(rooms), start)]
    best = min(seconds(model, way) for way in ways if fits(limits, way))
    assert seconds(model, placement) == pytest.approx(best)


def test_what_is_left_of_a_room_is_what_the_deal_does_not_take() -> None:
    room = TOTAL + 5 * MIB
    (deal,) = Dealer(machine_of(300), PARTS, CACHES, (room,), hosted=False).deals()
    assert deal.left_bytes == (5 * MIB,)
    assert deal.host_moe_units == ()
    (unused,) = Dealer(machine_of(300, 300), PARTS, CACHES, (room, 7), hosted=False).deals()
    assert unused.units == (PARTS.n_units, 0)
    assert unused.left_bytes == (5 * MIB, 7)


def test_without_experts_in_ram_it_is_all_or_nothing() -> None:
    for room in (TOTAL - 1, 0, -1):
        assert Dealer(machine_of(300), PARTS, CACHES, (room,), hosted=False).deals() == ()


@pytest.mark.parametrize("count", [0, 1, 4, 7, 100])
def test_experts_that_the_user_keeps_in_ram_are_exactly_those(count: int) -> None:
    (deal,) = Dealer(machine_of(300), PARTS, CACHES, (GIB,), hosted=True, forced=count).deals()
    assert deal.host_moe_units == tuple(unit for unit in PARTS.moe_units if unit < count)
    tight = Dealer(machine_of(300), PARTS, CACHES, (GIB // 1000,), hosted=True, forced=count)
    assert tight.deals() == ()


def test_the_output_takes_its_copy_along_where_it_is_the_token_embedding() -> None:
    tied = real_model("granite-3.1-1b-a400m")
    parts, caches = split_model(tied), cache_units(tied, cached(1024), 0)
    model = speed_model(tied, computer(card(16)), threads=8)
    exact = sum(parts.trunk_bytes) + sum(parts.expert_bytes) + sum(caches.n_bytes)
    for room, is_whole in ((exact, False), (exact + parts.output_copy_bytes, True)):
        deals = Dealer(model, parts, caches, (room,), hosted=False).deals()
        assert (len(deals) == 1) == is_whole


def test_a_device_that_is_slower_than_ram_can_be_left_out() -> None:
    """Where not all fits, each device is also offered alone."""
    trunk = TOTAL - sum(PARTS.expert_bytes)
    dealer = Dealer(machine_of(300, 2), PARTS, CACHES, (trunk // 3, trunk // 3), hosted=True)
    together, *alone = dealer.deals()
    assert min(together.units) > 0
    assert [deal.units.index(0) for deal in alone] == [1, 0]
    assert dealer.deals() == (together, *alone)  # the rooms are what they were
    times = [
        seconds(machine_of(300, 2), Placement(units=d.units, host_moe_units=d.host_moe_units))
        for d in (together, *alone)
    ]
    assert times[1] == min(times)
