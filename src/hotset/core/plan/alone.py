"""A start without a graphics card.

Everything is computed on the CPU, weights are mapped from the file. What must fit in RAM is what
cannot be read again: caches and compute buffers. Weights should fit, too. Where they do not, the
routed experts stay on the disk and the expert store keeps the hot ones in what RAM is left; without
the store the page cache has to do, and the plan says so.
"""

from __future__ import annotations

import math
from dataclasses import replace

from hotset.core.compute import largest_context
from hotset.core.errors import MachineProblem
from hotset.core.experience import RAM
from hotset.core.machine import Machine
from hotset.core.memory import (
    CONTEXT_STEP_TOKENS,
    CacheSettings,
    cache_bytes,
)
from hotset.core.modelspec import Experts, ModelSpec
from hotset.core.placement import Placement, Projector, ProjectorPlace, host_compute_bytes
from hotset.core.plan.common import (
    KV_LADDER,
    LEAST_CONTEXT_TOKENS,
    STORE_BYTES,
    beyond_training,
    cache_settings,
    checkpoints,
    default_threads,
    default_ubatch,
    kv_ladder,
    prompt_cache_mib,
    refused_kv,
    trained_context,
    whole_steps,
)
from hotset.core.plan.rating import rate_alone
from hotset.core.plan.shape import ram_shape
from hotset.core.plan.types import ENGINE_BYTES, Footprint, Plan, Wishes
from hotset.core.speed import HostExperts, HostTier
from hotset.core.storecompute import store_compute_bytes
from hotset.core.units import GIB, MIB, format_bytes, format_count

__all__ = ["plan_alone"]

# Without room for the weights, caches may take this part of the RAM; the rest is for weights.
_CACHE_SHARE = 3
_USEFUL_CONTEXT_TOKENS = 4096


def plan_alone(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None
) -> Plan:
    """Decide context, KV type and batch for `spec` on `machine`, whatever cards it has.

    The projector comes after the context: it is taken where it shortens nothing.

    Raises:
        MachineProblem: the wishes, or the smallest context, do not fit; names ways out.
        ConfigProblem: the KV type asked for does not suit the model.
    """
    machine = replace(machine, devices=())
    without = _plan(spec, machine, wishes)
    if projector is None or not wishes.has_vision:
        return without
    smaller = machine.ram_available_bytes - projector.total_bytes
    try:
        plan = _plan(spec, replace(machine, ram_available_bytes=smaller), wishes)
    except MachineProblem:
        plan = without
    is_shorter = plan.context_tokens < without.context_tokens or plan.kv_type != without.kv_type
    if plan is without or is_shorter or plan.is_larger_than_ram > without.is_larger_than_ram:
        reason = (
            f"no vision: the projector's {format_bytes(projector.total_bytes)} do not fit beside"
            " the rest"
        )
        return replace(without, reasons=(*without.reasons, reason))
    return replace(
        plan,
        placement=Placement(projector=ProjectorPlace.RAM),
        footprint=replace(plan.footprint, projector_bytes=projector.total_bytes),
    )


def _plan(spec: ModelSpec, machine: Machine, wishes: Wishes) -> Plan:
    trained = trained_context(spec)
    ladder = kv_ladder(spec, wishes)
    room = _room_bytes(spec, machine, wishes, ladder[-1])
    reasons: list[str] = []

    context = whole_steps(wishes.context_tokens or trained)
    kv_type = _first_fitting(spec, machine, wishes, ladder, context, room)
    if kv_type is None and wishes.context_tokens:
        # The user's word is law as far as the machine can follow; the weights give way.
        kv_type = _first_fitting(
            spec, machine, wishes, ladder, context, machine.ram_available_bytes
        )
        if kv_type is None:
            raise MachineProblem(_does_not_fit(spec, machine, wishes, ladder[0], context))
    elif kv_type is None:
        kv_type = ladder[-1]
        context = _largest(spec, machine, wishes, kv_type, room)
        if context < LEAST_CONTEXT_TOKENS:
            least = min(LEAST_CONTEXT_TOKENS, trained)
            raise MachineProblem(_does_not_fit(spec, machine, wishes, kv_type, least))
        reasons.append(
            f"context {format_count(context)} of {format_count(trained)}: more does not fit in the"
            f" {format_bytes(room)} of RAM left for caches and buffers"
        )
        reasons += refused_kv(spec, wishes)
    if kv_type != ladder[0]:
        reasons.append(f"KV {kv_type} instead of {ladder[0]}, for a longer context")
    reasons += beyond_training(context, trained)
    return _finish(spec, machine, wishes, kv_type, context, reasons)


