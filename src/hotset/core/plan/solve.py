"""The order of wishes: what was asked, then the whole context, the KV type, vision, speed."""

from __future__ import annotations

from dataclasses import replace

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.machine import Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import Projector, ProjectorPlace
from hotset.core.plan.advice import ways_out
from hotset.core.plan.alone import plan_alone
from hotset.core.plan.common import (
    beyond_training,
    check_kv,
    checkpoints,
    default_threads,
    kv_ladder,
    prompt_cache_mib,
    refused_kv,
    trained_context,
    whole_steps,
)
from hotset.core.plan.pace import paced
from hotset.core.plan.search import Candidate, Search
from hotset.core.plan.types import Footprint, Plan, Wishes
from hotset.core.speed import HostTier
from hotset.core.storecompute import store_compute_bytes
from hotset.core.units import MIB, format_bytes, format_count

__all__ = ["make_plan"]

# Weights on devices that f16 may cost against q8_0 and still count as none: rounding of a cache.
_SAME_WEIGHTS = 0.995


def make_plan(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None = None
) -> Plan:
    """Decide every setting of one start of `spec` on `machine`.

    Args:
        machine: with the devices that the engine can use, in its order.
        projector: the file that goes with the model; None if there is none.

    Raises:
        MachineProblem: the wishes, or the smallest context, do not fit; names ways out.
        ConfigProblem: the KV type asked for does not suit the model, or a wish has no meaning.
    """
    if wishes.ram_bytes is not None:
        available = min(wishes.ram_bytes, machine.ram_available_bytes)
        machine = replace(machine, ram_available_bytes=available)
    check_kv(spec, wishes)
    _check_cpu_moe(spec, machine, wishes)
    return paced(spec, machine, _solved(spec, machine, wishes, projector))


def _solved(spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None) -> Plan:
    """The plan with speeds as the model has them."""
    if not machine.devices:
        return plan_alone(spec, machine, wishes, projector)
    search = Search(spec, machine, wishes, projector)
    trained = trained_context(spec)
    asked = whole_steps(wishes.context_tokens or trained)
    found = _with_kv(spec, search, wishes, asked)
    if found is None and wishes.context_tokens is None:
        kv_type = kv_ladder(spec, wishes)[-1]
        context = search.largest(kv_type, asked)
        best = search.best(context, kv_type) if context else None
        found = (best, kv_type, "") if best else None
    if found is None:
        raise MachineProblem(ways_out(spec, machine, wishes, projector, asked))
    best, kv_type, why_kv = found
    context = best.settings.context_tokens // wishes.slots
    reasons = [why_kv] if why_kv else []
    if context < asked:
        reasons.insert(0, f"context {format_count(context)} of {format_count(asked)}: more does not"
                          " fit beside what every token needs")  # fmt: skip
        reasons += refused_kv(spec, wishes)
    reasons += beyond_training(context, trained)
    plan = _finish(spec, machine, wishes, projector, best, kv_type, reasons)
    return _unless_alone_is_better(spec, machine, wishes, projector, plan, best)


def _check_cpu_moe(spec: ModelSpec, machine: Machine, wishes: Wishes) -> None:
    """Refuse a number of blocks that could only be ignored."""
    if wishes.cpu_moe_layers is None:
        return
    what = f"--cpu-moe is {wishes.cpu_moe_layers}, but"
    if not machine.devices:
        raise ConfigProblem(f"{what} there is no card; without one all experts are in RAM already")
    if spec.experts is None:
        raise ConfigProblem(f"{what} {spec.name} has no experts; leave it out")


def _with_kv(
    spec: ModelSpec, search: Search, wishes: Wishes, context: int
) -> tuple[Candidate, str, str] | None:
    """The first KV type of the ladder that moves no weights off a device; with the reason."""
    ladder = kv_ladder(spec, wishes)
    found = {kv: best for kv in ladder if (best := search.best(context, kv))}
    if not found:
        return None
    smallest = found[[*found][-1]]
    kv_type, best = next((kv, best) for kv, best in found.items() if _keeps(best, smallest))
    if kv_type == ladder[0]:
        return best, kv_type, ""
    why = f"KV {kv_type} instead of {ladder[0]}"
    if ladder[0] not in found:
        return best, kv_type, f"{why}, for a longer context"
    first = found[ladder[0]]
    moved = best.device_weight_bytes - first.device_weight_bytes
    if moved <= 0:
        return best, kv_type, f"{why}, which leaves room for a larger batch or the projector"
    gain = first.speed.decode.likely / best.speed.decode.likely - 1
    why = f"{why}, which would move {format_bytes(moved)} of weights off the card"
    return best, kv_type, f"{why} (decode {gain:+.0%})"


