"""What to do instead: ways out of wishes that cannot be met."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hotset.core.machine import Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import Projector
from hotset.core.plan.common import KV_LADDER, LEAST_CONTEXT_TOKENS, kv_ladder
from hotset.core.plan.search import Search
from hotset.core.plan.types import Wishes
from hotset.core.units import MIB, format_bytes, format_count

__all__ = ["ways_out"]

_MOST_MIB = 1 << 22  # 4 TiB: where looking for enough memory ends


def ways_out(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    projector: Projector | None,
    context: int,
) -> str:
    """The message for wishes that do not fit: what there is, and ways out with their numbers."""
    kv_type = kv_ladder(spec, wishes)[-1]
    ways = [
        *_smaller_kv(spec, machine, wishes, projector, context),
        *_fewer_experts(spec, machine, wishes, projector, context),
        *_as_it_likes(spec, machine, wishes, projector, context),
        *_shorter_context(spec, machine, wishes, projector, context),
    ]
    if wishes.slots > 1:
        ways.append(f"fewer than {wishes.slots} --slots")
    ways.append(_more_memory(spec, machine, wishes, projector, context))
    have = " and ".join(f"{format_bytes(gpu.free_bytes)} of {gpu.name}" for gpu in machine.devices)
    return (
        f"{spec.name}: {format_count(context)} tokens of {kv_type} KV with what every token needs"
        f" do not fit in {have} and {format_bytes(machine.ram_available_bytes)} of RAM;"
        f" {'; '.join(ways)}"
    )


def _smaller_kv(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, context: int
) -> list[str]:
    if wishes.kv_type is None or wishes.kv_type == KV_LADDER[-1]:
        return []
    other = replace(wishes, kv_type=None)
    if KV_LADDER[-1] not in kv_ladder(spec, other):
        return []
    best = Search(spec, machine, other, projector).best(context, KV_LADDER[-1])
    if best is None:
        return []
    cache = sum(d.cache_bytes for d in best.devices) + best.host_cache_bytes
    return [f"--kv {KV_LADDER[-1]} fits ({format_bytes(cache)} of KV and state)"]


def _fewer_experts(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, context: int
) -> list[str]:
    """The least `--cpu-moe` that fits, where one was given."""
    if wishes.cpu_moe_layers is None:
        return []
    kv_type = kv_ladder(spec, wishes)[-1]
    low, high = wishes.cpu_moe_layers + 1, spec.n_layers + 1
    while low < high:
        middle = (low + high) // 2
        other = replace(wishes, cpu_moe_layers=middle)
        is_fitting = Search(spec, machine, other, projector).fits(context, kv_type)
        low, high = (low, middle) if is_fitting else (middle + 1, high)
    return [f"--cpu-moe {low} fits"] if low <= spec.n_layers else []


def _shorter_context(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, context: int
) -> list[str]:
    search = Search(spec, machine, wishes, projector)
    largest = search.largest(kv_ladder(spec, wishes)[-1], context)
    return [f"--ctx {largest} fits"] if largest >= LEAST_CONTEXT_TOKENS else []


def _as_it_likes(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, context: int
) -> list[str]:
    """What would be chosen if `--cpu-moe` were left out."""
    if wishes.cpu_moe_layers is None:
        return []
    other = replace(wishes, cpu_moe_layers=None)
    best = Search(spec, machine, other, projector).best(context, kv_ladder(spec, wishes)[-1])
    if best is None:
        return []
    count = len(best.placement.host_moe_units)
    return [f"without --cpu-moe the experts of {count} blocks would stay in RAM"]


def _more_memory(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, context: int
) -> str:
    """How much more free memory would do: RAM, or else the first card's."""
    kv_type = kv_ladder(spec, wishes)[-1]
    first, *others = machine.devices

    def with_ram(extra: int) -> Machine:
        ram = machine.ram_available_bytes + extra
        return replace(machine, ram_available_bytes=ram, ram_total_bytes=ram)

    def with_card(extra: int) -> Machine:
        larger = replace(
            first, total_bytes=first.total_bytes + extra, free_bytes=first.free_bytes + extra
        )
        return replace(machine, devices=(larger, *others))

    for what, grown in (("RAM", with_ram), (f"memory on {first.name}", with_card)):

        def fits(extra_mib: int, grown: Callable[[int], Machine] = grown) -> bool:
            return Search(spec, grown(extra_mib * MIB), wishes, projector).fits(context, kv_type)

        low, high = 1, 1
        while high < _MOST_MIB and not fits(high):
            low, high = high + 1, high * 2
        if not fits(high):
            continue
        while low < high:
            middle = (low + high) // 2
            low, high = (low, middle) if fits(middle) else (middle + 1, high)
        return f"{format_bytes(low * MIB)} more of free {what}"
    return "another machine: no amount of memory alone would do"
