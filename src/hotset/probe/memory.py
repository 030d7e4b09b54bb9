"""RAM: how much there is, how much is free, and what a container may take of it.

Control groups in both versions: v2 has `memory.max` and `memory.current`, v1 has
`memory.limit_in_bytes` and `memory.usage_in_bytes`. Both count the page cache as use, so the
inactive file pages, which give way on demand, are added back to what is available. A limit may
stand at any level between the group of this process and the root of the hierarchy.
"""

from __future__ import annotations

import contextlib
import resource
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

import psutil

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
        swap_total_bytes, swap_free_bytes: swap space.
        lockable_bytes: how much one process may lock (RLIMIT_MEMLOCK); None without a limit.
    """

    total_bytes: int
    available_bytes: int
    limit_bytes: int | None
    swap_total_bytes: int
    swap_free_bytes: int
    lockable_bytes: int | None

    @property
    def usable_bytes(self) -> int:
        """Physical memory or the limit, whichever is lower."""
        return min(self.total_bytes, self.limit_bytes or self.total_bytes)


@dataclass(frozen=True, slots=True)
class _Group:
    limit_bytes: int
    available_bytes: int


def memory(root: Path = Path("/")) -> Memory:
    """Memory as it is now. `root` is where /proc and /sys are looked for."""
    ram = psutil.virtual_memory()
    swap = psutil.swap_memory()
    available, limit = ram.available, None
    for group in _groups(root):
        available = min(available, group.available_bytes)
        limit = group.limit_bytes if limit is None else min(limit, group.limit_bytes)
    return Memory(
        total_bytes=ram.total,
        available_bytes=max(0, available),
        limit_bytes=limit if limit is not None and limit < ram.total else None,
        swap_total_bytes=swap.total,
        swap_free_bytes=swap.free,
        lockable_bytes=_lockable_bytes(),
    )


def _lockable_bytes() -> int | None:
    soft, _ = resource.getrlimit(resource.RLIMIT_MEMLOCK)
    return None if soft == resource.RLIM_INFINITY else soft


def _groups(root: Path) -> Iterator[_Group]:
    """Every group with a limit, from that of this process upwards."""
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers == "":
            base, names = root / "sys/fs/cgroup", ("memory.max", "memory.current", "inactive_file")
        elif "memory" in controllers.split(","):
            base = root / "sys/fs/cgroup/memory"
            names = ("memory.limit_in_bytes", "memory.usage_in_bytes", "total_inactive_file")
        else:
            continue
        here = PurePosixPath(path.lstrip("/"))
        # In a container the path is the host's and may not exist below the mounted hierarchy:
        # then only its upper part, down to the root of what is mounted, can be read.
        for folder in [here, *here.parents]:
            group = _group(base / folder, *names)
            if group is not None:
                yield group


def _group(folder: Path, limit_name: str, usage_name: str, inactive_name: str) -> _Group | None:
    with contextlib.suppress(OSError, ValueError):
        limit = int((folder / limit_name).read_text())
        usage = int((folder / usage_name).read_text())
        if limit < _UNLIMITED_BYTES:
            inactive = _statistic(folder / "memory.stat", inactive_name)
            return _Group(limit, limit - usage + inactive)
    return None


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
