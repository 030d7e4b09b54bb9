"""The simulator: known answers, bounds, and equalities between configurations."""

from __future__ import annotations

from dataclasses import replace
from itertools import combinations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.lab.belady import simulate_belady
from hotset.lab.counts import Counts, percentile
from hotset.lab.policies import POLICIES
from hotset.lab.routing import Routing, routing_of
from hotset.lab.simulate import simulate
from hotset.lab.tiers import simulate_tiers
from lab.routingkit import batch, layers, skewed

ROUTING = skewed([32] * 8, [1000] * 8, used=4, batches=[1] * 300, seed=7)


def test_the_published_conformance_trace_gives_its_published_counts() -> None:
    """Three layers of four experts, two slots each, LRU by layer (arXiv 2608.07911)."""
    records = [
        batch(number, layer, [experts])
        for number, experts in enumerate([(0, 1), (0, 2), (0, 1), (0, 3), (0, 1)])
        for layer in range(3)
    ]
    routing = routing_of("conformance", [*layers([4] * 3, [10] * 3), *records])
    counts = simulate(routing, POLICIES["layer-lru"], share=0.5).decode
    assert (counts.num_requests, counts.num_hits, counts.num_misses) == (30, 12, 18)
    assert (counts.num_compulsory, counts.num_evictions) == (12, 12)
    assert counts.disk_bytes == 180
    assert percentile(counts.misses_per_event, 0.5) == 1
    assert percentile(counts.misses_per_event, 0.95) == 2


def test_a_sequence_longer_than_memory_that_comes_again_never_hits_by_recency() -> None:
    """The cliff: a memory just below what one token touches, with the same experts every token."""
    tokens = [batch(n, layer, [(1, 2)]) for n in range(20) for layer in range(4)]
    routing = routing_of("cycle", [*layers([4] * 4, [10] * 4), *tokens])
    assert simulate(routing, POLICIES["lru"], share=6 / 16).decode.num_hits == 0
    assert simulate(routing, POLICIES["lru"], share=8 / 16).decode.num_hits == 19 * 8
    assert simulate(routing, POLICIES["quota"], share=6 / 16).decode.hit_rate > 0.4


@pytest.mark.parametrize("policy", POLICIES)
@pytest.mark.parametrize("share", [0.05, 0.1, 0.25, 0.5])
def test_no_policy_beats_the_bound(policy: str, share: float) -> None:
    bound = simulate_belady(ROUTING, share=share).decode
    counts = simulate(ROUTING, POLICIES[policy], share=share).decode
    assert counts.num_hits <= bound.num_hits
    assert bound.num_compulsory == counts.num_compulsory


@pytest.mark.parametrize("policy", POLICIES)
def test_with_room_for_all_only_first_uses_miss(policy: str) -> None:
    counts = simulate(ROUTING, POLICIES[policy], share=1.0).decode
    assert counts.num_misses == counts.num_compulsory
    assert counts.num_evictions == 0
    assert counts == simulate_belady(ROUTING, share=1.0).decode


def brute_force(routing: Routing, num_slots: int) -> int:
    """Most hits of any cache with bypass, by trying every content after every event."""
    best: dict[frozenset[int], int] = {frozenset(): 0}
    for event in routing.events:
        units = frozenset(routing.first_units[event.layer] + expert for expert in event.experts)
        after: dict[frozenset[int], int] = {}
        for inside, hits in best.items():
            now = hits + len(inside & units)
            known = inside | units
            size = min(num_slots, len(known))
            for kept in map(frozenset, combinations(sorted(known), size)):
                after[kept] = max(after.get(kept, 0), now)
        best = after
    return max(best.values())


@settings(max_examples=40, deadline=None)
@given(
    tokens=st.lists(
        st.lists(st.sets(st.integers(0, 3), min_size=1, max_size=2), min_size=2, max_size=2),
        min_size=1, max_size=7,
    ),
    num_slots=st.integers(1, 5),
)  # fmt: skip
def test_the_bound_is_what_trying_everything_finds(
    tokens: list[list[set[int]]], num_slots: int
) -> None:
    records = [
        batch(n, layer, [sorted(experts)])
        for n, by_layer in enumerate(tokens)
        for layer, experts in enumerate(by_layer)
    ]
    routing = routing_of("tiny", [*layers([4, 4], [1, 1]), *records])
    bound = simulate_belady(routing, share=num_slots / 8).decode
    assert bound.num_hits == brute_force(routing, num_slots)


