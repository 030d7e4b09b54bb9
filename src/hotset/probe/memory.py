"""RAM and swap: how much there is, how much is free, and what a container may take of it.

Control groups in both versions: v2 has `memory.max`, `memory.current`, `memory.swap.max` and
`memory.swap.current`; v1 has `memory.limit_in_bytes`, `memory.usage_in_bytes` and, for memory and
swap together, `memory.memsw.*`. Usage counts the page cache, so the inactive file pages, which
give way on demand, are added back to what is available.

Pressure: `some avg10` of PSI, the share of the last ten seconds in which some process waited for
memory (kernel documentation, accounting/psi.rst).
"""

from __future__ import annotations

import re
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import psutil

from hotset.core.units import KIB
from hotset.probe.cgroups import Group, groups
from hotset.probe.sysfs import read_int, read_text

__all__ = ["Memory", "memory"]

# v1 writes "no limit" as the largest multiple of the page size in 63 bits.
_UNLIMITED_BYTES = 1 << 60


@dataclass(frozen=True, slots=True)
class Memory:
    """Bytes throughout.

    Attributes:
        total_bytes: physical memory.
        available_bytes: can be taken now without swapping, limits considered.
        limit_bytes: the lowest control-group limit; None without one.
        swap_total_bytes, swap_free_bytes: swap space, control-group limits considered.
        lockable_bytes: how much one process may lock (RLIMIT_MEMLOCK); None without a limit.
        pressure_percent: of the last ten seconds, in which something waited for memory; None
            where the kernel does not say.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_total_bytes: int
    swap_free_bytes: int
    lockable_bytes: int | None
    pressure_percent: float | None = None

    @property
    def usable_bytes(self) -> int:
        """Physical memory or the limit, whichever is lower."""
        return min(self.total_bytes, self.limit_bytes or self.total_bytes)


@dataclass(frozen=True, slots=True)
class _Limit:
    """What a control group grants, and how much of it is left."""

    limit_bytes: int
    left_bytes: int


def memory(root: Path = Path("/")) -> Memory:
    """Memory as it is now. `root` is where /proc and /sys are looked for."""
    total, available, swap_total, swap_free = _system(root)
    limit: int | None = None
    for group in groups("memory", root):
        if ram := _ram_limit(group):
            available = min(available, ram.left_bytes)
            limit = ram.limit_bytes if limit is None else min(limit, ram.limit_bytes)
        if swap := _swap_limit(group, ram):
            swap_total = min(swap_total, swap.limit_bytes)
            swap_free = min(swap_free, swap.left_bytes)
    return Memory(
        total_bytes=total,
        available_bytes=max(0, available),
        limit_bytes=limit if limit is not None and limit < total else None,
        swap_total_bytes=swap_total,
        swap_free_bytes=max(0, swap_free),
        lockable_bytes=_lockable_bytes(),
        pressure_percent=max(_pressures(root), default=None),
    )


def _system(root: Path) -> tuple[int, int, int, int]:
    """Total and available RAM, total and free swap."""
    text = read_text(root / "proc/meminfo") or ""
    known = {
        match[1]: int(match[2]) * KIB
        for match in re.finditer(r"^(\w+): +(\d{1,15}) kB$", text, re.MULTILINE | re.ASCII)
    }
    if known.get("MemTotal") and "MemAvailable" in known:
        total = known["MemTotal"]
        swap = known.get("SwapTotal", 0)
        available = min(known["MemAvailable"], total)
        return total, available, swap, min(known.get("SwapFree", 0), swap)
    ram, swap_space = psutil.virtual_memory(), psutil.swap_memory()
    return ram.total, ram.available, swap_space.total, swap_space.free


def _lockable_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _ram_limit(group: Group) -> _Limit | None:
    if group.version == 2:
        return _limit(group.folder, "memory.max", "memory.current", "inactive_file")
    names = "memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file"
    return _limit(group.folder, *names)


def _swap_limit(group: Group, ram: _Limit | None) -> _Limit | None:
    if group.version == 2:
        return _limit(group.folder, "memory.swap.max", "memory.swap.current")
    both = _limit(group.folder, "memory.memsw.limit_in_bytes", "memory.memsw.usage_in_bytes")
    if both is None or ram is None:
        return None
    return _Limit(max(0, both.limit_bytes - ram.limit_bytes), both.left_bytes)


def _limit(
    folder: Path, limit_name: str, usage_name: str, inactive_name: str = ""
) -> _Limit | None:
    limit, usage = read_int(folder / limit_name), read_int(folder / usage_name)
    if limit is None or usage is None or limit >= _UNLIMITED_BYTES:
        return None
    reclaimable = _statistic(folder / "memory.stat", inactive_name) if inactive_name else 0
    return _Limit(limit, limit - usage + reclaimable)


def _statistic(path: Path, name: str) -> int:
    match = re.search(rf"^{name} (\d{{1,18}})$", read_text(path) or "", re.MULTILINE | re.ASCII)
    return int(match[1]) if match else 0


def _pressures(root: Path) -> Iterator[float]:
    """Of the machine, and of the groups that this process is in."""
    folders = [group.folder for group in groups("memory", root) if group.version == 2]
    paths = [folder / "memory.pressure" for folder in folders]
    for path in [root / "proc/pressure/memory", *paths]:
        match = re.search(r"^some avg10=(\d{1,3}\.\d\d) ", read_text(path) or "", re.MULTILINE)
        if match:
            yield float(match[1])
