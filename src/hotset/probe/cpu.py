"""The processor: its name and the cores that this process may use."""

from __future__ import annotations

import os
import platform
from dataclasses import dataclass
from pathlib import Path

import psutil

__all__ = ["Cpu", "cpu"]


@dataclass(frozen=True, slots=True)
class Cpu:
    """Attributes:
    name: as the system gives it.
    num_cores: physical cores within the affinity mask and the cgroup's quota.
    num_threads: logical processors within both.
    """

    name: str
    num_cores: int
    num_threads: int


def cpu(root: Path = Path("/")) -> Cpu:
    """The processor as this process sees it. `root` is where /proc and /sys are looked for."""
    logical = psutil.cpu_count(logical=True) or 1
    physical = psutil.cpu_count(logical=False) or logical
    allowed = logical
    if hasattr(os, "sched_getaffinity"):
        allowed = len(os.sched_getaffinity(0))
    quota = _quota(root)
    num_threads = max(1, min(allowed, quota) if quota else allowed)
    return Cpu(_name(root), max(1, min(num_threads, physical)), num_threads)


def _quota(root: Path) -> int:
    """Whole processors that the control group grants, rounded up; 0 without a limit."""
    try:
        limit, period = (root / "sys/fs/cgroup/cpu.max").read_text().split()
        return 0 if limit == "max" else -(-int(limit) // int(period))
    except (OSError, ValueError):
        return 0


def _name(root: Path) -> str:
    try:
        for line in (root / "proc/cpuinfo").read_text().splitlines():
            key, _, value = line.partition(":")
            if key.strip() == "model name":
                return value.strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