def _room_bytes(spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str) -> int:
    """RAM for what is not weights: what they leave, or a part where they do not fit anyway, and
    more of it on a machine so small that the part holds no context of use."""
    have = machine.ram_available_bytes
    left = have - spec.trunk_bytes
    if left >= _fixed_bytes(spec, machine, wishes, kv_type, LEAST_CONTEXT_TOKENS):
        return left
    useful = min(trained_context(spec), _USEFUL_CONTEXT_TOKENS)
    return max(
        have // _CACHE_SHARE, min(have, _fixed_bytes(spec, machine, wishes, kv_type, useful))
    )


def _first_fitting(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    ladder: tuple[str, ...],
    context: int,
    room_bytes: int,
) -> str | None:
    fixed = ((kv, _fixed_bytes(spec, machine, wishes, kv, context)) for kv in ladder)
    return next((kv for kv, n_bytes in fixed if n_bytes <= room_bytes), None)


def _finish(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    kv_type: str,
    context: int,
    reasons: list[str],
) -> Plan:
    settings = cache_settings(wishes, kv_type, context, default_ubatch(wishes))
    fixed = _fixed_bytes(spec, machine, wishes, kv_type, context)
    left = machine.ram_available_bytes - fixed - spec.trunk_bytes
    prompt_cache = prompt_cache_mib(wishes, left)
    is_larger = left < 0
    expert_cache = 0
    host = HostExperts()
    if is_larger and spec.experts and wishes.can_store:
        expert_cache = _expert_cache_bytes(spec, spec.experts, machine, fixed)
        host = HostExperts(HostTier.STORE, expert_cache)
        reasons.append(
            f"experts stay on the disk ({format_bytes(spec.experts.n_bytes)}),"
            f" {format_bytes(expert_cache)} of them cached in RAM"
        )
    elif is_larger:
        host = HostExperts(HostTier.PAGES, machine.ram_available_bytes - fixed)
        reasons.append(
            f"the weights ({format_bytes(spec.trunk_bytes)}) do not fit beside the"
            f" {format_bytes(fixed)} of caches and buffers: parts of the file are read again and"
            " again, which is slow"
        )
    threads = default_threads(machine, wishes)
    return Plan(
        context_tokens=context,
        kv_type=kv_type,
        slots=wishes.slots,
        ubatch_tokens=default_ubatch(wishes),
        threads=threads,
        prompt_cache_mib=prompt_cache,
        checkpoints=checkpoints(spec, prompt_cache),
        footprint=Footprint(
            weights_bytes=spec.trunk_bytes - (_expert_bytes(spec) if expert_cache else 0),
            expert_cache_bytes=expert_cache,
            cache_bytes=cache_bytes(spec, settings).total,
            compute_bytes=_compute_bytes(spec, machine, wishes, settings),
            store_compute_bytes=store_compute_bytes(spec, settings) if expert_cache else 0,
            prompt_cache_bytes=prompt_cache * MIB,
        ),
        is_larger_than_ram=is_larger,
        is_repacked=not is_larger,
        reasons=tuple(reasons),
        speed=rate_alone(spec, machine, settings, host, threads),
        host=host,
    )


def _expert_bytes(spec: ModelSpec) -> int:
    return spec.experts.n_bytes if spec.experts else 0


