"""This machine as one `Machine`: every probe, and what was measured before."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from hotset.core.devices import Device, merge_devices
from hotset.core.machine import Disk, Gpu, Machine
from hotset.probe.cpu import cpu
from hotset.probe.disk import disk_of
from hotset.probe.graphics import graphics
from hotset.probe.measured import Measured, card_identity, ram_identity
from hotset.probe.memory import memory

__all__ = ["this_machine"]


def this_machine(
    *,
    measured: Measured,
    model: Path | None = None,
    listed: Sequence[Device] | None = None,
    with_users: bool = False,
    root: Path = Path("/"),
    nvml: Any = None,
) -> Machine:
    """The machine as it is now; takes some milliseconds, more `with_users`.

    Args:
        measured: what was kept of earlier measurements. Only what fits this machine is used.
        model: the model's file or folder, for the disk behind it.
        listed: the engine's devices (`Engine.describe`). None: no engine was asked, and the cards
            are those that drivers know of, without a backend.
        with_users: also say who uses each card.
        root: where /proc, /sys and /usr/share are looked for.
        nvml: a module like `pynvml`; None loads that if there is a driver.
    """
    ram, processor = memory(root), cpu(root)
    found = graphics(ram.usable_bytes, ram.available_bytes, root, nvml, with_users=with_users).gpus
    devices = found if listed is None else merge_devices(found, listed)
    kept = measured.ram
    is_same = kept is not None and kept.identity == ram_identity(processor, ram.total_bytes)
    lockable = ram.usable_bytes if ram.lockable_bytes is None else ram.lockable_bytes
    return Machine(
        ram_total_bytes=ram.usable_bytes,
        ram_available_bytes=min(ram.available_bytes, ram.usable_bytes),
        num_cores=processor.num_cores,
        num_threads=processor.num_threads,
        devices=tuple(
            _with_copies(_within_ram(gpu, ram.available_bytes), measured) for gpu in devices
        ),
        disk=None if model is None else _disk(model, measured, root),
        ram_bandwidth_bytes_s=kept.read_bytes_s if kept is not None and is_same else None,
        num_performance_cores=processor.num_performance_cores,
        swap_total_bytes=ram.swap_total_bytes,
        swap_free_bytes=ram.swap_free_bytes,
        lockable_bytes=min(lockable, ram.usable_bytes),
        cpu_name=processor.name,
        cpu_features=processor.features,
    )


def _within_ram(gpu: Gpu, ram_available_bytes: int) -> Gpu:
    """What is free of memory that is RAM can be no more than what is free of the RAM."""
    if not gpu.shares_ram:
        return gpu
    return replace(gpu, free_bytes=min(gpu.free_bytes, ram_available_bytes))


def _with_copies(gpu: Gpu, measured: Measured) -> Gpu:
    kept = measured.cards.get(card_identity(gpu))
    return replace(gpu, copy_bytes_s=kept.to_bytes_s) if kept else gpu


def _disk(model: Path, measured: Measured, root: Path) -> Disk | None:
    try:
        mounted = disk_of(model, root)
    except OSError:
        return None
    kept = measured.disks.get(mounted.identity)
    if kept is None:
        return Disk(mounted.kind)
    return Disk(mounted.kind, kept.read_bytes_s, kept.random_read_bytes_s)
