"""What a machine has shown of a model: robust numbers, and how plans use them."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.core.errors import MachineProblem
from hotset.core.experience import RAM, Experience, Pace, Paces, pace_of
from hotset.core.machine import Gpu, Machine
from hotset.core.machine_text import MachineWords, described_machine
from hotset.core.placement import Placement
from hotset.core.plan import Plan, Wishes, make_plan
from hotset.core.plan.common import cache_settings
from hotset.core.plan.explain import explain
from hotset.core.plan.pace import (
    expected_decode,
    expected_prefill,
    machine_key,
    model_key,
    setup_of,
)
from hotset.core.plan.shape import ram_shape
from hotset.core.speed import NOMINAL_DEPTH_TOKENS
from hotset.core.units import GIB, MIB
from plankit import card, computer, real_model

RATIOS = st.lists(st.floats(0.1, 10), min_size=1, max_size=15)
MODEL = "qwen3-30b-a3b"


def seen(machine: Machine, experience: Experience) -> Machine:
    return replace(machine, experience=experience)


def planned(machine: Machine, wishes: Wishes | None = None) -> Plan:
    return make_plan(real_model(MODEL), machine, wishes or Wishes())


@given(RATIOS, st.floats(0.5, 2))
def test_a_pace_is_the_middle_and_scales_with_the_machine(
    ratios: list[float], factor: float
) -> None:
    pace, scaled = pace_of(ratios), pace_of([ratio * factor for ratio in ratios])
    assert pace is not None
    assert scaled is not None
    assert sum(ratio <= pace.ratio * 1.0001 for ratio in ratios) * 2 >= len(ratios)
    assert sum(ratio >= pace.ratio * 0.9999 for ratio in ratios) * 2 >= len(ratios)
    assert scaled.ratio == pytest.approx(pace.ratio * factor)
    assert scaled.spread == pytest.approx(pace.spread)
    assert scaled.num_samples == len(ratios)


def test_a_single_odd_answer_moves_neither_the_middle_nor_the_spread_of_many() -> None:
    steady = pace_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 1.0])
    disturbed = pace_of([1.0, 1.01, 0.99, 1.0, 1.02, 0.98, 0.1])
    assert steady is not None
    assert disturbed is not None
    assert disturbed.ratio == pytest.approx(steady.ratio, rel=0.02)
    assert disturbed.spread < 1.05
    assert pace_of([]) is None


def test_an_empty_experience_changes_nothing_and_a_start_replaces_its_estimate() -> None:
    nothing = Experience()
    assert nothing.compute("CUDA0", "any", 700) == 700
    assert nothing.overhead("CUDA0", 500) == 500
    known = Experience({("CUDA0", "seen"): 300}, {"CUDA0": 1.5}, {"CUDA0": 80})
    assert known.compute("CUDA0", "seen", 700) == 300
    assert known.compute("CUDA0", "other", 700) == 1050
    assert known.compute("CUDA1", "seen", 700) == 700
    assert (known.overhead("CUDA0", 500), known.overhead("CUDA1", 500)) == (80, 500)


@settings(max_examples=40)
@given(
    ram_gib=st.floats(1, 40),
    slots=st.integers(1, 5),
    factors=st.tuples(st.floats(1, 20), st.floats(1, 3)),
)
def test_a_context_fits_with_what_starts_have_shown_and_more_of_it_makes_no_longer_one(
    ram_gib: float, slots: int, factors: tuple[float, float]
) -> None:
    wishes, machine = Wishes(slots=slots), computer(ram_gib=ram_gib, used_gib=0)
    first, more = factors
    plans = []
    for factor in (1.0, first, first * more):
        known = seen(machine, Experience(compute_factors={RAM: factor}))
        try:
            plans.append(planned(known, wishes))
        except MachineProblem:
            break  # and with more still less fits
        assert plans[-1].footprint.fixed_bytes <= known.ram_available_bytes
    for less, greater in pairwise(plans):
        if less.is_larger_than_ram == greater.is_larger_than_ram:  # else weights have made room
            assert less.context_tokens >= greater.context_tokens


@given(
    ram_gib=st.floats(18, 21),
    slots=st.integers(1, 3),
    shown=st.lists(st.integers(0, 4 * GIB), min_size=1, max_size=4),
)
@example(ram_gib=19.42, slots=3, shown=[GIB, 2 * GIB, 0])  # more shown for fewer tokens
def test_a_context_that_starts_have_shown_to_be_too_large_is_not_planned_again(
    ram_gib: float, slots: int, shown: list[int]
) -> None:
    """What each start took for buffers is kept, however odd it is, and the next plan heeds it."""
    wishes = Wishes(slots=slots)
    machine, kept = computer(ram_gib=ram_gib, used_gib=0), dict[tuple[str, str], int]()
    for n_bytes in shown:
        known = seen(machine, Experience(compute_bytes=dict(kept)))
        try:
            plan = planned(known, wishes)
        except MachineProblem:
            return
        assert plan.footprint.fixed_bytes <= known.ram_available_bytes
        asked = cache_settings(wishes, plan.kv_type, plan.context_tokens, plan.ubatch_tokens)
        kept[RAM, ram_shape(asked, is_alone=True)] = n_bytes


def test_what_a_start_took_beyond_its_estimate_leaves_less_of_the_card_for_weights() -> None:
    machine = computer(card(12))
    (before,) = planned(machine).footprint.devices
    larger = seen(machine, Experience(compute_factors={"CUDA0": 3.0}))
    (after,) = planned(larger).footprint.devices
    assert after.compute_bytes > before.compute_bytes
    assert after.expert_bytes < before.expert_bytes
    assert after.total_bytes <= after.budget_bytes


def test_what_a_driver_was_seen_to_take_replaces_what_was_assumed() -> None:
    machine = computer(card(12))
    (before,) = planned(machine).footprint.devices
    (after,) = planned(
        seen(machine, Experience(overhead_bytes={"CUDA0": 40 * MIB}))
    ).footprint.devices
    assert after.overhead_bytes == 40 * MIB < before.overhead_bytes
    assert after.expert_bytes >= before.expert_bytes
    assert after.total_bytes <= after.budget_bytes


@pytest.mark.parametrize("devices", [(), (card(12),)], ids=["alone", "card"])
def test_buffers_in_ram_that_were_larger_than_estimated_are_planned_so(
    devices: tuple[Gpu, ...],
) -> None:
    machine = computer(*devices)
    before = planned(machine).footprint
    after = planned(seen(machine, Experience(compute_factors={RAM: 2.0}))).footprint
    assert after.compute_bytes == pytest.approx(2 * before.compute_bytes, rel=0.01)
    assert after.total_bytes <= machine.ram_available_bytes


@pytest.mark.parametrize(
    ("devices", "ram_gib", "can_store"),
    [((), 32, False), ((), 12, True), ((card(12),), 32, False), ((card(24), card(8)), 32, False)],
    ids=["alone", "store", "card", "cards"],
)
def test_an_expectation_at_the_stated_depth_is_what_the_plan_states(
    devices: tuple[Gpu, ...],
    ram_gib: float,
    can_store: bool,
) -> None:
    machine = computer(*devices, ram_gib=ram_gib)
    plan = planned(machine, Wishes(can_store=can_store))
    spec = real_model(MODEL)
    stated = expected_decode(spec, machine, plan, NOMINAL_DEPTH_TOKENS)
    assert stated == pytest.approx(plan.speed.decode.likely, rel=1e-6)
    assert expected_decode(spec, machine, plan, 0) > stated
    whole = expected_prefill(spec, machine, plan, plan.ubatch_tokens)
    assert whole == pytest.approx(plan.speed.prefill.likely, rel=1e-6)
    assert expected_prefill(spec, machine, plan, 10 * plan.ubatch_tokens) == whole


def test_answers_of_the_model_itself_correct_its_speeds_and_narrow_their_range() -> None:
    machine = computer()
    before = planned(machine)
    setup = setup_of(real_model(MODEL), before)
    own = {setup: Paces(Pace(0.7, 1.05, 5), Pace(2.0, 1.5, 5))}
    after = planned(seen(machine, Experience(own=own)))
    assert after.speed.decode.likely == pytest.approx(0.7 * before.speed.decode.likely)
    assert after.speed.prefill.likely == pytest.approx(2.0 * before.speed.prefill.likely)
    width = after.speed.decode.high / after.speed.decode.likely
    assert width < before.speed.decode.high / before.speed.decode.likely
    assert after.speed.prefill.high / after.speed.prefill.likely == pytest.approx(1.5)
    assert (after.speed.num_answers, after.speed.num_models) == (5, 0)
    assert replace(after, speed=before.speed) == before


def test_other_models_help_one_that_never_ran_but_not_against_its_own_answers() -> None:
    machine = computer()
    before = planned(machine)
    setup = setup_of(real_model(MODEL), before)
    others = {setup: Paces(decode=Pace(0.5, 1.1, 4))}
    helped = planned(seen(machine, Experience(others=others)))
    assert helped.speed.decode.likely == pytest.approx(0.5 * before.speed.decode.likely)
    assert helped.speed.prefill == before.speed.prefill
    assert (helped.speed.num_answers, helped.speed.num_models) == (0, 4)
    few = planned(seen(machine, Experience(others={setup: Paces(decode=Pace(0.5, 1.0, 1))})))
    assert few.speed.decode.high > helped.speed.decode.high
    own = {setup: Paces(prefill=Pace(0.9, 1.0, 1))}
    both = planned(seen(machine, Experience(own=own, others=others)))
    assert both.speed.decode == helped.speed.decode
    assert both.speed.prefill.likely == pytest.approx(0.9 * before.speed.prefill.likely)
    assert planned(seen(machine, Experience(others={"another": others[setup]}))) == before


def test_the_sums_end_with_what_answers_made_of_them() -> None:
    spec, machine = real_model(MODEL), computer()
    before = planned(machine)
    assert "as measured" not in "".join(explain(spec, before))
    paces = {setup_of(spec, before): Paces(Pace(0.5, 1.1, 4), Pace(0.25, 1.1, 4))}
    for experience, words in (
        (Experience(own=paces), "4 answers"),
        (Experience(others=paces), "4 models"),
    ):
        plan = planned(seen(machine, experience))
        lines = [*explain(spec, plan)]
        told = [(lines[n - 1], line) for n, line in enumerate(lines) if "as measured" in line]
        for (together, measured), slower in zip(told, (2, 4), strict=True):
            assert words in measured
            found = [float(line.split(" ms")[0].split()[-1]) for line in (together, measured)]
            assert found[1] == pytest.approx(slower * found[0], rel=1e-4, abs=0.02)


def test_setups_differ_in_who_computes_and_where_the_experts_are() -> None:
    spec = real_model(MODEL)
    plans = [
        planned(computer()),
        planned(computer(), Wishes(threads=3)),
        planned(computer(card(12))),
        planned(computer(card(40))),
        planned(computer(card(12)), Wishes(has_moe_cache=True)),
        planned(computer(ram_gib=12), Wishes(can_store=True)),
        planned(computer(ram_gib=16), Wishes(can_store=True)),
        planned(computer(ram_gib=12)),
    ]
    setups = [setup_of(spec, plan) for plan in plans]
    assert len(set(setups)) == len(setups), setups
    shorter = planned(computer(), Wishes(context_tokens=8192))
    assert setup_of(spec, shorter) == setups[0]
    unused = replace(plans[2], placement=Placement(units=(0,)))
    assert setup_of(spec, unused).startswith("CPU")


def test_keys_tell_models_and_machines_apart_and_nothing_else() -> None:
    spec, machine = real_model(MODEL), computer(card(12))
    assert model_key(spec) == model_key(replace(spec))
    assert model_key(spec) != model_key(real_model(MODEL, "Q5_K_M"))
    busier = replace(machine, ram_available_bytes=GIB)
    assert machine_key(busier) == machine_key(machine)
    assert machine_key(computer(card(12), bandwidth_gb_s=50)) != machine_key(machine)
    assert machine_key(computer(card(16))) != machine_key(machine)
    assert machine_key(replace(machine, disk=None)) != machine_key(machine)


@pytest.mark.parametrize("spilled_mib", [300, 1500])
def test_what_was_moved_off_a_card_is_left_alone_like_a_larger_reserve(spilled_mib: int) -> None:
    machine, spilled = computer(card(12)), spilled_mib * MIB
    careful = planned(machine, Wishes(reserve_bytes=GIB + spilled))
    warned = planned(
        seen(machine, Experience(spilled_bytes={"CUDA0": spilled, "CUDA7": GIB})),
        Wishes(reserve_bytes=GIB),
    )
    assert warned.footprint == careful.footprint
    assert warned.placement == careful.placement
    assert warned.reasons[:-1] == careful.reasons
    assert "of CUDA0 are left alone" in warned.reasons[-1]


def test_described_cores_are_another_processors_of_which_no_features_are_known() -> None:
    here = replace(computer(), cpu_features=frozenset({"avx512f"}))
    assert described_machine(MachineWords(), here).cpu_features == {"avx512f"}
    assert not described_machine(MachineWords(cores=4), here).cpu_features
