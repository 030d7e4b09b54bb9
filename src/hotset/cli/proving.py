"""A plan against what the engine really takes: before the weights are read, and after the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from hotset.core.errors import HotsetError, MachineProblem
from hotset.core.experience import RAM
from hotset.core.units import GIB, MIB, format_bytes, format_count

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.machine import Gpu, Machine
    from hotset.core.memory import CacheSettings
    from hotset.core.plan import Plan
    from hotset.core.proof import Account, Planned
    from hotset.core.settings import Settings
    from hotset.engine.running import Running
    from hotset.engine.shortage import MemoryRow, MemoryShort

__all__ = ["account_facts", "first_look", "prove", "replanned", "retold", "say"]

# What is taken off a budget beyond what was missing: once is all that a start is planned anew.
_LEAST_MARGIN_BYTES = 64 * MIB
_MARGIN_SHARE = 16
# A driver takes no more for itself; beyond it the figures are of something else.
_MOST_OVERHEAD_BYTES = 4 * GIB


def say(text: str, on_line: Callable[[str], None] | None) -> None:
    """A line for the user, and for the engine's log where somebody keeps one."""
    from hotset.cli.screen import note

    note(text)
    if on_line:
        on_line(f"hotset: {text}")


def first_look(ready: Launchable) -> Callable[[Sequence[MemoryRow]], MemoryShort | None] | None:
    """The judge of the engine's first table of memory; None where looking does not pay.

    It pays with cards: what is free on one changes, and an allocation there fails late, when the
    weights have been read. Without one the weights are mapped and nothing much is allocated. With
    the expert store the table counts the experts on the disk as memory.
    """
    if not ready.plan.has_devices or ready.plugin is not None:
        return None

    def judge(rows: Sequence[MemoryRow]) -> MemoryShort | None:
        from hotset.engine.shortage import MemoryShort

        planned = {taken.device: taken for taken in ready.plan.footprint.devices}
        for row in rows:
            taken = planned.get(row.device)
            if row.free_bytes is None or taken is None:
                continue
            beside = taken.projector_bytes + taken.moe_cache_bytes  # they come later
            needed = row.total_bytes + beside
            if needed > row.free_bytes:
                what = (
                    f"the engine would take {format_bytes(needed)} of {row.device}, where"
                    f" {format_bytes(row.free_bytes)} are free now"
                )
                return MemoryShort(
                    f"{ready.path.name}: {what}; give a shorter --ctx, or close other programs",
                    device=row.device,
                    free_bytes=row.free_bytes,
                    beyond_bytes=max(0, needed + taken.overhead_bytes - taken.total_bytes),
                    what=what,
                )
        return None

    return judge


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
    machine = _with_less(replace(now, experience=basis.machine.experience), ready.plan, short)
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
    from hotset.cli.settings import card_settings, settings_of
    from hotset.engine.llama_server import LlamaServerEngine

    anew = settings_of(ready)
    cards = card_settings(ready) if isinstance(ready.engine, LlamaServerEngine) else {}
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
    return replace(settings, **(plain | dict(cards)), expert_store=store)


def prove(
    ready: Launchable, running: Running, remarks: tuple[str, ...], tell: Callable[[str], None]
) -> Running:
    """Compare, tell what deviates, keep what was seen. Returns `running`, with what was found.

    An engine that prints nothing of its memory is not compared.
    """
    from hotset.core.proof import accounts, deviations

    running.remarks = remarks
    if not running.loaded.buffers:
        return running
    running.accounts = accounts(_planned(ready), running.loaded)
    said = deviations(running.accounts)
    if said:
        line = f"memory differs from the plan: {'; '.join(said)}"
        if _keep(ready, running):
            line += "; the next plan counts with it"
        tell(line)
        running.remarks = (*remarks, line)
    else:
        _keep(ready, running)
    return running


def _planned(ready: Launchable) -> list[Planned]:
    from hotset.core.proof import Planned

    footprint = ready.plan.footprint
    rows = [
        Planned(
            taken.device,
            # What the engine counts of its own expert cache, and where, is its affair.
            None if taken.moe_cache_bytes else taken.trunk_bytes + taken.expert_bytes,
            taken.cache_bytes,
            taken.compute_bytes,
        )
        for taken in footprint.devices
        if taken.total_bytes
    ]
    return [*rows, Planned(RAM, None, footprint.cache_bytes, footprint.compute_bytes)]


def _keep(ready: Launchable, running: Running) -> bool:
    """Keep what the start showed; False where it cannot be kept."""
    from hotset.cli.pacing import starts_file
    from hotset.core.plan.pace import model_key
    from hotset.probe.starts import StartKey, keep_start

    if ready.basis is None:
        return False
    overheads = _overheads(ready, running) if ready.plan.has_devices else {}
    engine, model = ready.engine.identity, model_key(ready.spec)
    complaints = [
        keep_start(
            starts_file(),
            StartKey(engine, model, account.device),
            {_shape(ready, account.device): (account.planned_compute, account.compute)},
            overheads.get(account.device),
        )
        for account in running.accounts
        if account.compute
    ]
    return bool(complaints) and not any(complaints)


def _shape(ready: Launchable, device: str) -> str:
    from hotset.core.plan.shape import device_shape, ram_shape

    plan = ready.plan
    settings = _cache_settings(plan)
    if device == RAM:
        return ram_shape(settings, is_alone=not plan.has_devices)
    n_units = len(ready.spec.layers) + 1
    is_hosted = bool(plan.placement.host_moe_units) or plan.placement.n_offloaded < n_units
    return device_shape(settings, is_hosted=is_hosted)


def _cache_settings(plan: Plan) -> CacheSettings:
    from hotset.core.plan import Wishes
    from hotset.core.plan.common import cache_settings

    wishes = Wishes(slots=plan.slots)
    return cache_settings(wishes, plan.kv_type, plan.context_tokens, plan.ubatch_tokens)


def _overheads(ready: Launchable, running: Running) -> dict[str, int]:
    """By device, what the engine's process holds there beside its buffers, where the driver tells
    what each process holds."""
    from hotset.cli.machine_options import kept_measurements
    from hotset.core.devices import Device
    from hotset.probe.this_machine import this_machine

    basis = ready.basis
    if basis is None:
        return {}
    listed = [Device(gpu.engine_name, gpu.name, gpu.total_bytes) for gpu in basis.machine.devices]
    now = this_machine(measured=kept_measurements(), listed=listed, with_users=True)
    found = {}
    for gpu in now.devices:
        held = sum(user.used_bytes or 0 for user in gpu.used_by if user.pid == running.pid)
        beside = held - running.loaded.bytes_on(gpu.engine_name)
        if held and 0 <= beside <= _MOST_OVERHEAD_BYTES and not ready.projector:
            found[gpu.engine_name] = beside
    return found


def account_facts(found: Sequence[Account]) -> list[dict[str, Any]]:
    """For `--json`: planned and real bytes of each device."""
    from dataclasses import asdict

    return [asdict(account) for account in found]
