"""Compute buffers: what an engine reserved, and what must hold between two settings."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.compute import batch_tokens, compute_bytes_estimate, largest_context, mask_bytes
from hotset.core.memory import CONTEXT_STEP_TOKENS, CacheSettings, cache_bytes, context_cells
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from plankit import real_model
from speckit import F16, settings, small, spec_of, tensor

TOLERANCE_MIB = 64
REAL = (
    "qwen3-30b-a3b",
    "qwen3.6-35b-a3b",
    "qwen3.8-flash-next",
    "gpt-oss-20b",
    "gemma-4-26b-a4b",
    "glm-4.7-flash",
    "mixtral-8x7b",
)

# "compute" of the engine's own account (xllamacpp 2026.10.11549 on a CPU), whole MiB rounded down:
# model, context, slots, ubatch, KV type, flash attention, MiB.
REPORTED = (
    ("qwen3-30b-a3b", 32768, 1, 2048, "f16", True, 480),
    ("qwen3-30b-a3b", 8192, 1, 512, "f16", False, 566),
    ("qwen3.6-35b-a3b", 131072, 1, 512, "q8_0", True, 204),
    ("qwen3.6-35b-a3b", 8192, 4, 512, "f16", True, 84),
    ("qwen3.5-122b-a10b", 8192, 4, 512, "f16", True, 142),
    ("qwen3-next-80b-a3b", 8192, 1, 512, "f16", False, 318),
    ("qwen3.8-flash-next", 32768, 1, 2048, "f16", True, 926),
    ("qwen3.8-flash-next", 131072, 1, 512, "q8_0", True, 612),
    ("qwen3.8-flash-next", 262144, 1, 2048, "f16", True, 4295),
    ("qwen3.8-flash-next", 4096, 1, 2048, "f16", True, 613),
    ("qwen3.8-flash-next", 8192, 4, 512, "f16", True, 164),
    ("gpt-oss-20b", 8192, 1, 2048, "f16", True, 423),
    ("gpt-oss-20b", 8192, 1, 512, "f16", False, 1089),
    ("gemma-4-26b-a4b", 131072, 1, 512, "q8_0", True, 235),
    ("glm-4.5-air", 32768, 1, 2048, "f16", True, 808),
    ("glm-4.7-flash", 8192, 1, 512, "f16", False, 408),
    ("mixtral-8x7b", 8192, 4, 512, "f16", True, 216),
    ("olmoe-1b-7b", 131072, 1, 512, "q8_0", True, 196),
    ("granite-3.1-3b-a800m", 8192, 1, 2048, "f16", True, 284),
)


def any_settings() -> st.SearchStrategy[CacheSettings]:
    return st.builds(
        settings,
        st.integers(1, 300_000),
        st.integers(1, 16),
        type_k=st.just(F16),
        type_v=st.just(F16),
        ubatch_tokens=st.integers(1, 4096),
        is_unified=st.booleans(),
        has_flash_attention=st.booleans(),
        has_full_window=st.booleans(),
    )


models = st.sampled_from(REAL)


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: f"{row[0]}, {row[1]}, {row[3]}")
def test_the_estimate_is_what_the_engine_reserved_and_never_less(
    row: tuple[str, int, int, int, str, bool, int],
) -> None:
    model, context, slots, ubatch, kv, has_flash, reported = row
    kind = tensor_type_named(kv)
    asked = settings(
        context * slots, slots, type_k=kind, type_v=kind, ubatch_tokens=ubatch,
        has_flash_attention=has_flash,
    )  # fmt: skip

    estimate = compute_bytes_estimate(real_model(model), asked) / MIB

    assert reported <= estimate <= reported + 1 + min(TOLERANCE_MIB, 0.12 * reported)


@given(models, any_settings(), st.integers(1, 100_000))
def test_more_context_never_takes_less(model: str, base: CacheSettings, more: int) -> None:
    larger = replace(base, context_tokens=base.context_tokens + more)
    spec = real_model(model)

    assert compute_bytes_estimate(spec, base) <= compute_bytes_estimate(spec, larger)


@given(models, any_settings(), st.integers(1, 4096))
def test_a_larger_batch_never_takes_less(model: str, base: CacheSettings, more: int) -> None:
    larger = replace(base, ubatch_tokens=base.ubatch_tokens + more)
    spec = real_model(model)

    assert compute_bytes_estimate(spec, base) <= compute_bytes_estimate(spec, larger)


@given(models, any_settings())
def test_flash_attention_never_takes_more_than_the_scores_that_it_saves(
    model: str, base: CacheSettings
) -> None:
    on, off = (replace(base, has_flash_attention=flag) for flag in (True, False))
    spec = real_model(model)

    assert compute_bytes_estimate(spec, on) <= compute_bytes_estimate(spec, off)


@given(any_settings(), st.integers(1, 8))
def test_a_batch_is_whole_for_every_slot_and_no_larger_than_asked_by_a_slot(
    base: CacheSettings, slots: int
) -> None:
    asked = replace(base, slots=slots)

    n_tokens = batch_tokens(asked)

    assert n_tokens % slots == 0
    assert 0 <= n_tokens - min(asked.ubatch_tokens, asked.context_tokens) < slots
    cells = context_cells(asked)
    assert mask_bytes(real_model("mixtral-8x7b"), asked) == n_tokens * cells * (
        2 if asked.has_flash_attention else 4
    )


def test_a_recurrent_state_that_finds_no_gap_comes_on_top() -> None:
    # One block of 64 value heads: its states outgrow the gap in a batch of 512 with 4 slots.
    spec = real_model("qwen3.5-122b-a10b")
    one, four = (
        compute_bytes_estimate(spec, settings(8192 * n, n, ubatch_tokens=512)) for n in (1, 4)
    )
    many = settings(8192 * 4, 4, ubatch_tokens=4096)
    ffn = spec.working.ffn_elements

    assert four - one > 8 * MIB
    assert compute_bytes_estimate(spec, many) == pytest.approx(
        mask_bytes(spec, many) + 4096 * (4 * (5 * spec.n_embd + ffn) + 64)
    )


@given(models, any_settings(), st.integers(0, 2**34))
def test_the_largest_context_fits_and_the_next_one_does_not(
    model: str, base: CacheSettings, budget: int
) -> None:
    spec = real_model(model)

    def needed(n_tokens: int) -> int:
        tried = replace(base, context_tokens=n_tokens)
        return cache_bytes(spec, tried).total + compute_bytes_estimate(spec, tried)

    best = largest_context(spec, base, budget)

    trained = spec.context_tokens * base.n_streams
    assert best % CONTEXT_STEP_TOKENS == 0
    assert best <= trained
    assert best == 0 or needed(best) <= budget
    assert best == trained or needed(best + CONTEXT_STEP_TOKENS) > budget


def test_a_file_without_a_trained_context_limits_nothing_but_the_search() -> None:
    endless = spec_of("llama", small(context_length=None))

    assert largest_context(endless, settings(), 2**60) == 2**24
    full = spec_of("llama", small())
    assert largest_context(full, settings(), 2**60) == 4096


def test_a_dense_block_of_published_dimensions_takes_what_the_engine_reserved() -> None:
    # Reported "compute buffer size" of the CPU backend in MiB at a batch of 512, a block of the
    # dimensions of Llama 3 8B.
    block = (("attn_q", 4096, 4096), ("attn_output", 4096, 4096), ("ffn_gate", 4096, 14336))
    spec = spec_of(
        "llama",
        small(embedding_length=4096, attention__head_count=32, attention__head_count_kv=8),
        [
            tensor("token_embd.weight", 4096, 128256),
            *(tensor(f"blk.0.{name}.weight", *dims) for name, *dims in block),
            tensor("blk.0.ffn_up.weight", 4096, 14336),
            tensor("blk.0.ffn_down.weight", 14336, 4096),
        ],
    )

    for n_tokens, has_flash, reported_mib in (
        (4096, True, 128.0),
        (40960, True, 164.0),
        (8192, False, 580.0),
    ):
        asked = settings(n_tokens, has_flash_attention=has_flash)
        assert 0 <= compute_bytes_estimate(spec, asked) / MIB - reported_mib <= 9
