"""Blocks in RAM beside a card: what the engine reserved for them, and what must hold."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.core.compute import compute_bytes_estimate, input_bytes
from hotset.core.machine import Backend
from hotset.core.memory import CacheSettings, layer_cache_bytes
from hotset.core.parts import Staging
from hotset.core.placement import device_compute_bytes, host_compute_bytes
from hotset.core.replay import can_replay
from hotset.core.streaming import Streams, stored_bytes
from hotset.core.tensortypes import TensorType, tensor_type_named
from hotset.core.units import MIB
from plankit import real_model
from speckit import F16, Q8_0, settings, small, spec_of, tensor

# "compute" of the engine's own account (llama.cpp with Vulkan, llvmpipe as the card, dry starts),
# whole MiB rounded down: model, mix, units on the card, context, KV type, ubatch, slots, flash
# attention, MiB of the card.
REPORTED = (
    ("olmoe-1b-7b", "Q4_0", 8, 32768, "f16", 512, 1, True, 434),
    ("olmoe-1b-7b", "Q4_0", 16, 32768, "f16", 512, 1, True, 306),
    ("olmoe-1b-7b", "Q4_0", 8, 16384, "q8_0", 2048, 1, True, 446),
    ("olmoe-1b-7b", "Q4_0", 8, 2048, "f16", 512, 4, True, 138),
    ("qwen3-30b-a3b", "IQ4_XS", 24, 32768, "f16", 512, 1, True, 226),
    ("qwen3-30b-a3b", "IQ4_XS", 24, 8192, "f16", 2048, 1, True, 390),
    ("qwen3-30b-a3b", "IQ4_XS", 48, 32768, "q8_0", 512, 1, True, 196),
    ("qwen3-30b-a3b", "IQ4_XS", 24, 65536, "f16", 512, 1, True, 284),
    ("qwen3-30b-a3b", "IQ4_XS", 24, 2048, "f16", 512, 1, False, 160),
    ("qwen3.6-35b-a3b", "Q2_K", 20, 32768, "f16", 512, 1, True, 247),
    ("qwen3.6-35b-a3b", "Q2_K", 20, 32768, "q8_0", 512, 1, True, 225),
    ("qwen3.6-35b-a3b", "Q2_K", 20, 2048, "q8_0", 512, 3, True, 168),
    ("qwen3.6-35b-a3b", "Q2_K", 1, 32768, "f16", 2048, 1, True, 574),
    ("glm-4.7-flash", "Q4_0", 23, 32768, "f16", 512, 1, True, 195),
    ("glm-4.7-flash", "Q4_0", 23, 65536, "q8_0", 512, 1, True, 313),
    ("glm-4.7-flash", "Q4_0", 47, 32768, "q8_0", 512, 1, True, 136),
    ("granite-3.1-3b-a800m", "Q4_K_M", 16, 8192, "f16", 2048, 1, True, 273),
    ("granite-3.1-3b-a800m", "Q4_K_M", 32, 32768, "q8_0", 512, 1, True, 124),
    ("granite-3.1-1b-a400m", "Q8_0", 12, 32768, "f16", 2048, 1, True, 289),
)


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: "-".join(map(str, row)))
def test_buffers_of_a_card_are_those_that_the_engine_reserved(
    row: tuple[str, str, int, int, str, int, int, bool, int],
) -> None:
    name, mix, n_units, context, kv, ubatch, slots, has_flash, reported = row
    spec, kind = real_model(name, mix), tensor_type_named(kv)
    asked = settings(
        context * slots, slots, type_k=kind, type_v=kind, ubatch_tokens=ubatch,
        has_flash_attention=has_flash,
    )  # fmt: skip
    n_in_ram = len(spec.layers) + 1 - n_units
    counted = Streams(spec).compute_bytes(asked, n_in_ram, 0) / MIB
    beyond = 0 if has_flash else 9
    assert -0.1 <= counted - reported <= 1.5 + beyond


MOE = "qwen3-30b-a3b"
BATCH = settings(8192, ubatch_tokens=512)


def test_a_batch_too_small_to_be_copied_for_is_counted_as_without_blocks_in_ram() -> None:
    spec = real_model(MOE)
    few, many = replace(BATCH, ubatch_tokens=16), BATCH

    def counted(kept: CacheSettings, n_in_ram: int) -> int:
        return device_compute_bytes(
            spec, kept, Backend.VULKAN,
            staging=Staging(), is_pipelined=False, n_blocks_in_ram=n_in_ram,
        )  # fmt: skip

    assert counted(few, 0) == counted(few, 7)
    assert counted(many, 7) == Streams(spec).compute_bytes(many, 7, 0) != counted(many, 0)


@pytest.mark.parametrize("name", [MOE, "qwen3.6-35b-a3b", "glm-4.7-flash", "gemma-4-26b-a4b"])
def test_how_many_blocks_are_in_ram_stops_to_matter_after_a_few(name: str) -> None:
    """The first and the last block on the card still do what they do alone."""
    spec = real_model(name)
    half = spec.n_layers // 2
    some, more = (
        Streams(spec).compute_bytes(BATCH, n, 0) for n in (half, half + spec.n_layers // 4)
    )
    assert abs(some - more) < 0.1 * some


@pytest.mark.parametrize("name", ["qwen3.6-35b-a3b", "olmoe-1b-7b", "glm-4.7-flash"])
def test_what_one_search_has_found_out_changes_nothing(name: str) -> None:
    spec = real_model(name)
    streams = Streams(spec)
    for n_in_ram in (spec.n_layers, 1, spec.n_layers // 2, 2, 3, 1):
        for asked in (BATCH, replace(BATCH, ubatch_tokens=2048)):
            fresh = Streams(spec).compute_bytes(asked, n_in_ram, 0)
            assert streams.compute_bytes(asked, n_in_ram, 0) == fresh


def test_of_a_family_whose_order_is_unknown_all_copies_count_at_once() -> None:
    keys = small(block_count=1)
    spec = spec_of("llama", keys, [tensor("blk.0.attn_qkv.weight", 128, 256)])
    assert not can_replay(spec.layers[0].matrices)
    apart = compute_bytes_estimate(spec, BATCH) + 999 + sum(layer_cache_bytes(spec, BATCH))
    assert Streams(spec).compute_bytes(BATCH, 1, 999) == apart


def test_a_feed_forward_part_without_a_gate_is_smaller() -> None:
    def spec_with(*ffn: str) -> int:
        heads = [tensor(f"blk.0.attn_{n}.weight", 128, 128) for n in ("q", "k", "v", "output")]
        parts = [tensor(f"blk.0.ffn_{n}.weight", 128, 4096) for n in ffn]
        parts.append(tensor("blk.0.ffn_down.weight", 4096, 128))
        spec = spec_of("llama", small(block_count=1), [*heads, *parts])
        assert can_replay(spec.layers[0].matrices)
        return Streams(spec).compute_bytes(BATCH, 1, 0)

    gate = 512 * 4096 * 4
    assert spec_with("gate", "up") - spec_with("up") == gate


def test_experts_with_gate_and_up_in_one_tensor_need_one_copy_of_twice_the_size() -> None:
    def counted(*inward: tuple[str, int]) -> int:
        parts = [tensor(f"blk.0.attn_{n}.weight", 128, 128) for n in ("q", "k", "v", "output")]
        parts += [tensor("blk.0.ffn_gate_inp.weight", 128, 64)]
        parts += [tensor(f"blk.0.ffn_{n}_exps.weight", 128, width, 64) for n, width in inward]
        parts += [tensor("blk.0.ffn_down_exps.weight", 1024, 128, 64)]
        keys = small(block_count=1, expert_count=64, expert_used_count=2)
        return Streams(spec_of("llama", keys, parts)).compute_bytes(BATCH, 1, 0)

    one = 128 * 1024 * 64 * 2
    assert counted(("gate_up", 2048)) - counted(("gate", 1024), ("up", 1024)) == one


@pytest.mark.parametrize("name", ["gemma-4-26b-a4b", "qwen3.8-flash-next"])
def test_models_that_hold_more_beside_a_block_get_the_bound(name: str) -> None:
    """gemma 4 has a dense part beside its experts, the other one an indexer."""
    spec = real_model(name)
    counted = Streams(spec).compute_bytes(BATCH, 3, 999)
    assert counted > compute_bytes_estimate(spec, BATCH) + 999


def test_queries_of_a_latent_cache_may_come_from_one_matrix() -> None:
    """The small deepseek 2 models have no low-rank step in between."""
    spec = real_model("glm-4.7-flash")
    (layer, *_) = spec.layers
    wide = layer.matrices["attn_q_b"]
    one = {k: m for k, m in layer.matrices.items() if k not in ("attn_q_a", "attn_q_b")}
    one["attn_q"] = wide
    direct = replace(spec, layers=(replace(layer, matrices=one),), n_layers=1)
    both = replace(spec, layers=(layer,), n_layers=1)
    less, more = (Streams(s).compute_bytes(BATCH, 1, 0) for s in (direct, both))
    assert less <= more


def test_ram_holds_what_comes_back_for_its_caches() -> None:
    """A delta net's convolution is wider than all embeddings together, K and V of a few heads are
    not."""
    kept = settings(8192, ubatch_tokens=2048)
    for name, is_more in (("qwen3.6-35b-a3b", True), (MOE, False)):
        spec = real_model(name, "Q2_K")
        beside = host_compute_bytes(spec, kept, {Backend.VULKAN}, 20)
        assert (beside > input_bytes(spec, kept)) == is_more
        assert stored_bytes(spec, kept, 20) > 0
    # Its dry start took 208 MiB at a mask of 128 MiB more.
    longer = replace(kept, context_tokens=32768)
    spec = real_model("qwen3.6-35b-a3b", "Q2_K")
    assert 208 <= host_compute_bytes(spec, longer, {Backend.VULKAN}, 20) / MIB <= 214


def test_without_flash_attention_every_element_of_v_has_a_place_to_go_to() -> None:
    spec = real_model(MOE)
    off = replace(BATCH, has_flash_attention=False)
    difference = stored_bytes(spec, off, 1) - stored_bytes(spec, BATCH, 1)
    assert difference == 512 * spec.v_padded_elements * 8
    assert Streams(spec).compute_bytes(off, 24, 0) > Streams(spec).compute_bytes(BATCH, 24, 0)


def test_a_cache_is_turned_only_where_its_type_has_blocks_and_heads_have_64_elements() -> None:
    def counted(width: int, kind: TensorType) -> int:
        n = 4 * width
        matrices = [tensor(f"blk.0.attn_{m}.weight", 128, n) for m in ("q", "k", "v")]
        matrices += [tensor("blk.0.attn_output.weight", n, 128)]
        matrices += [tensor(f"blk.0.ffn_{m}.weight", 128, 128) for m in ("gate", "up", "down")]
        keys = small(
            block_count=1, attention__head_count_kv=4, attention__key_length=width,
            attention__value_length=width,
        )  # fmt: skip
        spec = spec_of("llama", keys, matrices)
        kept = settings(256, type_k=kind, type_v=kind, ubatch_tokens=256)
        return Streams(spec).compute_bytes(kept, 1, 0)

    for width in (32, 64, 256):
        assert (counted(width, Q8_0) > counted(width, F16)) == (width >= 64)
