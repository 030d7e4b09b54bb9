"""The buffers of a batch where the expert store computes the experts."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.compute import compute_bytes_estimate, input_bytes
from hotset.core.machine import Backend
from hotset.core.memory import CacheSettings
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import host_compute_bytes
from hotset.core.storecompute import (
    ExpertRows,
    expert_rows,
    fullest_rows,
    store_compute_bytes,
)
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from plankit import real_model
from speckit import F16, settings, small, spec_of, tensor

# "HOTSET compute buffer size" and "CPU compute buffer size" of starts with the store (xllamacpp
# 2026.10.11549), MiB: model, context, slots, ubatch, KV type, flash attention, HOTSET, CPU.
REPORTED = (
    ("qwen3-30b-a3b", 4096, 1, 16, "f16", True, 2.12, 1.33),
    ("qwen3-30b-a3b", 8192, 1, 512, "f16", True, 68.00, 44.02),
    ("qwen3-30b-a3b", 16384, 1, 2048, "q8_0", True, 272.00, 208.15),
    ("qwen3-30b-a3b", 4096, 4, 512, "f16", True, 68.00, 40.02),
    ("olmoe-1b-7b", 8192, 1, 512, "f16", True, 48.00, 36.02),
    ("olmoe-1b-7b", 16384, 1, 2048, "q8_0", True, 192.00, 176.15),
    ("olmoe-1b-7b", 8192, 1, 512, "f16", False, 48.00, 304.01),
    ("qwen3.6-35b-a3b", 8192, 1, 512, "f16", True, 56.00, 62.02),
    ("qwen3.6-35b-a3b", 16384, 1, 2048, "q8_0", True, 224.00, 274.36),
    ("qwen3-next-80b-a3b", 8192, 1, 512, "f16", True, 70.00, 74.02),
    ("qwen3-next-80b-a3b", 4096, 4, 512, "f16", True, 70.00, 88.39),
    ("qwen3.5-122b-a10b", 8192, 1, 512, "f16", True, 96.00, 102.02),
    ("qwen3.5-122b-a10b", 16384, 1, 2048, "q8_0", True, 384.00, 440.36),
    ("gpt-oss-120b", 8192, 1, 512, "f16", False, 67.50, 1089.64),
    ("gpt-oss-20b", 8192, 1, 128, "f16", True, 16.88, 13.10),
    ("gpt-oss-20b", 16384, 1, 2048, "q8_0", True, 270.00, 249.66),
    ("gemma-4-26b-a4b", 8192, 1, 512, "f16", True, 77.00, 74.53),
    ("gemma-4-26b-a4b", 16384, 1, 2048, "q8_0", True, 308.00, 337.39),
    ("glm-4.7-flash", 16384, 1, 2048, "q8_0", True, 144.00, 384.05),
    ("granite-3.1-3b-a800m", 8192, 1, 512, "f16", True, 48.00, 26.02),
    ("mixtral-8x7b", 16384, 1, 2048, "q8_0", True, 672.00, 256.15),
)
MODELS = st.sampled_from(sorted({row[0] for row in REPORTED}))
WIDTHS = st.integers(1, 64).map(lambda n: 32 * n)


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: f"{row[0]}, {row[1]}, {row[3]}")
def test_the_store_takes_what_the_engine_gave_it_and_the_cpu_no_less_than_it_took(
    row: tuple[str, int, int, int, str, bool, float, float],
) -> None:
    model, context, slots, ubatch, kv, has_flash, store, processor = row
    kind = tensor_type_named(kv)
    asked = settings(
        context * slots, slots, type_k=kind, type_v=kind, ubatch_tokens=ubatch,
        has_flash_attention=has_flash,
    )  # fmt: skip
    spec = real_model(model)

    rest = compute_bytes_estimate(spec, asked, has_experts=False) / MIB

    assert store_compute_bytes(spec, asked) / MIB == pytest.approx(store, abs=0.01)
    assert processor - 0.01 <= rest <= processor + max(1, 0.2 * processor)


@given(
    st.integers(1, 16), WIDTHS, WIDTHS, st.integers(1, 64), st.sampled_from(["two", "one", "none"])
)
def test_what_is_held_at_once_adds_up(
    used: int, inner: int, outward: int, blocks: int, gate: str
) -> None:
    inward = {"two": (inner, inner), "one": (2 * inner,), "none": (inner,)}[gate]
    rows = ExpertRows(64, used, inward, inner, outward)
    n_tokens = 32 * blocks  # sizes that the allocator does not round

    held = used * n_tokens * 4 * sum(rows.widths)

    assert rows.n_bytes(n_tokens) == held
    assert sum(rows.widths) >= max(inner + outward, *inward)
    assert sum(rows.widths) <= 3 * inner + outward


@given(MODELS, st.integers(1, 4096), st.integers(1, 4096), st.booleans())
def test_a_larger_batch_never_takes_less(
    model: str, ubatch: int, more: int, is_beside_card: bool
) -> None:
    spec, few = real_model(model), settings(65536, ubatch_tokens=ubatch)
    many = replace(few, ubatch_tokens=ubatch + more)

    less, larger = (
        store_compute_bytes(spec, asked, is_beside_card=is_beside_card) for asked in (few, many)
    )

    assert less <= larger


@given(MODELS, st.integers(1, 16), st.integers(1, 16))
def test_more_experts_in_use_never_take_less(model: str, used: int, more: int) -> None:
    def counted(n_used: int) -> int:
        spec = real_model(model)
        assert spec.experts is not None
        asking = replace(spec, experts=replace(spec.experts, used=n_used))
        return store_compute_bytes(asking, settings(8192, ubatch_tokens=512))

    assert counted(used) < counted(used + more)


@given(MODELS, st.integers(1, 4096), st.sampled_from([4096, 65536]))
def test_the_context_does_not_matter_and_a_card_adds_its_rows(
    model: str, ubatch: int, context: int
) -> None:
    spec, asked = real_model(model), settings(context, ubatch_tokens=ubatch)
    assert spec.experts is not None

    alone = store_compute_bytes(spec, asked)
    beside = store_compute_bytes(spec, asked, is_beside_card=True)

    assert alone == store_compute_bytes(spec, replace(asked, context_tokens=8192))
    rows = ubatch * 4 * (spec.n_embd + spec.experts.count)
    assert alone < beside <= alone + rows + 4 * 128


@given(MODELS, st.integers(1, 4096), st.booleans())
def test_experts_apart_take_no_less_together_than_in_one_buffer_with_the_rest(
    model: str, ubatch: int, has_flash: bool
) -> None:
    """In one buffer they share their place with attention."""
    spec = real_model(model)
    asked = settings(16384, ubatch_tokens=ubatch, has_flash_attention=has_flash)

    whole = host_compute_bytes(spec, asked, ())
    rest = compute_bytes_estimate(spec, asked, has_experts=False)

    assert host_compute_bytes(spec, asked, (), has_store=True) >= whole - 4 * 128
    assert rest <= whole + ubatch * spec.working.parted_elements * 4


def test_beside_a_card_ram_holds_its_inputs_and_the_stores_buffer() -> None:
    spec, asked = real_model("qwen3-30b-a3b"), settings(8192, ubatch_tokens=512)

    counted = host_compute_bytes(spec, asked, {Backend.VULKAN}, has_store=True)

    store = store_compute_bytes(spec, asked, is_beside_card=True)
    assert counted == store + input_bytes(spec, asked)


def routed(*shapes: tuple[str, *tuple[int, ...]]) -> ModelSpec:
    keys = small(block_count=1, expert_count=8, expert_used_count=2)
    tensors = [tensor(f"blk.0.{name}.weight", *dims) for name, *dims in shapes]
    return spec_of("llama", keys, tensors)


def test_gate_and_up_in_one_tensor_take_what_two_take() -> None:
    asked: CacheSettings = settings(type_k=F16, type_v=F16, ubatch_tokens=512)
    down = ("ffn_down_exps", 96, 128, 8)
    apart = routed(("ffn_gate_exps", 128, 96, 8), ("ffn_up_exps", 128, 96, 8), down)
    fused = routed(("ffn_gate_up_exps", 128, 192, 8), down)
    bare = routed(("ffn_up_exps", 128, 96, 8), down)

    held = store_compute_bytes(apart, asked)

    assert held == store_compute_bytes(fused, asked) == 512 * 2 * 3 * 96 * 4
    assert store_compute_bytes(bare, asked) == 512 * 2 * (96 + 128) * 4


def test_the_fullest_block_counts() -> None:
    keys = small(expert_count=8, expert_used_count=2)
    tensors = [
        tensor(f"blk.{block}.{name}.weight", *dims, 8)
        for block, width in enumerate((64, 256, 128))
        for name, dims in (
            ("ffn_gate_exps", (128, width)),
            ("ffn_up_exps", (128, width)),
            ("ffn_down_exps", (width, 128)),
        )
    ]
    spec = spec_of("llama", keys, tensors)

    assert [rows.inner for rows in expert_rows(spec)] == [64, 256, 128]
    assert fullest_rows(spec, settings()).inner == 256


def test_without_routed_experts_there_is_nothing_to_take() -> None:
    dense = spec_of("llama", small(block_count=1), [tensor("blk.0.ffn_up.weight", 128, 256)])
    for spec in (dense, routed(("ffn_down_exps", 96)), routed(("ffn_up_exps", 128, 96, 8))):
        assert store_compute_bytes(spec, settings()) == 0
