"""What the engine refuses, as it did in dry starts."""

from __future__ import annotations

import pytest

from hotset.core.errors import ConfigProblem
from hotset.core.machine import Machine
from hotset.core.plan import Wishes, make_plan
from hotset.core.refusals import check_cache_types, refusal
from hotset.core.tensortypes import tensor_type_named
from plankit import card, computer, real_model
from speckit import Q8_0, settings, small, spec_of, tensor

QUANTIZED = settings(type_k=Q8_0, type_v=Q8_0)


# Dry starts of xllamacpp 2026.10.11549: model, mix, whether it took a quantized cache.
@pytest.mark.parametrize(
    ("name", "mix", "is_taken"),
    [
        ("granite-3.1-1b-a400m", "Q8_0", False),
        ("granite-3.1-3b-a800m", "Q4_K_M", True),
        ("olmoe-1b-7b", "Q8_0", True),
        ("qwen3-30b-a3b", "Q4_K_M", True),
        ("mixtral-8x7b", "Q4_0", True),
        ("gpt-oss-20b", "MXFP4", True),
        ("glm-4.7-flash", "Q4_0", True),
    ],
)
def test_a_graph_that_outgrows_its_table_is_refused(name: str, mix: str, is_taken: bool) -> None:
    spec = real_model(name, mix)
    assert (refusal(spec, QUANTIZED) is None) == is_taken
    assert refusal(spec, settings()) is None  # F16 adds no nodes


# The same with small models of 10 tensors in a block and 8 experts in use, block by block.
@pytest.mark.parametrize(
    ("n_blocks", "is_taken"), [(11, True), (12, True), (13, True), (24, True), (25, False)]
)
def test_more_blocks_fill_a_table_that_grows_in_steps(n_blocks: int, is_taken: bool) -> None:
    outside = [tensor("token_embd.weight", 128, 64), tensor("output_norm.weight", 128)]
    outside.append(tensor("output.weight", 128, 64))
    blocks = [
        tensor(f"blk.{block}.{name}.weight", 128, 128)
        for block in range(n_blocks)
        for name in (
            "attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate_inp",
            "ffn_gate_exps", "ffn_up_exps", "ffn_down_exps",
        )
    ]  # fmt: skip
    keys = small(
        block_count=n_blocks, expert_count=64, expert_used_count=8, attention__key_length=64,
        attention__value_length=64,
    )  # fmt: skip
    spec = spec_of("llama", keys, [*outside, *blocks])
    assert (refusal(spec, QUANTIZED) is None) == is_taken
    assert refusal(spec, settings(type_v=Q8_0)) is None  # half of the turning fits


def test_a_family_without_flash_attention_keeps_v_as_it_is() -> None:
    grok, llama = (spec_of(name, small()) for name in ("grok", "llama"))
    assert refusal(llama, QUANTIZED) is None
    assert refusal(grok, settings(type_k=Q8_0)) is None
    with pytest.raises(ConfigProblem, match="needs flash attention, which the engine has not"):
        check_cache_types(grok, QUANTIZED)


@pytest.mark.parametrize("machine", [computer(), computer(card(16))])
def test_a_plan_leaves_out_what_the_engine_refuses_and_an_own_wish_is_refused(
    machine: Machine,
) -> None:
    spec = real_model("granite-3.1-1b-a400m", "Q8_0")
    assert make_plan(spec, machine, Wishes()).kv_type == "f16"
    for kv_type in ("q8_0", "q4_0"):
        with pytest.raises(ConfigProblem, match="use F16"):
            make_plan(spec, machine, Wishes(kv_type=kv_type))


@pytest.mark.parametrize("machine", [computer(ram_gib=6), computer(card(4), ram_gib=4.5)])
def test_a_context_that_only_the_refused_type_would_hold_is_shorter_with_the_reason(
    machine: Machine,
) -> None:
    spec = real_model("granite-3.1-1b-a400m", "Q8_0")
    plan = make_plan(spec, machine, Wishes())
    assert plan.context_tokens < spec.context_tokens
    assert plan.kv_type == "f16"
    assert sum("larger than the engine's table" in reason for reason in plan.reasons) == 1
    asked = make_plan(spec, machine, Wishes(kv_type="f16"))
    assert not any("table" in reason for reason in asked.reasons)


def test_a_context_beyond_the_trained_one_is_room_that_no_request_gets() -> None:
    spec = real_model("qwen3-30b-a3b")
    machine = computer(ram_gib=64)
    for context, is_beyond in ((40960, False), (65536, True)):
        plan = make_plan(spec, machine, Wishes(context_tokens=context))
        assert any("--ctx 40960 gives as much" in r for r in plan.reasons) == is_beyond


def test_types_are_named_once_where_both_are_alike() -> None:
    spec = real_model("granite-3.1-1b-a400m", "Q8_0")
    q4_0 = tensor_type_named("Q4_0")
    both = refusal(spec, settings(type_k=Q8_0, type_v=q4_0))
    one = refusal(spec, QUANTIZED)
    assert both
    assert "Q8_0 and Q4_0" in both
    assert one
    assert one.startswith("KV cache type Q8_0: ")
