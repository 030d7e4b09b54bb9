"""Drafting with an MTP head: the engine's own figures, and what must hold between two settings."""

from __future__ import annotations

from dataclasses import replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.compute import compute_bytes_estimate
from hotset.core.drafting import DRAFT_TOKENS, Drafting, drafting, head_spec, second_settings
from hotset.core.memory import CacheSettings, cache_bytes, context_cells
from hotset.core.modelspec import ModelSpec
from hotset.core.plan import Wishes, make_plan
from hotset.core.plan.explain import explain
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_tiny
from plankit import computer, real_model
from speckit import F16, Q8_0, Tensor, settings, small, spec_of, tensor

QWEN, GLM = ("qwen3.6-35b-a3b-mtp", "Q4_K_XL"), ("glm-4.5-air-mtp", "Q2_K")

# The engine's two accounts of a dry start that drafts (xllamacpp 2026.10.11549 on a CPU), whole MiB
# rounded down: model, context, slots, batch, KV type; then weights; KV and state, and compute, of
# the main context and of the one that drafts.
REPORTED = (
    (QWEN, 4096, 1, 512, "f16", 21248, (331, 80), (8, 65)),
    (QWEN, 8192, 1, 512, "f16", 21248, (411, 84), (16, 68)),
    (QWEN, 8192, 1, 2048, "q8_0", 21248, (336, 336), (16, 272)),
    (QWEN, 32768, 1, 512, "q8_0", 21248, (591, 108), (64, 76)),
    (QWEN, 131072, 1, 2048, "q8_0", 21248, (1611, 816), (256, 672)),
    (QWEN, 262144, 1, 512, "f16", 21248, (5371, 332), (512, 296)),
    (QWEN, 4096, 4, 512, "f16", 21248, (1325, 112), (32, 65)),
    (QWEN, 8192, 4, 2048, "f16", 21248, (1645, 336), (64, 272)),
    (GLM, 4096, 1, 512, "f16", 42218, (736, 174), (16, 150)),
    (GLM, 8192, 1, 2048, "q8_0", 42218, (782, 712), (32, 587)),
    (GLM, 32768, 1, 512, "f16", 42218, (5888, 202), (128, 148)),
    (GLM, 131072, 1, 2048, "f16", 42218, (23552, 1192), (512, 800)),
    (GLM, 262144, 1, 512, "q8_0", 42218, (25024, 426), (1024, 320)),
    (GLM, 8192, 4, 2048, "f16", 42218, (5888, 712), (128, 587)),
)