def test_a_prompt_between_answers_costs_the_default_fewer_hits_than_recency() -> None:
    batches = [1] * 100
    quiet = skewed([32] * 8, [1000] * 8, used=4, batches=batches * 2, seed=3)
    # The same answers with a prompt that asks for everything in the middle.
    middle = len(quiet.events) // 2
    prompt = [
        replace(event, num_tokens=300, is_decode=False, experts=tuple(range(32)), batch=-1)
        for event in quiet.events[:8]
    ]
    events = (*quiet.events[:middle], *prompt, *quiet.events[middle:])
    disturbed = replace(quiet, events=events)

    def lost(policy: str) -> int:
        rule = POLICIES[policy]
        hits = [simulate(r, rule, share=0.4).decode.num_hits for r in (quiet, disturbed)]
        return hits[0] - hits[1]

    assert lost("quota") < lost("lru") / 4
    counts = simulate(disturbed, POLICIES["quota"], share=0.4)
    assert counts.prompt.num_requests == 8 * 32
    assert (
        counts.decode.num_requests
        == simulate(quiet, POLICIES["quota"], share=0.4).both().num_requests
    )


def test_admission_trades_few_hits_for_far_fewer_uploads() -> None:
    rule = POLICIES["decayed"]
    always = simulate(ROUTING, rule, share=0.15).decode
    careful = simulate(ROUTING, replace(rule, threshold=1.5), share=0.15).decode
    assert careful.num_uploads < always.num_uploads / 2
    assert careful.hit_rate > always.hit_rate - 0.05
    assert careful.num_misses == careful.num_uploads + careful.num_in_place
    assert always.num_in_place == 0


def test_two_tiers_read_the_disk_as_one_memory_of_both_would_by_recency() -> None:
    """Exclusive tiers under recency are one memory in two places."""
    lru = POLICIES["lru"]
    tiers = simulate_tiers(ROUTING, lru, lru, fast_share=0.25, slow_share=0.25).decode
    one = simulate(ROUTING, lru, share=0.5).decode
    fast = simulate(ROUTING, lru, share=0.25).decode
    assert tiers.num_disk == one.num_disk
    assert tiers.num_hits == fast.num_hits


def test_an_inclusive_tier_adds_only_what_it_is_larger_by() -> None:
    def tiers(fast: float, slow: float, *, is_inclusive: bool) -> Counts:
        quota = POLICIES["quota"]
        return simulate_tiers(
            ROUTING, quota, quota, fast_share=fast, slow_share=slow, is_inclusive=is_inclusive
        ).decode

    inclusive = tiers(0.1, 0.3, is_inclusive=True)
    exclusive = tiers(0.1, 0.3, is_inclusive=False)
    assert inclusive.num_hits == exclusive.num_hits
    assert inclusive.num_disk > exclusive.num_disk
    with pytest.raises(ConfigProblem, match="must be larger"):
        tiers(0.3, 0.3, is_inclusive=True)


def test_what_tiers_do_not_upload_is_used_where_it_lies() -> None:
    careful = replace(POLICIES["decayed"], threshold=1.5)
    counts = simulate_tiers(
        ROUTING, careful, POLICIES["lru"], fast_share=0.1, slow_share=1.0
    ).decode
    assert counts.num_misses == counts.num_uploads + counts.num_in_place
    assert counts.num_disk == counts.num_compulsory
    assert counts.disk_bytes == 1000 * counts.num_disk


def test_layers_of_other_sizes_have_slots_of_their_own() -> None:
    mixed = skewed([16] * 4, [100, 900, 100, 900], used=2, batches=[1] * 100, seed=5)
    counts = simulate(mixed, POLICIES["quota"], share=1.0).decode
    distinct = {(event.layer, expert) for event in mixed.events for expert in event.experts}
    sizes = [layer.expert_bytes for layer in mixed.layers]
    assert counts.disk_bytes == sum(sizes[layer] for layer, _ in distinct)


@pytest.mark.parametrize("policy", POLICIES)
def test_a_memory_of_one_slot_hits_only_what_was_asked_for_last(policy: str) -> None:
    counts = simulate(ROUTING, POLICIES[policy], share=1.001 / ROUTING.num_units).both()
    assert counts.num_requests - counts.num_evictions == counts.num_hits + 1


def test_a_memory_without_a_single_slot_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="holds no expert"):
        simulate(ROUTING, POLICIES["lru"], share=0.001)
