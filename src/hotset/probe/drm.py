"""Graphics cards as the kernel's DRM drivers show them, and the processes that use them.

Cards: /sys/class/drm/card*/device, a PCI device with `vendor`, `device`, `revision` and the link
`driver` (kernel documentation, ABI/testing/sysfs-bus-pci). Processes: /proc/PID/fdinfo of every
open device file names the card, the client and its memory by region
(gpu/drm-usage-stats.rst). Only processes of the same user can be seen, all of them by root.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotset.core.machine import GpuUser
from hotset.core.spill import Held
from hotset.probe.sysfs import read_int, read_text

__all__ = ["BUS_ID", "Card", "cards", "held_by_group", "users"]

BUS_ID = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
# The regions that are a card's own memory: amdgpu says "vram", xe "vram0", i915 "local0".
_OWN_MEMORY = re.compile(r"drm-(?P<what>resident|memory|total)-(?:vram|local)\d*")
# Those that are RAM: "gtt" of amdgpu and xe, "system" of xe, "system0" of i915, and "cpu" of
# amdgpu, where buffers go that not even GTT has room for.
_RAM_MEMORY = re.compile(r"drm-(?P<what>resident|memory|total)-(?:gtt|cpu|system)\d*")
# Which of its figures counts where a driver gives several; `memory` is the older name.
_PREFERRED = ("resident", "memory", "total")
# Bytes that belong into the card's memory and are elsewhere now
# (drivers/gpu/drm/amd/amdgpu/amdgpu_fdinfo.c).
_EVICTED = "amd-evicted-vram"
_UNIT_BYTES = {"": 1, "KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}


@dataclass(frozen=True, slots=True)
class Card:
    """One graphics device on PCI.

    Attributes:
        folder: of its PCI device in /sys, links resolved.
        bus_id: "0000:03:00.0".
        driver: "amdgpu", "i915", "xe" ...; "" without one.
        vendor_id, device_id, revision: as PCI numbers; 0 where unreadable.
    """

    folder: Path
    bus_id: str
    driver: str
    vendor_id: int
    device_id: int
    revision: int


def cards(root: Path = Path("/")) -> list[Card]:
    """Every card, in the order of PCI addresses. `root` is where /sys is looked for."""
    found = {}
    for entry in _listed(root / "sys/class/drm"):
        if not re.fullmatch(r"card\d+", entry.name):
            continue  # a connector such as card0-DP-1, or a render node
        folder = (entry / "device").resolve()
        if not BUS_ID.fullmatch(folder.name):
            continue  # a display adapter on another bus, as in small boards and virtual machines
        found[folder.name] = Card(
            folder=folder,
            bus_id=folder.name,
            driver=(folder / "driver").resolve().name if (folder / "driver").exists() else "",
            vendor_id=read_int(folder / "vendor") or 0,
            device_id=read_int(folder / "device") or 0,
            revision=read_int(folder / "revision") or 0,
        )
    return [found[bus_id] for bus_id in sorted(found)]


def users(root: Path = Path("/")) -> dict[str, tuple[GpuUser, ...]]:
    """For each card's address the processes that hold memory of its own, largest first."""
    held: dict[str, dict[int, dict[str, int]]] = {}
    for process in _listed(root / "proc"):
        if not process.name.isdecimal():
            continue
        for bus_id, client, found in _clients(process):
            if found.own_bytes:
                by_pid = held.setdefault(bus_id, {})
                by_pid.setdefault(int(process.name), {})[client] = found.own_bytes
    return {
        bus_id: tuple(
            sorted(
                (
                    GpuUser(read_text(root / f"proc/{pid}/comm") or "?", sum(sizes.values()), pid)
                    for pid, sizes in by_pid.items()
                ),
                key=lambda user: (-(user.used_bytes or 0), user.pid),
            )
        )
        for bus_id, by_pid in held.items()
    }


def held_by_group(group: int, root: Path = Path("/")) -> dict[str, Held]:
    """What the processes of a process group hold, by the card's address.

    Only cards whose driver says so are in it. A client that several processes share counts once.
    """
    clients: dict[tuple[str, str], Held] = {}
    for process in _listed(root / "proc"):
        if process.name.isdecimal() and _group_of(process) == group:
            for bus_id, client, found in _clients(process):
                clients[bus_id, client] = found
    return {
        bus_id: Held(
            sum(held.own_bytes for (at, _), held in clients.items() if at == bus_id),
            sum(held.hosted_bytes for (at, _), held in clients.items() if at == bus_id),
            sum(held.evicted_bytes for (at, _), held in clients.items() if at == bus_id),
        )
        for bus_id in sorted({bus_id for bus_id, _ in clients})
    }


def _group_of(process: Path) -> int | None:
    """Of /proc/PID/stat the fifth field; the second is a name that may hold anything."""
    fields = (read_text(process / "stat") or "").rpartition(")")[2].split(maxsplit=3)
    match fields:
        case [_, _, group, *_] if group.isdecimal():
            return int(group)
    return None


def _clients(process: Path) -> Iterator[tuple[str, str, Held]]:
    """Card, client and its memory for each device file that a process has open.

    The same client may have several; the client's number tells.
    """
    for link in _listed(process / "fd"):
        try:
            if not os.readlink(link).startswith("/dev/dri/"):
                continue
        except OSError:
            continue
        pairs = (line.partition(":") for line in _lines(process / "fdinfo" / link.name))
        words = {key: value.strip() for key, _, value in pairs}
        bus_id, own = words.get("drm-pdev"), _region_bytes(words, _OWN_MEMORY)
        if bus_id and own is not None:
            hosted = _region_bytes(words, _RAM_MEMORY) or 0
            evicted = _size_bytes(words.get(_EVICTED, "")) or 0
            yield bus_id, words.get("drm-client-id", link.name), Held(own, hosted, evicted)


def _region_bytes(words: Mapping[str, str], region: re.Pattern[str]) -> int | None:
    """Of all regions of one kind together; None where the driver names none."""
    found: dict[str, int] = {}
    for key, value in words.items():
        match, n_bytes = region.fullmatch(key), _size_bytes(value)
        if match and n_bytes is not None:
            found[match["what"]] = found.get(match["what"], 0) + n_bytes
    return next((found[what] for what in _PREFERRED if what in found), None)


def _size_bytes(text: str) -> int | None:
    number, _, unit = text.partition(" ")
    is_size = number.isdecimal() and unit in _UNIT_BYTES
    return int(number) * _UNIT_BYTES[unit] if is_size else None


def _lines(path: Path) -> list[str]:
    return (read_text(path) or "").splitlines()


def _listed(folder: Path) -> list[Path]:
    """A folder's entries; none where it cannot be read, as another user's are not."""
    try:
        return sorted(folder.iterdir())
    except OSError:
        return []
