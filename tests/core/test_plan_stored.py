"""Plans with the expert store: its buffers are counted before anything has been started."""

from __future__ import annotations

from dataclasses import replace

import pytest

from hotset.core.experience import RAM, Experience
from hotset.core.machine import Machine
from hotset.core.memory import CacheSettings
from hotset.core.placement import host_compute_bytes
from hotset.core.plan import Plan, Wishes, make_plan
from hotset.core.plan.common import cache_settings
from hotset.core.plan.explain import explain
from hotset.core.plan.shape import ram_shape
from hotset.core.plan.stored import stored_plan
from hotset.core.storecompute import store_compute_bytes
from hotset.core.units import GIB, MIB
from plankit import card, computer, real_model

QWEN = real_model("qwen3-30b-a3b")
LARGE = real_model("qwen3.5-122b-a10b", "IQ4_XS")
STORED = Wishes(can_store=True)


def asked(plan: Plan) -> CacheSettings:
    return cache_settings(Wishes(), plan.kv_type, plan.context_tokens, plan.ubatch_tokens)


@pytest.mark.parametrize("ubatch", [None, 128, 2048])
@pytest.mark.parametrize("ram_gib", [8, 12, 18])
def test_without_a_card_the_stores_buffer_lies_within_what_the_plan_may_take(
    ubatch: int | None, ram_gib: int
) -> None:
    machine = computer(ram_gib=ram_gib)
    plan = make_plan(QWEN, machine, replace(STORED, ubatch_tokens=ubatch))
    footprint, batch = plan.footprint, asked(plan)

    assert footprint.expert_cache_bytes > 0
    assert footprint.store_compute_bytes == store_compute_bytes(QWEN, batch) > 0
    assert footprint.compute_bytes == host_compute_bytes(QWEN, batch, (), has_store=True)
    assert footprint.total_bytes <= machine.ram_available_bytes
    without = make_plan(QWEN, machine, Wishes(ubatch_tokens=ubatch)).footprint
    assert without.store_compute_bytes == 0


def test_beside_a_card_the_rows_that_come_from_it_are_counted_too() -> None:
    machine = computer(card(12, bandwidth_gb_s=360), ram_gib=32)
    plan = make_plan(LARGE, machine, STORED)
    footprint, batch = plan.footprint, asked(plan)

    counted = store_compute_bytes(LARGE, batch, is_beside_card=True)

    assert plan.has_devices
    assert footprint.store_compute_bytes == counted > store_compute_bytes(LARGE, batch)
    assert footprint.compute_bytes > counted
    assert footprint.total_bytes <= machine.ram_available_bytes
    assert any("and rows of the card" in line for line in explain(LARGE, plan))


def test_the_buffer_is_explained_by_what_adds_up_to_it() -> None:
    plan = make_plan(QWEN, computer(ram_gib=12), STORED)

    lines = [line for line in explain(QWEN, plan) if "store's products" in line]

    # 512 tokens x 8 experts x (gate 768 + up 768 + their product 768 + down 2,048) x 4 bytes.
    (line,) = lines
    assert line.split()[3:5] == ["68.00", "MiB"]
    assert line.endswith("batch of 512 x 8 experts x (768 + 768 + 768 + 2,048) x 4 B")


def test_a_start_with_the_store_corrects_plans_with_it_and_no_others() -> None:
    machine = computer(ram_gib=12)
    before = make_plan(QWEN, machine, STORED)
    shape = ram_shape(asked(before), is_alone=True, has_store=True)
    seen = Experience(compute_bytes={(RAM, shape): before.footprint.compute_bytes + 100 * MIB})
    knowing = replace(machine, experience=seen)

    after = make_plan(QWEN, knowing, STORED).footprint

    assert after.compute_bytes == before.footprint.compute_bytes + 100 * MIB
    assert after.expert_cache_bytes == before.footprint.expert_cache_bytes - 100 * MIB
    assert make_plan(QWEN, knowing, Wishes()) == make_plan(QWEN, machine, Wishes())


def stored(machine: Machine, expert_bytes: int) -> tuple[Plan, Plan]:
    """A plan without the store, and the same with it."""
    plan = make_plan(QWEN, machine, Wishes(context_tokens=8192))
    return plan, stored_plan(QWEN, machine, plan, expert_bytes)


def test_experts_that_would_fit_can_go_to_the_store_with_all_that_it_takes() -> None:
    plan, other = stored(computer(ram_gib=64), 4 * GIB)
    assert QWEN.experts is not None

    footprint = other.footprint

    assert footprint.expert_cache_bytes == 4 * GIB
    assert footprint.weights_bytes == QWEN.trunk_bytes - QWEN.experts.n_bytes
    assert footprint.compute_bytes == host_compute_bytes(QWEN, asked(plan), (), has_store=True)
    assert footprint.store_compute_bytes == store_compute_bytes(QWEN, asked(plan))
    assert not other.is_repacked
    assert plan.footprint.store_compute_bytes == 0


def test_a_store_without_memory_leaves_the_weights_mapped_and_computes_all_the_same() -> None:
    plan, other = stored(computer(ram_gib=64), 0)

    assert other.footprint.weights_bytes == QWEN.trunk_bytes
    assert other.footprint.compute_bytes > plan.footprint.compute_bytes


def test_beside_a_card_the_store_takes_its_rows() -> None:
    plan, other = stored(computer(card(12), ram_gib=64), 4 * GIB)

    assert plan.has_devices
    counted = store_compute_bytes(QWEN, asked(plan), is_beside_card=True)
    assert other.footprint.store_compute_bytes == counted
