"""What a plan offers instead: ways out that work, other choices that are what they say."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest

from hotset.core.errors import MachineProblem
from hotset.core.experience import Experience, Pace, Paces
from hotset.core.machine import Machine
from hotset.core.memory import cache_bytes
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import Projector
from hotset.core.plan import Wishes, make_plan
from hotset.core.plan.alternatives import alternatives
from hotset.core.plan.common import cache_settings
from hotset.core.plan.explain import explain
from hotset.core.plan.pace import setup_of
from hotset.core.units import GIB, MIB
from plankit import PROJECTOR, card, computer, integrated, real_model
from speckit import small, spec_of, tensor

QWEN = real_model("qwen3.6-35b-a3b", "IQ4_XS")
GLM = real_model("glm-4.5-air", "IQ4_XS")


def refusal(spec: ModelSpec, machine: Machine, wishes: Wishes) -> str:
    with pytest.raises(MachineProblem) as caught:
        make_plan(spec, machine, wishes)
    return caught.value.message


def test_a_refused_kv_type_names_one_that_fits_and_a_context_that_fits() -> None:
    machine = computer(card(4, used_gib=0), ram_gib=13, used_gib=0)
    wishes = Wishes(context_tokens=131_072, kv_type="f16", slots=1)
    message = refusal(GLM, machine, wishes)
    assert "131,072 tokens of f16 KV" in message
    assert "4.0 GiB of 4 GiB card and 13.0 GiB of RAM" in message
    assert len(message.split(";")) == 4  # what does not fit, and three ways out
    assert "--kv q8_0 fits" in message
    make_plan(GLM, machine, replace(wishes, kv_type="q8_0"))
    advised = int(message.split("--ctx ")[1].split()[0])
    make_plan(GLM, machine, replace(wishes, context_tokens=advised))
    with pytest.raises(MachineProblem):
        make_plan(GLM, machine, replace(wishes, context_tokens=advised + 256))


def more_ram(machine: Machine, n_bytes: float) -> Machine:
    return replace(
        machine,
        ram_available_bytes=machine.ram_available_bytes + int(n_bytes),
        ram_total_bytes=machine.ram_total_bytes + int(n_bytes),
    )


def test_the_missing_memory_is_what_is_missing() -> None:
    machine = computer(card(4, used_gib=0), ram_gib=13, used_gib=0)
    wishes = Wishes(context_tokens=131_072, kv_type="f16", slots=2)
    message = refusal(GLM, machine, wishes)
    assert "fewer than 2 --slots" in message
    match = re.search(r"([\d.]+) GiB more of free RAM", message)
    assert match
    missing = float(match[1])
    make_plan(GLM, more_ram(machine, (missing + 0.06) * GIB), wishes)
    with pytest.raises(MachineProblem):
        make_plan(GLM, more_ram(machine, (missing - 0.1) * GIB), wishes)


def test_experts_that_do_not_fit_on_the_card_name_how_many_must_leave_it() -> None:
    machine = computer(card(8), ram_gib=32)
    wishes = Wishes(cpu_moe_layers=5, context_tokens=131_072)
    message = refusal(QWEN, machine, wishes)
    least = int(message.split("--cpu-moe ")[1].split()[0])
    assert make_plan(QWEN, machine, replace(wishes, cpu_moe_layers=least)).has_devices
    with pytest.raises(MachineProblem):
        make_plan(QWEN, machine, replace(wishes, cpu_moe_layers=least - 1))
    assert "without --cpu-moe the experts of" in message
    assert "GiB more of free memory on 8 GiB card" in message


def test_where_nothing_would_do_the_message_says_that_too() -> None:
    """A block with all of its experts cannot be cut, and this card has no room for its buffers."""
    nothing = computer(card(1, used_gib=0.9), ram_gib=0.1, used_gib=0)
    message = refusal(QWEN, nothing, Wishes(cpu_moe_layers=100))
    assert "--ctx" not in message
    assert "without --cpu-moe" not in message
    assert message.endswith("another machine: no amount of memory alone would do")


def test_heads_that_take_no_q8_0_get_no_advice_to_use_it() -> None:
    odd = spec_of(
        "llama",
        small(attention__key_length=20, attention__value_length=20, context_length=1 << 20),
        [tensor("blk.0.ffn_up.weight", 64, 64)],
    )
    machine = computer(integrated(0.3), ram_gib=0.4, used_gib=0)
    message = refusal(odd, machine, Wishes(context_tokens=1 << 20, kv_type="f16"))
    assert "--kv" not in message
    also_too_large = refusal(GLM, machine, Wishes(context_tokens=131_072, kv_type="f16"))
    assert "--kv" not in also_too_large


@pytest.mark.parametrize(
    ("machine", "projector"),
    [
        (computer(card(16)), PROJECTOR),
        (computer(card(8)), None),
        (computer(ram_gib=64), PROJECTOR),
        (computer(card(80)), None),
    ],
)
def test_other_choices_are_two_or_three_that_do_what_they_say(
    machine: Machine, projector: Projector | None
) -> None:
    wishes = Wishes()
    plan = make_plan(QWEN, machine, wishes, projector)
    found = alternatives(QWEN, machine, wishes, projector, plan)
    assert 1 <= len(found) <= 3
    assert len({other.option for other in found}) == len(found)
    for other in found:
        if other.option.startswith("--ctx"):
            assert other.plan.context_tokens == plan.context_tokens // 2
        if match := re.search(r"decode ([+-]\d+)%", other.effect):
            change = other.plan.speed.decode.likely / plan.speed.decode.likely - 1
            assert round(change * 100) == int(match[1])
        if other.plan.kv_type == "q4_0":
            assert "lose precision" in other.effect or "gain nothing" in other.effect


def test_nothing_is_offered_in_place_of_what_was_asked_for() -> None:
    machine = computer(card(16))
    wishes = Wishes(context_tokens=65_536, kv_type="f16", ubatch_tokens=512, has_vision=False)
    plan = make_plan(QWEN, machine, wishes, PROJECTOR)
    assert alternatives(QWEN, machine, wishes, PROJECTOR, plan) == []


def test_a_choice_that_does_not_fit_is_not_offered() -> None:
    machine = computer(card(4, used_gib=0), ram_gib=13, used_gib=0)
    wishes = Wishes(context_tokens=131_072)
    plan = make_plan(GLM, machine, wishes)
    assert plan.kv_type == "q8_0"
    options = [other.option for other in alternatives(GLM, machine, wishes, None, plan)]
    assert "--kv f16" not in options


def test_a_choice_that_pushes_weights_out_of_ram_says_so() -> None:
    machine = computer(ram_gib=24, used_gib=2.5)
    plan = make_plan(QWEN, machine, Wishes())
    assert (plan.kv_type, plan.is_larger_than_ram) == ("q8_0", False)
    found = {a.option: a.effect for a in alternatives(QWEN, machine, Wishes(), None, plan)}
    assert "no longer fit into RAM" in found["--kv f16"]


def mib_of(lines: list[str], name: str) -> float:
    """The figure of the first line that begins with `name`."""
    line = next(line for line in lines if line.strip().startswith(name))
    match = re.search(r"([\d,.]+) MiB", line)
    assert match
    return float(match[1].replace(",", ""))


def test_the_sums_that_are_explained_are_those_of_the_plan() -> None:
    dense = spec_of("llama", small(), [tensor("blk.0.ffn_up.weight", 64, 64)])
    for spec, machine in (
        (dense, computer(ram_gib=12)),
        (QWEN, computer(card(16))),
        (real_model("gpt-oss-20b"), computer(card(8), card(8, name="CUDA1"))),
        (real_model("glm-4.7-flash"), computer(integrated(16))),
        (QWEN, computer(ram_gib=12)),
    ):
        wishes = Wishes(can_store=True)
        plan = make_plan(spec, machine, wishes, PROJECTOR)
        lines = list(explain(spec, plan))
        settings = cache_settings(wishes, plan.kv_type, plan.context_tokens, plan.ubatch_tokens)
        shown = 0.0
        for line in lines[1 : lines.index(next(x for x in lines if x.startswith("compute")))]:
            shown += mib_of([line], line.strip()[:4])
        assert shown == pytest.approx(cache_bytes(spec, settings).total / MIB, abs=0.05)
        together = [float(re.findall(r"([\d.]+) ms", x)[0]) for x in lines if "together" in x]
        assert together[0] == pytest.approx(1000 / plan.speed.decode.likely, abs=0.01)
        assert together[1] == pytest.approx(
            1000 * plan.ubatch_tokens / plan.speed.prefill.likely, abs=0.01
        )
        named = [line.partition(": ")[2] for line in lines if line.startswith("hit rates of")]
        assert named == ([spec.hits.source] if spec.experts else [])
        for taken in plan.footprint.devices:
            assert any(line.startswith(taken.device) for line in lines)


@pytest.mark.parametrize("ram_gib", [12, 20, 48])
def test_what_a_choice_gains_does_not_depend_on_answers_that_one_of_the_setups_has_given(
    ram_gib: int,
) -> None:
    machine, wishes = computer(ram_gib=ram_gib), Wishes(can_store=True)
    plan = make_plan(QWEN, machine, wishes)
    found = alternatives(QWEN, machine, wishes, None, plan)
    assert found
    for setup in {setup_of(QWEN, each) for each in (plan, *(other.plan for other in found))}:
        paces = {setup: Paces(Pace(0.4, 1.1, 4), Pace(0.5, 1.1, 4))}
        for experience in (Experience(own=paces), Experience(others=paces)):
            seen = replace(machine, experience=experience)
            told = alternatives(QWEN, seen, wishes, None, make_plan(QWEN, seen, wishes))
            assert [(a.option, a.effect) for a in told] == [(a.option, a.effect) for a in found]
