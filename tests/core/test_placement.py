"""Placement: every byte of a model is in exactly one place, and buffers are counted where they
are."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.compute import compute_bytes_estimate, mask_bytes
from hotset.core.machine import Backend
from hotset.core.memory import cache_bytes, layer_cache_bytes
from hotset.core.modelspec import CacheKind, ModelSpec, Role
from hotset.core.parts import Staging, cache_units, split_model, sums
from hotset.core.placement import (
    Placement,
    Projector,
    ProjectorPlace,
    default_reserve_bytes,
    device_bytes,
    device_compute_bytes,
    host_compute_bytes,
    overhead_bytes,
    ram_weights,
)
from hotset.core.units import GIB, MIB
from plankit import card, integrated, real_model
from speckit import F16, Q8_0, settings, small, spec_of, tensor

MODELS = ["qwen3-30b-a3b", "qwen3.6-35b-a3b-mtp", "gpt-oss-20b", "gemma-4-26b-a4b", "glm-4.7-flash"]
DENSE = spec_of("llama", small(), [tensor("blk.0.ffn_up.weight", 64, 64)])


@pytest.mark.parametrize("name", MODELS)
def test_the_units_of_a_model_are_all_of_what_the_engine_loads(name: str) -> None:
    spec = real_model(name)
    parts = split_model(spec)
    total = sum(parts.trunk_bytes) + sum(parts.expert_bytes) + parts.ram_bytes
    assert total == spec.trunk_bytes
    looked_up = spec.bytes_by_role[Role.TOKEN_EMBEDDING]
    assert 0 <= parts.ram_bytes - looked_up < 4096  # and some frequencies outside of blocks
    assert parts.n_units == len(spec.layers) + 1
    assert spec.experts
    assert set(parts.moe_units) == set(spec.experts.layers) - set(_mtp(spec))
    for unit in _mtp(spec):  # the engine skips it, but it counts when blocks are dealt out
        assert parts.trunk_bytes[unit] == parts.expert_bytes[unit] == 0


def _mtp(spec: ModelSpec) -> range:
    return range(spec.n_layers, len(spec.layers))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("slots", [1, 3])
def test_caches_by_block_are_the_whole_cache(name: str, slots: int) -> None:
    spec = real_model(name)
    for type_ in (F16, Q8_0):
        kept = settings(8192 * slots, slots, type_k=type_, type_v=type_)
        assert sum(layer_cache_bytes(spec, kept)) == cache_bytes(spec, kept).total
        assert cache_units(spec, kept, 100).n_bytes[-1] == 0  # the output keeps nothing


def test_a_token_reads_as_many_cells_as_are_full_and_no_more_than_a_window() -> None:
    spec = real_model("gpt-oss-20b")
    near, far = (cache_units(spec, settings(32768), depth).token_bytes for depth in (128, 1280))
    for layer, few, many in zip(spec.layers, near, far, strict=False):
        assert many == (few if layer.cache is CacheKind.WINDOW else 10 * few)


def test_a_recurrent_state_is_read_and_written_at_any_depth() -> None:
    spec = real_model("qwen3.6-35b-a3b")
    reads = cache_units(spec, settings(), 0).token_bytes
    states = [4 * (layer.state_r_elements + layer.state_s_elements) for layer in spec.layers]
    assert reads == (*(2 * state for state in states), 0)
    assert sum(states) == 65_863_680  # bytes per sequence, as the engine prints them


def test_an_output_that_is_the_token_embedding_is_copied_to_the_device_only() -> None:
    tied = real_model("gemma-4-26b-a4b")
    assert split_model(tied).output_copy_bytes == tied.bytes_by_role[Role.TOKEN_EMBEDDING]
    assert split_model(real_model("qwen3-30b-a3b")).output_copy_bytes == 0


@given(
    first=st.integers(0, 49),
    second=st.integers(0, 49),
    hosted=st.sets(st.integers(0, 47)),
    cache_mib=st.integers(0, 100),
)
def test_no_byte_is_lost_and_none_is_in_two_places(
    first: int, second: int, hosted: set[int], cache_mib: int
) -> None:
    spec = real_model("qwen3-30b-a3b")
    parts = split_model(spec)
    second = min(second, parts.n_units - first)
    start = parts.n_units - first - second
    placement = Placement(
        units=(first, second),
        host_moe_units=tuple(sorted(unit for unit in hosted if unit >= start)),
        moe_cache_bytes=cache_mib * MIB,
    )
    caches = cache_units(spec, settings(), 0)
    taken = [
        device_bytes(
            parts, caches, placement, index, card(16), compute_bytes=7, projector=None,
            budget_bytes=9,
        )
        for index in (0, 1)
    ]  # fmt: skip
    weights = sum(device.trunk_bytes + device.expert_bytes for device in taken)
    assert weights + ram_weights(parts, placement).total_bytes == spec.trunk_bytes
    in_ram = sum(caches.n_bytes[:start])
    assert sum(device.cache_bytes for device in taken) + in_ram == sum(caches.n_bytes)
    assert taken[0].moe_cache_bytes == cache_mib * MIB
    for device, units in zip(taken, placement.units, strict=True):
        assert device.compute_bytes == (7 if units else 0)
        assert device.overhead_bytes == (512 * MIB if units else 0)


def test_the_projector_is_on_the_first_device_even_where_nothing_else_is() -> None:
    spec = real_model("qwen3-30b-a3b")
    parts, caches = split_model(spec), cache_units(spec, settings(), 0)
    placement = Placement(units=(0, parts.n_units), projector=ProjectorPlace.DEVICE)
    sizes = [
        device_bytes(
            parts, caches, placement, index, card(16), compute_bytes=0,
            projector=Projector(300, 20), budget_bytes=0,
        ).projector_bytes
        for index in (0, 1)
    ]  # fmt: skip
    assert sizes == [320, 0]


def test_buffers_of_a_device_are_those_of_the_cpu_and_what_devices_need_besides() -> None:
    spec = real_model("qwen3-30b-a3b")
    plain = settings(32768)
    base = compute_bytes_estimate(spec, plain)

    def needs(backend: Backend | None, copied: int = 0, **changes: bool) -> int:
        kept = settings(32768, type_k=Q8_0, type_v=Q8_0) if changes.pop("quantized", 0) else plain
        piped = changes.pop("piped", False)
        staging = Staging(copied)
        return device_compute_bytes(spec, kept, backend, staging=staging, is_pipelined=piped)

    assert needs(Backend.VULKAN) == needs(Backend.CUDA) == base
    assert needs(Backend.CUDA, copied=100) == base + 100
    # Heads of 128 are rotated before they are stored as blocks, K and V.
    assert needs(Backend.VULKAN, quantized=True) == base + 2 * 128 * 128 * 4
    # 4 KV heads of 128, K and V, as f16, for one block.
    converted = needs(Backend.CUDA, quantized=True) - needs(Backend.VULKAN, quantized=True)
    assert converted == 32768 * 2 * 4 * 128 * 2
    assert needs(None, quantized=True) == needs(Backend.CUDA, quantized=True)
    # Three more copies of the mask.
    assert needs(Backend.VULKAN, piped=True) == base + 3 * 512 * 32768 * 2
    # A large copy leaves room for what a token of 8 experts in use needs, but for its own sum.
    closed = 512 * 4 * (spec.working.ffn_elements - spec.working.routed_elements)
    assert needs(Backend.CUDA, copied=GIB) == base - closed + GIB


@pytest.mark.parametrize("name", MODELS)
def test_ram_beside_a_card_holds_what_comes_in_unless_it_has_to_compute(name: str) -> None:
    spec, kept = real_model(name), settings(32768)
    whole = compute_bytes_estimate(spec, kept)

    assert mask_bytes(spec, kept) < host_compute_bytes(spec, kept, {Backend.CUDA}) < whole / 2
    for backends in ((), {Backend.METAL}, {Backend.CUDA, None}):
        assert host_compute_bytes(spec, kept, backends) == whole
    few = replace(kept, ubatch_tokens=31)  # no copies for so few
    assert host_compute_bytes(spec, few, {Backend.CUDA}) == compute_bytes_estimate(spec, few)


def test_a_model_without_blocks_of_its_own_needs_no_conversion() -> None:
    bare = replace(DENSE, layers=())
    q8_0 = settings(type_k=Q8_0, type_v=Q8_0)
    sizes = {
        device_compute_bytes(bare, q8_0, backend, staging=Staging(), is_pipelined=False)
        for backend in (Backend.CUDA, Backend.VULKAN)
    }
    assert len(sizes) == 1


def test_a_card_beside_a_desktop_keeps_more_free_than_one_without() -> None:
    assert default_reserve_bytes(card(16, used_gib=1.5)) == GIB
    assert default_reserve_bytes(card(16, used_gib=0)) == GIB // 2
    assert default_reserve_bytes(card(2, used_gib=1)) == GIB // 4
    assert default_reserve_bytes(integrated(16)) == 0


def test_every_backend_has_an_overhead_and_an_unknown_one_the_largest() -> None:
    known = {overhead_bytes(card(16, backend=backend)) for backend in Backend}
    assert overhead_bytes(card(16, backend=None)) == max(known)
    assert min(known) > 0


def test_a_dense_models_large_batches_copy_at_most_half_a_block() -> None:
    parts = split_model(DENSE)
    assert 0 < parts.staging.total_bytes <= max(parts.trunk_bytes)
    with_copies, without = (
        device_compute_bytes(DENSE, settings(), Backend.CUDA, staging=staging, is_pipelined=False)
        for staging in (parts.staging, Staging())
    )
    assert with_copies - without == parts.staging.total_bytes
    assert parts.moe_units == ()


def test_sums_start_at_nothing() -> None:
    assert sums((1, 2, 3)) == (0, 1, 3, 6)
