"""The machine's part of `hotset doctor`: processor, memory, graphics cards, disks."""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.cli.findings import Finding, Level
from hotset.cli.machine import gpu_line
from hotset.cli.machine_options import kept_measurements, measured_file
from hotset.core.units import GIB, MIB, format_bytes, format_rate

if TYPE_CHECKING:
    from hotset.core.devices import Device
    from hotset.core.machine import Gpu
    from hotset.engine.base import Engine
    from hotset.probe.disk import MountedDisk
    from hotset.probe.measured import CopyFact, Measured
    from hotset.probe.memory import Memory

__all__ = ["machine_findings"]

_LITTLE_RAM_BYTES = 4 * GIB
_LITTLE_DISK_BYTES = 5 * GIB
# Share of time in which something waits for memory; above it answers get visibly slower.
_HIGH_PRESSURE_PERCENT = 10.0
# A slot below this makes loading, and experts in RAM with a long prompt, wait for it.
_SLOW_LINK_BYTES_S = 4 * 10**9
_HALF_CARD = 2
_EXAMPLE_BYTES = 17 * GIB
_USUAL_ROTATING_BYTES_S = 150 * 10**6


def machine_findings(
    paths: Sequence[Path], engines: Mapping[Engine, Sequence[Device]], *, is_measuring: bool
) -> Iterator[Finding]:
    """What this machine is, and what stands in the way.

    Args:
        paths: model files or folders, for the disks behind them.
        engines: those that answered, with their devices.
        is_measuring: measure anew, and keep the figures.
    """
    measured = kept_measurements()
    complaint = ""
    if is_measuring:
        from hotset.cli.measuring import measure_all
        from hotset.probe.measured import save_measured

        measured, reasons = measure_all(paths, engines, measured)
        complaint = save_measured(measured_file(os.environ), measured)
        for subject, reason, remedy in reasons:
            yield Finding(
                Level.WARNING,
                f"speed of {subject}",
                f"not measured: {reason}",
                remedy,
            )
    yield from _memory(measured)
    yield from _graphics([device for found in engines.values() for device in found], measured)
    for path in paths:
        yield _disk(path, measured)
    if complaint:
        yield Finding(
            Level.WARNING,
            "measured speeds",
            f"not kept: {complaint}",
            "set XDG_CACHE_HOME to a folder that can be written, or measure again when needed",
        )


def _memory(measured: Measured) -> Iterator[Finding]:
    from hotset.probe.cpu import cpu
    from hotset.probe.measured import ram_identity
    from hotset.probe.memory import memory

    processor, ram = cpu(), memory()
    fast = processor.num_performance_cores
    kinds = f" ({fast} of them fast)" if fast else ""
    yield Finding(
        Level.OK,
        "processor",
        f"{processor.name}, {processor.num_cores} cores{kinds}, {processor.num_threads} threads",
        facts=asdict(processor) | {"features": sorted(processor.features)},
    )
    text = f"{format_bytes(ram.available_bytes)} of {format_bytes(ram.total_bytes)} available"
    if ram.limit_bytes is not None:
        text += f", limited to {format_bytes(ram.limit_bytes)} by a control group"
    text += f"; swap {format_bytes(ram.swap_total_bytes)}" if ram.swap_total_bytes else "; no swap"
    kept = measured.ram
    if kept and kept.identity == ram_identity(processor, ram.total_bytes):
        text += f"; all cores read {format_rate(kept.read_bytes_s)} (measured {kept.day})"
    else:
        kept = None
        text += "; speed not measured (--measure does it)"
    lack, remedy = _lack_of_memory(ram)
    if lack:
        text += f"; {lack}"
    facts = asdict(ram) | {"measured": asdict(kept) if kept else None}
    yield Finding(Level.WARNING if lack else Level.OK, "memory", text, remedy, facts)
    if ram.lockable_bytes is not None and ram.lockable_bytes < ram.usable_bytes:
        yield Finding(
            Level.WARNING,
            "locked memory",
            f"limit {ram.lockable_bytes // MIB} MiB: weights cannot be locked into RAM",
            'only if you want that: `ulimit -l unlimited`, or "LimitMEMLOCK=infinity" in the unit',
        )


def _lack_of_memory(ram: Memory) -> tuple[str, str]:
    """What is wrong with the memory now, and the remedy; both empty if nothing is."""
    if ram.available_bytes < _LITTLE_RAM_BYTES:
        return (
            "little for a large model",
            "close other programs, or raise the limit, before loading one",
        )
    if (ram.pressure_percent or 0) > _HIGH_PRESSURE_PERCENT:
        return (
            f"programs waited for it for {ram.pressure_percent:.0f} % of the last ten seconds",
            "close some of them",
        )
    return "", ""


