"""A plan against what the engine really takes: before the weights are read, and after the start."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

from hotset.core.experience import RAM
from hotset.core.units import GIB, format_bytes

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.devices import Device
    from hotset.core.machine import Machine
    from hotset.core.memory import CacheSettings
    from hotset.core.plan import Plan
    from hotset.core.proof import Account, Planned
    from hotset.engine.running import Running
    from hotset.engine.shortage import MemoryRow, MemoryShort
    from hotset.probe.measured import Measured

__all__ = ["account_facts", "first_look", "prove"]

# A driver takes no more for itself; beyond it the figures are of something else.
_MOST_OVERHEAD_BYTES = 4 * GIB


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
        return ram_shape(
            settings, is_alone=not plan.has_devices, has_store=ready.plugin is not None
        )
    n_in_ram = len(ready.spec.layers) + 1 - plan.placement.n_offloaded
    is_hosted = bool(plan.placement.host_moe_units) or n_in_ram > 0
    return device_shape(settings, is_hosted=is_hosted, n_blocks_in_ram=n_in_ram)


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

    basis = ready.basis
    if basis is None:
        return {}
    listed = [Device(gpu.engine_name, gpu.name, gpu.total_bytes) for gpu in basis.machine.devices]
    now = machine_with_users(measured=kept_measurements(), listed=listed)
    found = {}
    for gpu in now.devices:
        held = sum(user.used_bytes or 0 for user in gpu.used_by if user.pid == running.pid)
        beside = held - running.loaded.bytes_on(gpu.engine_name)
        if held and 0 <= beside <= _MOST_OVERHEAD_BYTES and not ready.projector:
            found[gpu.engine_name] = beside
    return found


def machine_with_users(*, measured: Measured, listed: Sequence[Device]) -> Machine:
    """This machine as it is now, with who holds what of each card."""
    from hotset.probe.this_machine import this_machine

    return this_machine(measured=measured, listed=listed, with_users=True)


def account_facts(found: Sequence[Account]) -> list[dict[str, Any]]:
    """For `--json`: planned and real bytes of each device."""
    from dataclasses import asdict

    return [asdict(account) for account in found]