def _expert_cache_bytes(spec: ModelSpec, experts: Experts, machine: Machine, fixed: int) -> int:
    """RAM for experts: all that is left beside what every token needs.

    Raises:
        MachineProblem: it does not hold the experts that a token uses in one layer, twice.
    """
    others = fixed + spec.trunk_bytes - experts.n_bytes + STORE_BYTES
    cache = machine.ram_available_bytes - others
    least = 2 * experts.bytes_per_token // len(experts.layers)
    if cache < least:
        raise MachineProblem(
            f"{spec.name}: {format_bytes(machine.ram_available_bytes)} of RAM are too little even"
            f" with the experts on the disk; the least is {_enough(others + least)},"
            " or less with a shorter --ctx"
        )
    return cache


def _fixed_bytes(
    spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str, context: int
) -> int:
    settings = cache_settings(wishes, kv_type, context, default_ubatch(wishes))
    caches = cache_bytes(spec, settings).total
    return caches + _compute_bytes(spec, machine, wishes, settings) + ENGINE_BYTES


def _compute_bytes(
    spec: ModelSpec, machine: Machine, wishes: Wishes, settings: CacheSettings
) -> int:
    """Buffers of a batch; with the expert store's where the weights find no room otherwise."""
    without = _compute_bytes_of(spec, machine, settings, has_store=False)
    if not (spec.experts and wishes.can_store):
        return without
    fixed = cache_bytes(spec, settings).total + without + ENGINE_BYTES
    if fixed + spec.trunk_bytes <= machine.ram_available_bytes:
        return without
    return _compute_bytes_of(spec, machine, settings, has_store=True)


def _compute_bytes_of(
    spec: ModelSpec, machine: Machine, settings: CacheSettings, *, has_store: bool
) -> int:
    estimate = host_compute_bytes(spec, settings, (), has_store=has_store)
    shape = ram_shape(settings, is_alone=True, has_store=has_store)
    return machine.experience.compute(RAM, shape, estimate)


def _largest(
    spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str, budget_bytes: int
) -> int:
    """The largest context whose fixed part stays within the budget; 0 if none does."""
    settings = cache_settings(wishes, kv_type, LEAST_CONTEXT_TOKENS, default_ubatch(wishes))
    total = largest_context(
        spec,
        settings,
        budget_bytes - ENGINE_BYTES,
        compute_bytes=lambda spec, tried: _compute_bytes(spec, machine, wishes, tried),
    )
    context = total // wishes.slots // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS
    # A start may have shown more for a shorter one than is counted for what was found.
    while context and _fixed_bytes(spec, machine, wishes, kv_type, context) > budget_bytes:
        context -= CONTEXT_STEP_TOKENS
    return context


def _does_not_fit(
    spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str, context: int
) -> str:
    """The message: what is needed, what there is, and the ways out with their numbers."""
    need = _fixed_bytes(spec, machine, wishes, kv_type, context)
    have = machine.ram_available_bytes
    ways = []
    unasked = replace(wishes, kv_type=None)
    if kv_type != KV_LADDER[-1] and KV_LADDER[-1] in kv_ladder(spec, unasked):
        smaller = _fixed_bytes(spec, machine, wishes, KV_LADDER[-1], context)
        if smaller <= have:
            ways.append(f"--kv {KV_LADDER[-1]} needs {format_bytes(smaller)}")
    largest = _largest(spec, machine, wishes, kv_type, have)
    if largest >= LEAST_CONTEXT_TOKENS:
        ways.append(f"--ctx {largest} fits")
    if wishes.slots > 1:
        ways.append("fewer --slots")
    if have == wishes.ram_bytes:
        ways.append("a larger --ram")
    elif need <= machine.ram_total_bytes:
        other = format_bytes(machine.ram_total_bytes - have)
        ways.append(f"close programs that use the other {other}")
    else:
        ways.append(f"there are {format_bytes(machine.ram_total_bytes)} in all: a smaller model")
    return (
        f"{spec.name}: {format_count(context)} tokens of {kv_type} KV with their buffers need"
        f" {format_bytes(need)} of RAM, {format_bytes(have)} are available; {'; '.join(ways)}"
    )


def _enough(n_bytes: int) -> str:
    """`n_bytes` for people, not less than it is, so that who gives this much gives enough."""
    step = (GIB if n_bytes >= GIB else MIB) / 10
    return format_bytes(math.ceil(math.ceil(n_bytes / step) * step))