def _graphics(listed: Sequence[Device], measured: Measured) -> Iterator[Finding]:
    from hotset.core.devices import merge_devices
    from hotset.probe.graphics import graphics
    from hotset.probe.measured import card_identity
    from hotset.probe.memory import memory

    ram = memory()
    here = graphics(ram.usable_bytes, ram.available_bytes, with_users=True)
    usable = merge_devices(here.gpus, listed)
    for gpu in usable:
        yield _usable(gpu, measured.cards.get(card_identity(gpu)))
    used = {gpu.bus_id for gpu in usable}
    for gpu in here.gpus:
        if gpu.bus_id not in used:
            yield Finding(
                Level.OK if gpu.is_integrated else Level.WARNING,
                "graphics",
                f"{gpu_line(gpu)}; no engine here can use it",
                ""
                if gpu.is_integrated
                else "put a llama-server built for it on the PATH; builds with Vulkan run on all",
                asdict(gpu),
            )
    for note in here.notes:
        yield Finding(
            Level.WARNING,
            "graphics",
            note,
            "look at the driver; after an update of it, restart the computer",
        )
    if not usable and not here.gpus and not here.notes:
        yield Finding(Level.OK, "graphics", "no card found; models run on the processor")


def _usable(gpu: Gpu, kept: CopyFact | None) -> Finding:
    text, facts = gpu_line(gpu), asdict(gpu) | {"measured": asdict(kept) if kept else None}
    if kept:
        text += (
            f" · copies to it {format_rate(kept.to_bytes_s)}, from it"
            f" {format_rate(kept.from_bytes_s)} (measured {kept.day})"
        )
    elif not gpu.shares_ram:
        text += " · copies not measured (--measure does it)"
    if gpu.link and gpu.link.limit_bytes_s < _SLOW_LINK_BYTES_S:
        return Finding(
            Level.WARNING,
            "graphics",
            f"{text}: a slow slot, {format_rate(gpu.link.limit_bytes_s)} at most",
            "put it into a slot with more lanes, or check that it sits firmly",
            facts,
        )
    if not gpu.shares_ram and gpu.used_bytes * _HALF_CARD > gpu.total_bytes:
        return Finding(
            Level.WARNING,
            "graphics",
            f"{text}: more than half of it is taken",
            "close what uses it, or plan with what is left",
            facts,
        )
    return Finding(Level.OK, "graphics", text, facts=facts)


def _disk(path: Path, measured: Measured) -> Finding:
    from hotset.core.machine import DiskKind
    from hotset.probe.disk import disk_of

    subject = f"disk of {path.absolute()}"
    try:
        disk = disk_of(path)
    except OSError as error:
        return Finding(
            Level.PROBLEM, subject, f"cannot be read: {error.strerror}", "name another folder"
        )
    kept = measured.disks.get(disk.identity)
    text = f"{_KINDS.get(disk.kind, 'disk')}, {disk.file_system} on {disk.mount}"
    text += f", {format_bytes(disk.free_bytes)} free"
    if kept:
        text += (
            f"; reads {format_rate(kept.read_bytes_s)}, in 512 KiB reads"
            f" {format_rate(kept.random_read_bytes_s)} (measured {kept.day})"
        )
    elif disk.kind is not DiskKind.MEMORY:
        text += "; speed not measured (--measure does it)"
    if (models := _num_models(path)) is not None:
        text += f"; models on it: {models}"
    facts = asdict(disk) | {"measured": asdict(kept) if kept else None}
    weakness, remedy = _weakness(disk, kept.read_bytes_s if kept else 0)
    if weakness:
        return Finding(Level.WARNING, subject, f"{text}; {weakness}", remedy, facts)
    return Finding(Level.OK, subject, text, facts=facts)


_KINDS = {
    "nvme": "NVMe",
    "ssd": "SSD",
    "rotating": "rotating disk",
    "virtual": "virtual disk",
    "network": "network drive",
    "windows": "Windows drive",
    "memory": "RAM disk",
}


def _weakness(disk: MountedDisk, read_bytes_s: int) -> tuple[str, str]:
    """What is wrong with a disk for models, and the remedy; both empty if nothing is."""
    from hotset.core.machine import DiskKind

    if disk.kind is DiskKind.WINDOWS:
        return (
            "reads go through Windows, at a fraction of the disk's speed",
            "keep models in the Linux file system of WSL, such as in your home folder",
        )
    if disk.kind is DiskKind.NETWORK:
        return (
            "reads go over a network or another system",
            "keep large models on a local SSD",
        )
    if disk.kind is DiskKind.ROTATING:
        seconds = _EXAMPLE_BYTES / (read_bytes_s or _USUAL_ROTATING_BYTES_S)
        return (
            f"a {_EXAMPLE_BYTES // GIB} GiB model takes about {seconds / 60:.0f} minutes to load",
            "keep large models on an SSD",
        )
    if disk.free_bytes < _LITTLE_DISK_BYTES:
        return "little room", "make room"
    return "", ""


def _num_models(path: Path) -> int | None:
    """GGUF files in a folder and in those directly below; None for a file."""
    from hotset.cli.measuring import model_files

    return sum(1 for _ in model_files(path)) if path.is_dir() else None
