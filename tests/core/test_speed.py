"""The speed model: more bytes take longer, faster memory takes less, and what is not known widens
the range."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.machine import Link, Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import cache_units, split_model
from hotset.core.placement import Placement
from hotset.core.speed import (
    FITTED,
    MEASURED,
    HostExperts,
    HostTier,
    SpeedModel,
    Term,
    decode_terms,
    estimate,
    prefill_terms,
    speed_model,
    total_s,
)
from plankit import card, computer, integrated, real_model
from speckit import settings, small, spec_of, tensor

MOE = real_model("qwen3.6-35b-a3b", "Q4_K_M")
PARTS = split_model(MOE)
ALL = Placement(units=(PARTS.n_units,))
PC = computer(card(16))


def model_of(machine: Machine, spec: ModelSpec = MOE, threads: int = 8) -> SpeedModel:
    return speed_model(spec, machine, threads=threads)


def decode_s(
    machine: Machine, placement: Placement, host: HostExperts | None = None, depth: int = 0
) -> float:
    caches = cache_units(MOE, settings(262_144), depth)
    return total_s(decode_terms(model_of(machine), PARTS, caches, placement, host or HostExperts()))


def hosted(count: int) -> Placement:
    return replace(ALL, host_moe_units=PARTS.moe_units[:count])


def test_every_block_of_experts_in_ram_costs_the_same_and_the_published_runs_agree() -> None:
    """0.32 ms for a block of this model is what a published pair of runs shows on such a PC."""
    fast = replace(PC, ram_bandwidth_bytes_s=52_000_000_000, num_cores=16)
    caches = cache_units(MOE, settings(65_536), 0)
    times = [
        total_s(decode_terms(model_of(fast, threads=16), PARTS, caches, hosted(n), HostExperts()))
        for n in (24, 32, 40)
    ]
    steps = [(after - before) / 8 for before, after in pairwise(times)]
    assert steps[0] == pytest.approx(steps[1], rel=0.2)  # down projections differ in type
    assert all(0.2e-3 < step < 0.5e-3 for step in steps)


@given(st.integers(0, 40), st.integers(0, 40))
def test_fewer_experts_in_ram_are_never_slower_on_a_real_card(few: int, many: int) -> None:
    few, many = sorted((few, many))
    assert decode_s(PC, hosted(few)) <= decode_s(PC, hosted(many))


@given(depth=st.integers(0, 200_000))
def test_a_longer_conversation_is_never_faster(depth: int) -> None:
    assert decode_s(PC, ALL, depth=depth) >= decode_s(PC, ALL)


def test_without_a_card_everything_comes_from_ram() -> None:
    terms = decode_terms(
        model_of(computer()), PARTS, cache_units(MOE, settings(), 0), Placement(), HostExperts()
    )
    (only,) = terms
    read = sum(PARTS.trunk_bytes) + sum(PARTS.token_expert_bytes)
    state = cache_units(MOE, settings(), 0).token_bytes
    assert only.n_bytes == read + sum(state)


def test_a_tied_output_is_read_wherever_it_is_computed() -> None:
    tied = real_model("gemma-4-26b-a4b")
    parts, caches = split_model(tied), cache_units(tied, settings(), 0)
    for placement in (Placement(), Placement(units=(parts.n_units,))):
        model = speed_model(tied, PC, threads=8)
        first = decode_terms(model, parts, caches, placement, HostExperts())[0]
        without = replace(parts, output_copy_bytes=0)
        smaller = decode_terms(model, without, caches, placement, HostExperts())[0]
        assert first.n_bytes - smaller.n_bytes == parts.output_copy_bytes


def test_a_cpu_is_bound_by_its_cores_or_by_its_memory() -> None:
    few, many = (model_of(computer(bandwidth_gb_s=500), threads=n) for n in (1, 4))
    assert many.host_bytes_s == 4 * few.host_bytes_s
    narrow = model_of(computer(bandwidth_gb_s=10), threads=64)
    assert narrow.host_bytes_s == pytest.approx(10e9 * FITTED.ram_share)


def test_types_that_are_slow_to_decode_bind_the_cores_earlier() -> None:
    def per_core(name: str) -> float:
        spec = replace(MOE, bytes_by_type={name: 1})
        return model_of(computer(bandwidth_gb_s=500), spec, threads=1).host_bytes_s

    assert per_core("IQ3_XXS") == pytest.approx(FITTED.slow_core_bytes_s)
    assert per_core("Q4_K") == pytest.approx(FITTED.core_bytes_s)
    assert model_of(computer(), replace(MOE, bytes_by_type={})).host_bytes_s > 0


def test_avx512_helps_the_types_whose_kernels_use_it_where_cores_are_the_limit() -> None:
    def rate(name: str, features: frozenset[str], bandwidth_gb_s: int = 500) -> float:
        machine = replace(computer(bandwidth_gb_s=bandwidth_gb_s), cpu_features=features)
        return model_of(machine, replace(MOE, bytes_by_type={name: 1}), threads=4).host_bytes_s

    narrow, wide = frozenset({"avx2"}), frozenset({"avx2", "avx512f"})
    assert rate("Q4_K", wide) > rate("Q4_K", narrow)
    for name in ("Q8_0", "IQ3_XXS", "MXFP4"):
        assert rate(name, wide) == rate(name, narrow)
    assert rate("Q4_K", wide, 10) == rate("Q4_K", narrow, 10)


def test_what_is_not_known_is_assumed_named_and_widens_the_range() -> None:
    blind = replace(
        PC,
        ram_bandwidth_bytes_s=None,
        devices=(replace(card(16), bandwidth_bytes_s=None, link=None),),
        disk=None,
    )
    model = model_of(blind)
    assert model.assumed == ("RAM bandwidth", "memory bandwidth of 16 GiB card")
    known, guessed = (estimate(m, 50.0, ALL, HostExperts()) for m in (model_of(PC), model))
    assert known.likely == guessed.likely == 50.0
    assert guessed.low < known.low < 50.0 < known.high < guessed.high
    cached = replace(hosted(40), moe_cache_bytes=1 << 30)
    assert estimate(model_of(PC), 50.0, cached, HostExperts()).low < known.low


def test_a_link_carries_what_was_measured_or_what_its_wires_and_the_ram_allow() -> None:
    def model(value: Link | None, ram_gb_s: float = 100, copies: int | None = None) -> SpeedModel:
        gpu = replace(card(16), link=value, copy_bytes_s=copies)
        return model_of(computer(gpu, bandwidth_gb_s=ram_gb_s))

    def link(value: Link | None, ram_gb_s: float = 100) -> float:
        return model(value, ram_gb_s).link_bytes_s

    for slot in (Link(4, 16), None):
        measured = model(slot, copies=21_000_000_000)
        assert (measured.link_bytes_s, measured.link_source) == (21e9, MEASURED)
    assert model(Link(4, 8)).link_source == "80% of PCIe 4.0 x8"
    assert model(None).link_source == "80% of PCIe 3.0 x16, assumed"
    assert model(Link(5, 16), ram_gb_s=40).link_source == "half of what RAM delivers"
    assert link(Link(4, 8)) == pytest.approx(0.8 * Link(4, 8).limit_bytes_s)
    assert link(Link(5, 16), ram_gb_s=40) == 20e9
    assert 0 < link(None) < 12e9
    shared = model_of(computer(integrated(16), bandwidth_gb_s=60))
    assert shared.link_bytes_s == 30e9
    assert shared.device_bytes_s == (60e9 * FITTED.vram_share,)


def test_the_engines_cache_pays_by_hits_and_costs_a_wait_for_each_block() -> None:
    everything = sum(PARTS.expert_bytes)

    def seconds(share: float) -> float:
        cached = replace(hosted(40), moe_cache_bytes=int(share * everything))
        return decode_s(PC, cached, HostExperts(is_pinned=True))

    assert seconds(0.1) > seconds(0.3) > seconds(0.9)
    waits = 40 * FITTED.cache_unit_s
    assert seconds(0.999999) - waits == pytest.approx(decode_s(PC, ALL), rel=0.01)
    unpinned = decode_s(PC, replace(hosted(40), moe_cache_bytes=everything // 10))
    assert unpinned > seconds(0.1)


def test_the_disk_is_slower_than_ram_and_the_store_faster_than_the_page_cache() -> None:
    placement = hosted(40)
    half = sum(PARTS.expert_bytes) // 2
    ram, store, pages = (decode_s(PC, placement, HostExperts(tier, half)) for tier in HostTier)
    assert ram < store < pages
    everything = HostExperts(HostTier.STORE, sum(PARTS.expert_bytes))
    assert decode_s(PC, placement, everything) == pytest.approx(decode_s(PC, placement))
    slow, fast = (
        decode_s(computer(card(16), disk_gb_s=rate), placement, HostExperts(HostTier.STORE, half))
        for rate in (0.5, 7)
    )
    assert slow > fast


def test_a_dense_model_larger_than_ram_is_read_from_the_disk_for_every_token() -> None:
    dense = spec_of("llama", small(), [tensor("blk.0.ffn_up.weight", 4096, 4096)])
    parts = split_model(dense)
    caches = cache_units(dense, settings(), 0)
    host = HostExperts(HostTier.PAGES, 1)
    model = speed_model(dense, computer(), threads=8)
    terms = decode_terms(model, parts, caches, Placement(), host)
    assert terms[-1].n_bytes == sum(parts.trunk_bytes)
    reads = prefill_terms(model, parts, Placement(), host, 512)
    assert reads[-1].n_bytes == 0  # of experts, which it has none of


@given(st.sampled_from([64, 256, 1024, 4096]))
def test_a_larger_batch_reads_prompts_faster_where_experts_are_copied(ubatch: int) -> None:
    def per_token(n: int, host: HostExperts) -> float:
        return total_s(prefill_terms(model_of(PC), PARTS, hosted(40), host, n)) / n

    pinned = HostExperts(is_pinned=True)
    assert per_token(2 * ubatch, pinned) < per_token(ubatch, pinned)
    assert per_token(ubatch, pinned) < per_token(ubatch, HostExperts())
    on_card = prefill_terms(model_of(PC), PARTS, ALL, pinned, ubatch)
    assert [term.what for term in on_card] == ["device 0: arithmetic"]


def test_prompts_of_blocks_in_ram_are_computed_on_the_first_card() -> None:
    half = Placement(units=(0, PARTS.n_units // 2))
    two = computer(card(16), card(16))
    terms = prefill_terms(model_of(two), PARTS, half, HostExperts(HostTier.STORE, 1), 512)
    assert [term.what for term in terms] == [
        "device 0: arithmetic",
        "device 1: arithmetic",
        "copies to the device",
        "disk: reads",
    ]
    none = Placement(units=(PARTS.n_units, 0))
    names = [term.what for term in prefill_terms(model_of(two), PARTS, none, HostExperts(), 512)]
    assert names == ["device 0: arithmetic"]


def test_a_device_without_units_has_no_terms() -> None:
    two = computer(card(16), card(16))
    placement = Placement(units=(0, PARTS.n_units))
    caches = cache_units(MOE, settings(), 0)
    terms = decode_terms(model_of(two), PARTS, caches, placement, HostExperts())
    assert {term.what.split(":")[0] for term in terms} == {"device 1"}


def test_a_term_is_bytes_over_a_rate_or_events_times_their_time() -> None:
    assert Term("reads", n_bytes=10, bytes_s=5.0).seconds == 2.0
    assert Term("waits", count=4, each_s=0.5).seconds == 2.0
    assert Term("nothing").seconds == 0.0
