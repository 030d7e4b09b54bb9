"""What `hotset doctor --measure` measures: memory, disks, copies to graphics cards."""

from __future__ import annotations

import datetime
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.core.devices import Device
    from hotset.engine.base import Engine
    from hotset.probe.measured import CopyFact, DiskFact, Measured, RamFact

__all__ = ["Unmeasured", "measure_all", "model_files"]

Unmeasured = tuple[str, str, str]
"""What has no figure, the reason, and the remedy."""


def measure_all(
    paths: Sequence[Path], engines: Mapping[Engine, Sequence[Device]], before: Measured
) -> tuple[Measured, list[Unmeasured]]:
    """New figures beside those of other disks and cards, and what has none.

    Args:
        paths: model files or folders, for the disks behind them.
        engines: with their devices; each engine copies with its own library.
    """
    day = datetime.date.today().isoformat()
    reasons: list[Unmeasured] = []
    ram = _ram(day, reasons) or before.ram
    disks = _disks(paths, day, reasons)
    cards = _cards(engines, day, reasons)
    now = replace(before, ram=ram, disks={**before.disks, **disks}, cards={**before.cards, **cards})
    return now, reasons


def _ram(day: str, reasons: list[Unmeasured]) -> RamFact | None:
    from hotset.probe.cpu import cpu
    from hotset.probe.measure import measure_ram
    from hotset.probe.measured import RamFact, ram_identity
    from hotset.probe.memory import memory

    processor, ram = cpu(), memory()
    speed = measure_ram(processor.num_cores, ram.available_bytes)
    if isinstance(speed, str):
        reasons.append(("memory", speed, "measure again when other programs rest"))
        return None
    return RamFact(speed.read_bytes_s, ram_identity(processor, ram.total_bytes), day)


def _disks(paths: Sequence[Path], day: str, reasons: list[Unmeasured]) -> dict[str, DiskFact]:
    from hotset.probe.disk import disk_of
    from hotset.probe.measure import measure_disk
    from hotset.probe.measured import DiskFact

    disks = {}
    for path in paths:
        try:
            disk, file = disk_of(path), _largest(path)
        except OSError:
            continue  # the finding about this disk says so
        found = measure_disk(file, disk.file_system) if file else "there is no model file to read"
        if isinstance(found, str):
            subject = f"the disk of {path.absolute()}"
            reasons.append((subject, found, "name a folder on that disk with a large model file"))
        else:
            disks[disk.identity] = DiskFact(found.read_bytes_s, found.random_read_bytes_s, day)
    return disks


def _cards(
    engines: Mapping[Engine, Sequence[Device]], day: str, reasons: list[Unmeasured]
) -> dict[str, CopyFact]:
    """Of a card that several engines have, the first one's figure counts."""
    from hotset.core.devices import merge_devices
    from hotset.engine.copyspeed import measure_copies
    from hotset.probe.graphics import graphics
    from hotset.probe.measured import CopyFact, card_identity
    from hotset.probe.memory import memory

    ram = memory()
    here = graphics(ram.usable_bytes, ram.available_bytes).gpus
    cards: dict[str, CopyFact] = {}
    for engine, devices in engines.items():
        gpus = [g for g in merge_devices(here, devices) if card_identity(g) not in cards]
        if not gpus:
            continue
        found = measure_copies(engine.library, [gpu.engine_name for gpu in gpus], os.environ)
        for gpu in gpus:
            speed = found[gpu.engine_name]
            if isinstance(speed, str):
                remedy = "close what uses it, or try another build of the engine"
                reasons.append((f"copies to {gpu.name}", speed, remedy))
            else:
                fact = CopyFact(speed.to_bytes_s, speed.from_bytes_s, day)
                cards[card_identity(gpu)] = fact
    return cards


def _largest(path: Path) -> Path | None:
    """The model file with most of its bytes really on the disk; None without one."""
    return max(model_files(path), key=lambda file: file.stat().st_blocks, default=None)


def model_files(path: Path) -> Iterator[Path]:
    """The file itself, or the model files of a folder and of those directly below."""
    if path.is_file():
        yield path
    for pattern in ("*.gguf", "*/*.gguf"):
        yield from path.glob(pattern)
