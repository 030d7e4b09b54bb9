"""Cache sizes: what must hold between two settings, and figures that an engine reported."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.core.memory import (
    CONTEXT_STEP_TOKENS,
    CacheSettings,
    cache_bytes,
    context_cells,
    window_cells,
)
from hotset.core.modelspec import ModelSpec
from hotset.core.refusals import check_cache_types
from speckit import F16, Q8_0, settings, small, spec_of

SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.group_count": 2}
FULL = spec_of("llama", small())
WINDOW = spec_of("gpt-oss", small(attention__sliding_window=128))
HYBRID = spec_of("qwen35", small() | SSM)
LATENT = spec_of(
    "deepseek2",
    small(attention__head_count_kv=1, attention__key_length=96)
    | {"attention.key_length_mla": 64, "attention.value_length_mla": 64},
)
INDEXED = spec_of("qwen4exp", small(attention__indexer__key_length=32) | SSM)
MODELS = st.sampled_from((FULL, WINDOW, HYBRID, LATENT, INDEXED))


@st.composite
def any_settings(draw: st.DrawFn) -> CacheSettings:
    kind = draw(st.sampled_from((F16, Q8_0)))
    return settings(
        draw(st.integers(1, 300_000)),
        draw(st.integers(1, 16)),
        type_k=kind,
        type_v=kind,
        ubatch_tokens=draw(st.integers(1, 4096)),
        is_unified=draw(st.booleans()),
        has_full_window=draw(st.booleans()),
    )


@given(any_settings())
def test_the_engine_never_holds_less_than_asked_nor_256_tokens_more_per_slot(
    asked: CacheSettings,
) -> None:
    n_held = context_cells(asked) * asked.n_streams

    assert context_cells(asked) % CONTEXT_STEP_TOKENS == 0
    assert asked.context_tokens <= n_held + CONTEXT_STEP_TOKENS * asked.slots
    assert n_held < asked.context_tokens + CONTEXT_STEP_TOKENS * (asked.n_streams + 1)


@given(MODELS, any_settings(), st.integers(1, 100_000))
def test_more_context_never_takes_less(spec: ModelSpec, base: CacheSettings, more: int) -> None:
    larger = replace(base, context_tokens=base.context_tokens + more)

    assert cache_bytes(spec, base).total <= cache_bytes(spec, larger).total


@given(MODELS, any_settings())
def test_one_slot_takes_the_same_from_a_pool_as_from_its_own_part(
    spec: ModelSpec, base: CacheSettings
) -> None:
    apart, pooled = (replace(base, slots=1, is_unified=flag) for flag in (False, True))

    assert cache_bytes(spec, apart) == cache_bytes(spec, pooled)


@given(any_settings())
def test_a_window_never_holds_more_than_the_context_and_all_of_it_on_request(
    base: CacheSettings,
) -> None:
    narrow, full = (replace(base, has_full_window=flag) for flag in (False, True))

    assert window_cells(WINDOW, narrow) <= window_cells(WINDOW, full) == context_cells(base)
    kept = cache_bytes(WINDOW, full)
    assert kept.window == kept.full == cache_bytes(FULL, base).full / 2


@given(any_settings(), st.integers(1, 8))
def test_states_come_once_per_slot_and_once_per_drafted_token(
    base: CacheSettings, n_drafted: int
) -> None:
    one = cache_bytes(HYBRID, replace(base, slots=1)).recurrent

    assert cache_bytes(HYBRID, base).recurrent == one * base.slots
    drafting = replace(base, draft_tokens=n_drafted)
    assert cache_bytes(HYBRID, drafting).recurrent == one * base.slots * (1 + n_drafted)
    cannot = replace(HYBRID, can_roll_back_state=False)
    assert cache_bytes(cannot, drafting).recurrent == one * base.slots


@given(MODELS, any_settings())
def test_an_unknown_family_is_never_counted_below_a_known_one_of_its_size(
    spec: ModelSpec, base: CacheSettings
) -> None:
    keys = small(attention__head_count_kv=2) | SSM
    unknown = spec_of("never-heard-of", keys)

    if spec in (FULL, WINDOW, HYBRID):
        assert cache_bytes(unknown, base).total >= cache_bytes(spec, base).total
    assert not unknown.is_known
    assert any("never-heard-of" in note for note in unknown.notes)


def test_a_window_holds_itself_and_one_batch_for_each_that_shares_it() -> None:
    assert window_cells(WINDOW, settings(4096)) == 768  # 128 + 512, in steps of 256
    assert window_cells(WINDOW, settings(4096, 3)) == 768
    assert window_cells(WINDOW, settings(4096, 3, is_unified=True)) == 1024  # 3 x 128 + 512
    assert window_cells(WINDOW, settings(100)) == 256  # the batch is no larger than the context


def test_sizes_are_those_that_the_engine_reported() -> None:
    # SmolLM2-135M: 30 blocks, 3 KV heads of 64, at 8192 tokens: "size = 180.00 MiB (8192 cells)".
    smol = spec_of(
        "llama",
        small(
            block_count=30,
            embedding_length=576,
            attention__head_count=9,
            attention__head_count_kv=3,
        ),
    )

    assert cache_bytes(smol, settings(8192)).total == 180 * 2**20
    # With 3 slots, 4096 tokens become 3 times 1536.
    assert context_cells(settings(4096, 3)) == 1536
    assert cache_bytes(smol, settings(4096, 3)).total * 4096 == (
        cache_bytes(smol, settings(4096)).total * 3 * 1536
    )


def test_without_flash_attention_every_value_row_is_as_wide_as_the_widest() -> None:
    keys = small(attention__head_count_kv=(4, 1, 4, 1), attention__sliding_window=512)
    keys["attention.sliding_window_pattern"] = (True, False, True, False)
    spec = spec_of("gemma4", keys)
    on, off = (cache_bytes(spec, settings(has_flash_attention=flag)) for flag in (True, False))

    assert on.window == off.window  # these have the widest rows already
    assert off.full / on.full == (1 + 4) / (1 + 1)
    latent_on, latent_off = (
        cache_bytes(LATENT, settings(has_flash_attention=flag)) for flag in (True, False)
    )
    assert latent_on == latent_off  # there are no value rows to widen


def test_kinds_of_cache_are_counted_apart() -> None:
    kept = [cache_bytes(spec, settings()) for spec in (FULL, WINDOW, HYBRID, LATENT, INDEXED)]

    assert [k.full > 0 for k in kept] == [True, True, True, False, True]
    assert [k.window > 0 for k in kept] == [False, True, False, False, False]
    assert [k.latent > 0 for k in kept] == [False, False, False, True, False]
    assert [k.indexer > 0 for k in kept] == [False, False, False, False, True]
    assert [k.recurrent > 0 for k in kept] == [False, False, True, False, True]
    assert all(k.total == k.full + k.window + k.latent + k.indexer + k.recurrent for k in kept)


@pytest.mark.parametrize(
    ("spec", "asked", "words"),
    [
        (LATENT, settings(type_k=Q8_0), ("V cache type F16", "Q8_0")),
        (FULL, settings(type_v=Q8_0, has_flash_attention=False), ("V cache type Q8_0", "flash")),
        (spec_of("llama", small(embedding_length=160)), settings(type_k=Q8_0), ("K cache", "40")),
        (
            spec_of("llama", small(attention__key_length=64, attention__value_length=48)),
            settings(type_v=Q8_0),
            ("V cache type Q8_0", "48"),
        ),
        (
            spec_of("qwen4exp", small(attention__indexer__key_length=40) | SSM),
            settings(type_k=Q8_0),
            ("K cache type Q8_0", "40"),
        ),
    ],
)
def test_cache_types_that_the_engine_refuses_are_refused_with_the_reason(
    spec: ModelSpec, asked: CacheSettings, words: tuple[str, ...]
) -> None:
    with pytest.raises(ConfigProblem) as caught:
        cache_bytes(spec, asked)

    assert all(word in caught.value.message for word in words)
    check_cache_types(spec, settings())  # F16 always fits


def test_heads_that_miss_a_block_do_not_matter_to_k_where_rows_are_stored_whole() -> None:
    spec = spec_of("llama", small(embedding_length=192))  # heads of 48, rows of 96
    with pytest.raises(ConfigProblem):
        check_cache_types(spec, settings(type_k=Q8_0))

    check_cache_types(spec, settings(type_k=Q8_0, has_flash_attention=False))
