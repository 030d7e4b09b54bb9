"""The plan: what fits is taken whole, what is given up is said, what was asked for is law."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.machine import Machine
from hotset.core.memory import CacheSettings, cache_bytes
from hotset.core.modelspec import ModelSpec
from hotset.core.plan import Plan, Wishes, make_plan
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import GIB, MIB
from speckit import small, spec_of, tensor

# 4 blocks, 2 KV heads of 512: 16 KiB of f16 KV per token, 4 GiB for the trained context.
MODEL = spec_of(
    "llama",
    small(
        context_length=262_144,
        embedding_length=2048,
        attention__key_length=512,
        attention__value_length=512,
    ),
    [tensor("blk.0.ffn_up.weight", 1 << 15, 1 << 14)],  # 1 GiB of weights
)
F16_KV_BYTES = 4 * 2 * 2 * 512 * 2 * 262_144


def machine(ram_bytes: int) -> Machine:
    return Machine(
        ram_total_bytes=64 * GIB, ram_available_bytes=ram_bytes, num_cores=6, num_threads=12
    )


def kv_bytes(spec: ModelSpec, plan: Plan) -> int:
    kv_type = tensor_type_named(plan.kv_type)
    settings = CacheSettings(plan.context_tokens * plan.slots, plan.slots, kv_type, kv_type, 512)
    return cache_bytes(spec, settings).total


def test_where_everything_fits_nothing_is_given_up() -> None:
    plan = make_plan(MODEL, machine(16 * GIB), Wishes())
    assert (plan.context_tokens, plan.kv_type) == (262_144, "f16")
    assert plan.footprint.cache_bytes == F16_KV_BYTES
    assert plan.threads == 6
    assert plan.reasons == ()
    assert not plan.is_larger_than_ram
    assert plan.is_repacked


def test_a_context_that_only_fits_at_q8_0_is_kept_whole_at_q8_0() -> None:
    plan = make_plan(MODEL, machine(5 * GIB), Wishes())
    assert (plan.context_tokens, plan.kv_type) == (262_144, "q8_0")
    assert any("q8_0 instead of f16" in reason for reason in plan.reasons)


def test_a_context_that_does_not_fit_at_all_is_shortened_and_said_so() -> None:
    plan = make_plan(MODEL, machine(2 * GIB), Wishes())
    assert plan.kv_type == "q8_0"
    assert 256 <= plan.context_tokens < 262_144
    assert any("262,144" in reason for reason in plan.reasons)


def test_unasked_the_caches_leave_the_weights_their_room() -> None:
    for ram_bytes in range(2 * GIB, 12 * GIB, GIB // 2):
        assert not make_plan(MODEL, machine(ram_bytes), Wishes()).is_larger_than_ram


def test_weights_larger_than_ram_are_planned_with_a_warning() -> None:
    plan = make_plan(MODEL, machine(GIB), Wishes())
    assert plan.is_larger_than_ram
    assert not plan.is_repacked  # a copy that cannot be dropped would end in the OOM killer
    assert any("do not fit" in reason for reason in plan.reasons)


def test_what_was_asked_for_is_law_even_if_the_weights_must_give_way() -> None:
    plan = make_plan(MODEL, machine(5 * GIB), Wishes(context_tokens=262_144, kv_type="f16"))
    assert (plan.context_tokens, plan.kv_type) == (262_144, "f16")
    assert plan.is_larger_than_ram


def test_what_cannot_be_met_is_refused_with_three_ways_out_and_their_numbers() -> None:
    wishes = Wishes(context_tokens=262_144, kv_type="f16", slots=1)
    with pytest.raises(MachineProblem) as caught:
        make_plan(MODEL, machine(3 * GIB), wishes)
    message = caught.value.message
    for part in ("262,144 tokens of f16 KV", "3.0 GiB are available", "--kv q8_0 needs", "--ctx "):
        assert part in message
    advised = int(message.split("--ctx ")[1].split()[0])
    make_plan(MODEL, machine(3 * GIB), replace(wishes, context_tokens=advised))
    with pytest.raises(MachineProblem):
        make_plan(MODEL, machine(3 * GIB), replace(wishes, context_tokens=advised + 256))


def test_who_set_the_limit_is_told_to_raise_it_and_others_to_close_programs() -> None:
    wishes = Wishes(context_tokens=262_144, kv_type="f16")
    for of_machine_gib, of_ram_gib, way, no_way in (
        (60, 3, "a larger --ram", "close programs"),
        (3, 60, "close programs", "--ram"),
        (3, None, "close programs", "--ram"),
    ):
        limit = None if of_ram_gib is None else of_ram_gib * GIB
        with pytest.raises(MachineProblem) as caught:
            make_plan(MODEL, machine(of_machine_gib * GIB), replace(wishes, ram_bytes=limit))
        assert way in caught.value.message
        assert no_way not in caught.value.message


def test_nobody_is_told_to_close_programs_where_the_whole_machine_is_too_small() -> None:
    """And what is said to be needed is what the smallest context needs."""
    needed = []
    for total_mib in (100, 400):
        small = replace(machine(90 * MIB), ram_total_bytes=total_mib * MIB)
        with pytest.raises(MachineProblem) as caught:
            make_plan(MODEL, small, Wishes())
        message = caught.value.message
        assert message.startswith(f"{MODEL.name}: 256 tokens of q8_0 KV")
        needed.append(float(message.split(" need ")[1].split(" MiB")[0]))
        assert ("close programs" in message) == (needed[-1] <= total_mib)
        assert (f"{total_mib}.0 MiB in all: a smaller model" in message) != (
            "close programs" in message
        )
    assert 100 < needed[0] == needed[1] < 400
    make_plan(MODEL, machine(int((needed[0] + 0.1) * MIB)), Wishes())


def test_advice_to_use_fewer_slots_comes_only_with_several() -> None:
    for slots, is_advised in ((1, False), (4, True)):
        with pytest.raises(MachineProblem) as caught:
            make_plan(MODEL, machine(GIB), Wishes(context_tokens=262_144, slots=slots))
        assert ("fewer --slots" in caught.value.message) == is_advised


def test_unasked_a_small_machine_gets_a_short_context_rather_than_a_refusal() -> None:
    """Whatever context a refusal could advise, an unasked plan takes by itself."""
    for ram_mib in range(300, 1400, 97):
        plan = make_plan(MODEL, machine(ram_mib * MIB), Wishes())
        assert plan.context_tokens >= 256
        assert plan.footprint.fixed_bytes <= ram_mib * MIB


def test_a_machine_without_room_for_the_smallest_context_is_refused() -> None:
    with pytest.raises(MachineProblem, match=r"200\.0 MiB are available"):
        make_plan(MODEL, machine(200 * MIB), Wishes())


def test_every_slot_gets_the_whole_context() -> None:
    one, four = (make_plan(MODEL, machine(60 * GIB), Wishes(slots=n)) for n in (1, 4))
    assert one.context_tokens == four.context_tokens
    assert four.footprint.cache_bytes == 4 * one.footprint.cache_bytes


def test_a_context_beyond_the_trained_one_is_given_with_a_warning() -> None:
    plan = make_plan(MODEL, machine(32 * GIB), Wishes(context_tokens=300_000))
    assert plan.context_tokens == 300_032  # the engine works in steps of 256
    assert any("beyond the 262,144" in reason for reason in plan.reasons)


def test_a_kv_type_that_does_not_suit_the_heads_is_refused_asked_and_avoided_unasked() -> None:
    odd = spec_of("llama", small(attention__key_length=20, attention__value_length=20))
    with pytest.raises(ConfigProblem, match="Q8_0"):
        make_plan(odd, machine(8 * GIB), Wishes(kv_type="q8_0"))
    for ram_bytes in (180 * MIB, 8 * GIB):
        assert make_plan(odd, machine(ram_bytes), Wishes()).kv_type == "f16"


def test_a_file_without_a_context_length_gets_a_modest_one() -> None:
    silent = spec_of("llama", small(context_length=None))
    assert make_plan(silent, machine(8 * GIB), Wishes()).context_tokens == 4096


def test_a_prompt_cache_is_only_kept_when_serving_and_only_from_what_is_left() -> None:
    talking = make_plan(MODEL, machine(32 * GIB), Wishes())
    serving = make_plan(MODEL, machine(32 * GIB), Wishes(is_serving=True))
    tight = make_plan(MODEL, machine(GIB), Wishes(is_serving=True))
    assert talking.prompt_cache_mib == tight.prompt_cache_mib == 0
    assert 0 < serving.prompt_cache_mib <= 8192
    assert serving.footprint.total_bytes <= 32 * GIB
    huge = make_plan(MODEL, machine(63 * GIB), Wishes(is_serving=True))
    assert huge.prompt_cache_mib == 8192


def test_checkpoints_are_for_caches_that_cannot_go_back() -> None:
    window = spec_of("gpt-oss", small(attention__sliding_window=128))
    serving = Wishes(is_serving=True)
    assert make_plan(window, machine(32 * GIB), serving).checkpoints > 0
    assert make_plan(window, machine(32 * GIB), Wishes()).checkpoints == 0
    assert make_plan(MODEL, machine(32 * GIB), serving).checkpoints == 0


@given(
    ram_mib=st.integers(64, 64 * 1024),
    context=st.one_of(st.none(), st.integers(1, 400_000)),
    kv_type=st.sampled_from([None, "f16", "q8_0", "q4_0"]),
    slots=st.integers(1, 4),
    is_serving=st.booleans(),
)
def test_a_plan_keeps_its_promises(
    ram_mib: int, context: int | None, kv_type: str | None, slots: int, *, is_serving: bool
) -> None:
    wishes = Wishes(context_tokens=context, kv_type=kv_type, slots=slots, is_serving=is_serving)
    try:
        plan = make_plan(MODEL, machine(ram_mib * MIB), wishes)
    except MachineProblem:
        return
    assert plan.footprint.fixed_bytes <= ram_mib * MIB
    assert plan.footprint.cache_bytes == kv_bytes(MODEL, plan)
    assert plan.context_tokens % 256 == 0
    assert 0 <= plan.context_tokens - (context or plan.context_tokens) < 256
    assert plan.kv_type == (kv_type or plan.kv_type)
    assert plan.kv_type in ("f16", "q8_0") or kv_type
    assert plan.is_larger_than_ram == (plan.footprint.total_bytes > ram_mib * MIB)


# 4 blocks with 32 experts of 32 MiB each, 4 used: 4 GiB of experts, and little else.
MOE = spec_of(
    "qwen3moe",
    small(
        context_length=8192,
        embedding_length=2048,
        expert_count=32,
        expert_used_count=4,
        expert_feed_forward_length=4096,
    ),
    [
        tensor(f"blk.{block}.ffn_{part}_exps.weight", 2048, 4096, 64)
        for block in range(4)
        for part in ("gate", "up")
    ],
)
STORED = Wishes(can_store=True)


def test_experts_that_do_not_fit_stay_on_the_disk_with_all_that_is_left_as_their_cache() -> None:
    assert MOE.experts
    plan = make_plan(MOE, machine(3 * GIB), STORED)
    assert plan.footprint.weights_bytes == MOE.trunk_bytes - MOE.experts.n_bytes
    assert 0 < plan.footprint.expert_cache_bytes < MOE.experts.n_bytes
    assert plan.footprint.total_bytes <= 3 * GIB
    assert plan.footprint.total_bytes > 2.9 * GIB
    assert any("experts stay on the disk" in reason for reason in plan.reasons)
    assert not any("which is slow" in reason for reason in plan.reasons)


def test_the_store_is_left_out_where_everything_fits_or_there_are_no_experts() -> None:
    for spec, ram_bytes in ((MOE, 16 * GIB), (MODEL, GIB)):
        assert make_plan(spec, machine(ram_bytes), STORED).footprint.expert_cache_bytes == 0


def test_without_the_store_the_page_cache_has_to_do_and_the_plan_says_so() -> None:
    plan = make_plan(MOE, machine(3 * GIB), Wishes())
    assert plan.footprint.expert_cache_bytes == 0
    assert any("which is slow" in reason for reason in plan.reasons)


def test_a_ram_limit_is_kept_however_much_there_is() -> None:
    plan = make_plan(MOE, machine(32 * GIB), replace(STORED, ram_bytes=2 * GIB))
    assert plan == make_plan(MOE, machine(2 * GIB), STORED)
    more_than_there_is = replace(STORED, ram_bytes=64 * GIB)
    assert make_plan(MOE, machine(2 * GIB), more_than_there_is) == plan


def test_a_budget_below_one_layers_working_set_is_refused_with_the_least_that_works() -> None:
    tight = replace(STORED, context_tokens=512)
    with pytest.raises(MachineProblem, match=r"the least is ([\d.]+) MiB") as caught:
        make_plan(MOE, machine(350 * MIB), tight)
    least_mib = float(caught.value.message.split("the least is ")[1].split()[0])
    assert make_plan(MOE, machine(int(least_mib * MIB)), tight).footprint.total_bytes
    with pytest.raises(MachineProblem):
        make_plan(MOE, machine(round((least_mib - 1) * MIB)), tight)