@pytest.mark.parametrize("row", REPORTED, ids=lambda row: f"{row[0][0]}, {row[1]}, {row[3]}")
def test_both_contexts_take_what_the_engine_reported_and_never_less(
    row: tuple[tuple[str, str], int, int, int, str, int, tuple[int, int], tuple[int, int]],
) -> None:
    model, context, slots, ubatch, kv, weights, main, second = row
    kind = tensor_type_named(kv)
    spec = real_model(*model)
    asked = settings(context * slots, slots, type_k=kind, type_v=kind, ubatch_tokens=ubatch)

    added = counted(spec, asked)

    assert (spec.unmapped_bytes + sum(added.weights_bytes)) // MIB == weights
    caches = cache_bytes(spec, asked).total + added.state_bytes
    assert (caches // MIB, sum(added.cache_bytes) // MIB) == (main[0], second[0])
    buffers = compute_bytes_estimate(spec, asked) + added.main_compute_bytes
    for estimate, reported in ((buffers, main[1]), (added.compute_bytes, second[1])):
        assert reported <= estimate / MIB <= reported + 1 + min(64, 0.1 * reported)


def counted(spec: ModelSpec, asked: CacheSettings, *, draft_tokens: int = DRAFT_TOKENS) -> Drafting:
    added = drafting(spec, asked, draft_tokens=draft_tokens)
    assert added is not None
    return added


def block(index: int, *, n_ff: int = 256) -> list[Tensor]:
    """A dense block of a model of `small()`."""
    return [
        tensor(f"blk.{index}.{name}.weight", *dims)
        for name, dims in {
            "attn_norm": (128,),
            "attn_q": (128, 128),
            "attn_k": (128, 64),
            "attn_v": (128, 64),
            "attn_output": (128, 128),
            "ffn_gate": (128, n_ff),
            "ffn_up": (128, n_ff),
            "ffn_down": (n_ff, 128),
        }.items()
    ]


@cache
def headed(
    n_heads: int, *, architecture: str = "glm4moe", n_ff: int = 256, **keys: object
) -> ModelSpec:
    """Four blocks and a head of so many."""
    tensors = [t for i in range(4) for t in block(i)]
    tensors += [t for i in range(4, 4 + n_heads) for t in block(i, n_ff=n_ff)]
    keys = {"block_count": 4 + n_heads, "nextn_predict_layers": n_heads} | keys
    return spec_of(architecture, small(**keys), tensors)


WINDOWED = {"attention__sliding_window": 512}
LATENT = {
    "attention__head_count_kv": 1,
    "attention__key_length": 96,
    "attention__key_length_mla": 64,
    "attention__value_length_mla": 64,
}


@st.composite
def any_settings(draw: st.DrawFn) -> CacheSettings:
    kind = draw(st.sampled_from((F16, Q8_0)))
    return settings(
        draw(st.integers(1, 300_000)),
        draw(st.integers(1, 16)),
        type_k=kind,
        type_v=kind,
        ubatch_tokens=draw(st.integers(1, 4096)),
    )


MODELS = st.sampled_from(
    [real_model(*QWEN), real_model(*GLM), headed(2), headed(1, architecture="mimo2", **WINDOWED,
     attention__sliding_window_pattern=(True, False, True, True, True))]
)  # fmt: skip


@given(MODELS, any_settings(), st.integers(1, 8))
def test_a_start_that_drafts_never_takes_less_of_anything(
    spec: ModelSpec, asked: CacheSettings, n_drafted: int
) -> None:
    added = counted(spec, asked, draft_tokens=n_drafted)

    assert min(added.weights_bytes) > 0
    assert min(added.cache_bytes) > 0
    assert added.compute_bytes > 0
    assert min(added.state_bytes, added.main_compute_bytes) >= 0
    if added.unknown_head_cache_bytes:
        assert added.unknown_head_cache_bytes > sum(added.cache_bytes)
    more = counted(spec, asked, draft_tokens=n_drafted + 1)
    assert more.state_bytes >= added.state_bytes
    assert more.main_compute_bytes >= added.main_compute_bytes
    assert replace(
        more, state_bytes=added.state_bytes, main_compute_bytes=added.main_compute_bytes
    ) == added  # fmt: skip


@given(any_settings())
def test_two_equal_blocks_take_twice_the_weights_and_caches_but_are_computed_one_by_one(
    asked: CacheSettings,
) -> None:
    one, two = (counted(headed(n), asked) for n in (1, 2))

    assert two.weights_bytes == 2 * one.weights_bytes
    assert two.cache_bytes == 2 * one.cache_bytes
    assert two.compute_bytes == one.compute_bytes
    assert one.total_bytes < two.total_bytes < 2 * one.total_bytes
    assert one.state_bytes == two.state_bytes == 0


@given(any_settings())
def test_the_context_that_drafts_keeps_what_a_model_of_its_blocks_would_in_f16(
    asked: CacheSettings,
) -> None:
    alone = spec_of("llama", small(block_count=2))
    in_f16 = replace(asked, type_k=F16, type_v=F16)

    assert sum(counted(headed(2), asked).cache_bytes) == cache_bytes(alone, in_f16).total
    chosen = drafting(headed(2), asked, cache_type=Q8_0)
    assert chosen is not None
    in_q8 = replace(asked, type_k=Q8_0, type_v=Q8_0)
    assert sum(chosen.cache_bytes) == cache_bytes(alone, in_q8).total


@given(any_settings(), st.integers(0, 7), st.integers(0, 7))
def test_every_block_of_the_head_is_on_one_side_of_any_cut(
    asked: CacheSettings, cut: int, other: int
) -> None:
    added = counted(headed(2), asked)
    low, high = sorted((cut, other))
    shares = [added.share(units) for units in (range(low), range(low, high), range(high, 7))]

    assert sum(weights for weights, _ in shares) == sum(added.weights_bytes)
    assert sum(caches for _, caches in shares) == sum(added.cache_bytes)
    assert added.share(range(4)) == (0, 0)  # the blocks that run for every token
    assert added.share(range(5, 6)) == (added.weights_bytes[1], added.cache_bytes[1])


def test_a_larger_block_of_the_head_decides_over_its_buffers() -> None:
    small_one, large = (counted(headed(1, n_ff=n), settings()) for n in (256, 4096))

    assert large.compute_bytes > small_one.compute_bytes
    assert large.cache_bytes == small_one.cache_bytes


def test_a_model_without_a_head_or_whose_head_no_engine_computes_adds_nothing() -> None:
    idle = headed(1, architecture="exaone-moe", **WINDOWED)

    assert idle.mtp_bytes > 0
    for spec in (real_model("qwen3.6-35b-a3b"), idle, spec_of("llama", small())):
        assert head_spec(spec) is None
        assert drafting(spec, settings()) is None
    # The keys of a head, and no block of it: a file that was cut down.
    cut = spec_of("glm4moe", small(block_count=5, nextn_predict_layers=1), block(0))
    assert (cut.mtp_bytes, cut.head) == (0, None)


def test_the_head_keeps_a_window_or_a_latent_row_as_its_blocks_do() -> None:
    pattern = (True, False, True, False, True)
    windowed = headed(1, architecture="mimo2", attention__sliding_window_pattern=pattern,
                      **WINDOWED)  # fmt: skip
    latent = headed(1, architecture="deepseek2", **LATENT)
    asked = settings(32768)

    (in_window,), (in_full,) = (counted(s, asked).cache_bytes for s in (windowed, headed(1)))
    assert in_window / in_full == (512 + 512) / 32768  # the window and a batch
    assert sum(counted(latent, asked).cache_bytes) == context_cells(asked) * 96 * 2
    assert counted(windowed, asked).compute_bytes < counted(headed(1), asked).compute_bytes


def test_without_flash_attention_the_head_holds_the_scores_of_all_cells() -> None:
    for spec in (headed(1), real_model(*GLM)):
        on, off = (
            counted(spec, settings(8192, has_flash_attention=flag)) for flag in (True, False)
        )
        scores = 512 * 8192 * spec.n_heads * 4
        assert off.compute_bytes >= scores > on.compute_bytes
        assert off.cache_bytes == on.cache_bytes


def test_a_head_of_which_the_order_is_not_known_is_counted_like_a_model(tmp_path: Path) -> None:
    spec = model_spec(open_model(write_tiny("qwen4exp-mtp", tmp_path / "tiny.gguf")[0]))
    head = head_spec(spec)
    assert head is not None

    assert counted(spec, settings()).compute_bytes == compute_bytes_estimate(
        head, second_settings(settings())
    )
    odd = spec_of(
        "glm4moe",
        small(block_count=5, nextn_predict_layers=1),
        [*block(0), tensor("blk.4.nextn.eh_proj.weight", 256, 128)],
    )
    assert counted(odd, settings()).compute_bytes > 0


def test_an_engine_that_does_not_know_the_head_keeps_kv_for_every_block_twice(
    tmp_path: Path,
) -> None:
    """llama-server b10434, 8,192 tokens: 20 MiB of f16 KV in each context of this model of four
    blocks and a head; none of the head's weights."""
    spec = model_spec(open_model(write_tiny("glm4moe-mtp", tmp_path / "tiny.gguf")[0]))
    asked = settings(8192)

    added = counted(spec, asked)

    assert cache_bytes(spec, asked).total == 16 * MIB
    assert cache_bytes(spec, asked).total + added.unknown_head_cache_bytes == 40 * MIB
    assert sum(added.cache_bytes) == 4 * MIB
    assert counted(real_model(*QWEN), asked).unknown_head_cache_bytes == 0


def told_of_a_head(spec: ModelSpec) -> str:
    """The part of a plan's sums that is about the head; empty if there is none."""
    plan = make_plan(spec, computer(ram_gib=64), Wishes(context_tokens=8192, kv_type="f16"))
    lines = "\n".join(explain(spec, plan)).partition("\nthe file\n")[2]
    return lines.partition("\ntime of one token")[0]


def test_the_sums_of_a_plan_end_with_what_drafting_would_add() -> None:
    qwen, glm = told_of_a_head(real_model(*QWEN)), told_of_a_head(real_model(*GLM))

    added = counted(real_model(*QWEN), settings(8192))
    for n_bytes in (sum(added.weights_bytes), sum(added.cache_bytes), added.state_bytes,
                    added.main_compute_bytes, added.compute_bytes):  # fmt: skip
        assert f"{n_bytes / MIB:,.2f} MiB" in qwen
    assert "recurrent state" not in glm
    unknown = counted(real_model(*GLM), settings(8192)).unknown_head_cache_bytes
    assert f"{unknown / MIB:,.2f} MiB  at most" in glm
    assert "at most" not in qwen


def test_the_sums_of_a_plan_say_no_more_of_a_head_than_there_is_to_say() -> None:
    idle = headed(1, architecture="exaone-moe", **WINDOWED)

    assert told_of_a_head(real_model("qwen3.6-35b-a3b")) == ""
    (only,) = told_of_a_head(idle).splitlines()
    assert only.split() == ["MTP", "layers", f"{idle.mtp_bytes / MIB:,.2f}", "MiB", "in", "it,",
                            "not", "used"]  # fmt: skip