def _keeps(candidate: Candidate, smallest: Candidate) -> bool:
    """Whether it has all on devices that the smallest KV type leaves room for."""
    return (
        candidate.device_weight_bytes >= _SAME_WEIGHTS * smallest.device_weight_bytes
        and candidate.settings.ubatch_tokens >= smallest.settings.ubatch_tokens
        and candidate.placement.projector is smallest.placement.projector
    )


def _finish(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    projector: Projector | None,
    best: Candidate,
    kv_type: str,
    reasons: list[str],
) -> Plan:
    placement, host = best.placement, best.host
    stored = host.ram_bytes if host.tier is HostTier.STORE else 0
    is_beside_card = placement.n_offloaded > 0
    store_compute = store_compute_bytes(spec, best.settings, is_beside_card=is_beside_card)
    prompt_cache = prompt_cache_mib(wishes, best.ram_left_bytes)
    reasons += _placement_reasons(spec, wishes, projector, best)
    reasons += _spill_reasons(machine)
    is_larger = host.tier is not HostTier.RAM
    return Plan(
        context_tokens=best.settings.context_tokens // wishes.slots,
        kv_type=kv_type,
        slots=wishes.slots,
        ubatch_tokens=best.settings.ubatch_tokens,
        threads=default_threads(machine, wishes),
        prompt_cache_mib=prompt_cache,
        checkpoints=checkpoints(spec, prompt_cache),
        footprint=Footprint(
            weights_bytes=best.weights.trunk_bytes if stored else best.weights.total_bytes,
            expert_cache_bytes=stored,
            cache_bytes=best.host_cache_bytes,
            compute_bytes=best.compute_bytes,
            store_compute_bytes=store_compute if stored else 0,
            prompt_cache_bytes=prompt_cache * MIB,
            projector_bytes=best.projector_ram_bytes,
            shared_bytes=best.shared_bytes,
            devices=best.devices,
        ),
        is_larger_than_ram=is_larger,
        # Beside a device the engine keeps what is in RAM in buffers that the device can read.
        is_repacked=not is_larger and not placement.n_offloaded,
        reasons=tuple(reasons),
        speed=best.speed,
        placement=placement,
        host=host,
        load_mode="none" if host.is_pinned else "mmap",
    )


def _placement_reasons(
    spec: ModelSpec, wishes: Wishes, projector: Projector | None, best: Candidate
) -> list[str]:
    reasons = []
    placement, n_units = best.placement, len(spec.layers) + 1
    if 0 < placement.n_offloaded < n_units:
        reasons.append(
            f"{n_units - placement.n_offloaded} of {n_units - 1} blocks stay in RAM with their"
            " caches: the card is too small for all of them at this context"
        )
    if projector and wishes.has_vision and placement.projector is ProjectorPlace.NONE:
        reasons.append(
            f"no vision: the projector's {format_bytes(projector.total_bytes)} fit nowhere"
        )
    elif placement.projector is ProjectorPlace.RAM:
        reasons.append(
            "the projector is in RAM, so that experts keep the card; pictures take longer"
        )
    held = format_bytes(best.weights.expert_bytes)
    if best.host.tier is HostTier.STORE:
        reasons.append(
            f"experts stay on the disk ({held}), {format_bytes(best.host.ram_bytes)} of them"
            " cached in RAM"
        )
    elif best.host.tier is HostTier.PAGES:
        reasons.append(
            f"{format_bytes(best.weights.total_bytes)} of weights do not fit into RAM: parts of"
            " the file are read again and again, which is slow"
        )
    return reasons


def _spill_reasons(machine: Machine) -> list[str]:
    """What is left alone of cards because it was not really there before."""
    return [
        f"{format_bytes(n_bytes)} of {gpu.engine_name} are left alone: its driver moved as much to"
        " RAM at an earlier start"
        for gpu in machine.devices
        if (n_bytes := machine.experience.spilled(gpu.engine_name))
    ]


def _unless_alone_is_better(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    projector: Projector | None,
    plan: Plan,
    best: Candidate,
) -> Plan:
    """The plan, or one that leaves the card alone where that gives as much and is faster."""
    if wishes.cpu_moe_layers is not None:
        return plan
    name, is_unused = machine.devices[0].name, not best.placement.n_offloaded
    reason = f"{name} is not used: by the estimate the CPU alone is faster"
    if is_unused:
        reason = f"{name} is not used: not even one block fits beside its buffers"
        plan = replace(plan, reasons=(*plan.reasons, reason))
    try:
        alone = plan_alone(spec, machine, wishes, projector)
    except MachineProblem:
        return plan
    is_as_good = (
        alone.context_tokens >= plan.context_tokens
        and alone.is_larger_than_ram <= plan.is_larger_than_ram
        and (alone.placement.projector is not ProjectorPlace.NONE
             or best.placement.projector is ProjectorPlace.NONE)
    )  # fmt: skip
    if not is_as_good or (alone.speed.cost_s >= plan.speed.cost_s and not is_unused):
        return plan
    return replace(alone, reasons=(*alone.reasons, reason))
