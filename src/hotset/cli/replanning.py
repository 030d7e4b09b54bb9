"""Another, smaller plan for a start that failed for want of memory."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotset.core.errors import HotsetError, MachineProblem
from hotset.core.experience import RAM
from hotset.core.units import MIB, format_bytes, format_count

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.machine import Gpu, Machine
    from hotset.core.plan import Plan
    from hotset.core.settings import Settings
    from hotset.engine.shortage import MemoryShort

__all__ = ["replanned", "retold"]

# What is taken off a budget beyond what was missing: once is all that a start is planned anew.
_LEAST_MARGIN_BYTES = 64 * MIB
_MARGIN_SHARE = 16


def replanned(ready: Launchable, short: MemoryShort) -> tuple[Launchable, str]:
    """A smaller plan for a start that failed for want of memory, and the line that says so.

    The machine is looked at anew, and the budget that was too large is lowered. What the user has
    fixed stays as it is.

    Raises:
        MachineProblem: with that nothing fits any more, or nothing is smaller.
    """
    from hotset.cli.launching import make_ready
    from hotset.cli.machines import machine_now
    from hotset.cli.subjects import Subject

    basis = ready.basis
    if basis is None:
        raise short
    now, _ = machine_now(ready.engine, ready.path)
    machine = _with_less(_within(now, basis.machine), ready.plan, short)
    subject = Subject(
        files=ready.files,
        spec=ready.spec,
        is_embedding=ready.is_embedding,
        needed=ready.needed,
        projector_path=ready.projector,
        projector=basis.projector if ready.projector else None,
        stamps=ready.stamps,
    )
    wishes = basis.wishes
    if short.device == RAM and wishes.ram_bytes is not None:
        wishes = replace(wishes, ram_bytes=min(wishes.ram_bytes, machine.ram_available_bytes))
    try:
        smaller = make_ready(subject, machine, wishes, ready.engine, asks=False)
    except HotsetError as problem:
        raise MachineProblem(f"{short.what}; planned with less: {problem.message}") from short
    smaller = replace(smaller, plugin=ready.plugin)
    if not _is_smaller(smaller.plan, ready.plan) or _lost_store(smaller):
        raise short
    return (
        smaller,
        f"{short.what}; planned smaller, starting again: {_changes(ready.plan, smaller.plan)}",
    )


def _within(now: Machine, before: Machine) -> Machine:
    """The machine as it is now, but no more of it than the plan was allowed: the rest may have been
    promised to others."""
    allowed = {gpu.engine_name: gpu.free_bytes for gpu in before.devices}
    return replace(
        now,
        experience=before.experience,
        ram_available_bytes=min(now.ram_available_bytes, before.ram_available_bytes),
        devices=tuple(
            replace(gpu, free_bytes=min(gpu.free_bytes, allowed[gpu.engine_name]))
            for gpu in now.devices
            if gpu.engine_name in allowed
        ),
    )


def _with_less(now: Machine, plan: Plan, short: MemoryShort) -> Machine:
    """The machine with less of the memory that was short: less than is free, and less than the plan
    took, where that was too much."""
    margin, footprint = _margin_bytes(plan, short), plan.footprint
    if short.device == RAM:
        room = min(now.ram_available_bytes, footprint.total_bytes) - margin
        return replace(now, ram_available_bytes=max(0, room))
    taken = next((each for each in footprint.devices if each.device == short.device), None)

    def lowered(gpu: Gpu) -> Gpu:
        if taken is None or gpu.engine_name != short.device:
            return gpu
        if short.free_bytes is not None:
            room = min(gpu.free_bytes, short.free_bytes) - short.beyond_bytes
        else:
            reserve = max(0, gpu.free_bytes - taken.budget_bytes)
            room = min(gpu.free_bytes, taken.total_bytes + reserve) - margin
        return replace(gpu, free_bytes=max(0, room))

    return replace(now, devices=tuple(map(lowered, now.devices)))


def _margin_bytes(plan: Plan, short: MemoryShort) -> int:
    """By how much to stay below a plan that was too large. An allocation larger than the planned
    buffers and no large part of the whole is one that was estimated too small."""
    total, buffers = plan.footprint.total_bytes, plan.footprint.compute_bytes
    for taken in plan.footprint.devices:
        if taken.device == short.device:
            total, buffers = taken.total_bytes, taken.compute_bytes
    margin = max(_LEAST_MARGIN_BYTES, total // _MARGIN_SHARE)
    is_buffer = buffers < short.asked_bytes < total // 2
    return margin + (short.asked_bytes - buffers if is_buffer else 0)


def _is_smaller(plan: Plan, other: Plan) -> bool:
    """Whether it takes less anywhere, and so may succeed where the other did not."""
    before = {taken.device: taken.total_bytes for taken in other.footprint.devices}
    return plan.footprint.total_bytes < other.footprint.total_bytes or any(
        taken.total_bytes < before.get(taken.device, 0) for taken in plan.footprint.devices
    )


def _lost_store(ready: Launchable) -> bool:
    """The engine has the plugin loaded or it has not; a plan anew cannot change that."""
    return bool(ready.plugin) != bool(ready.plan.footprint.expert_cache_bytes)


def _changes(before: Plan, now: Plan) -> str:
    """What is smaller, in a few words."""
    parts = []
    if now.context_tokens != before.context_tokens:
        parts.append(
            f"context {format_count(now.context_tokens)} instead of"
            f" {format_count(before.context_tokens)}"
        )
    for what, old, new in (
        ("KV", before.kv_type, now.kv_type),
        ("batch", before.ubatch_tokens, now.ubatch_tokens),
        ("units on cards", before.placement.n_offloaded, now.placement.n_offloaded),
        (
            "blocks with experts in RAM",
            len(before.placement.host_moe_units),
            len(now.placement.host_moe_units),
        ),
    ):
        if new != old:
            parts.append(f"{what} {new} instead of {old}")
    if not parts:
        old, new = before.footprint.total_bytes, now.footprint.total_bytes
        parts.append(f"{format_bytes(new)} of RAM instead of {format_bytes(old)}")
    return ", ".join(parts)


def retold(settings: Settings, ready: Launchable) -> Settings:
    """The settings of a start with another plan; all else (name, port, key, template) stays."""
    from hotset.cli.settings import settings_of

    anew = settings_of(ready)
    plain: dict[str, Any] = {
        name: getattr(anew, name)
        for name in (
            "context_tokens", "slots", "kv_type_k", "kv_type_v", "ubatch_tokens", "batch_tokens",
            "threads", "load_mode", "projector", "is_projector_on_card", "is_repacked",
            "prompt_cache_mib", "checkpoints", "gpu_layers", "devices", "device_layers",
            "moe_cache_mib", "cpu_moe_layers", "cpu_moe_blocks",
        )
    }  # fmt: skip
    store = settings.expert_store
    if store is not None:
        from hotset.cli.experts import resized

        store = resized(store, ready.plan.footprint.expert_cache_bytes)
    return replace(settings, **plain, expert_store=store)
