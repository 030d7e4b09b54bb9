"""The processor: its name, its instruction sets, and the cores that this process may use.

Sources (kernel documentation): `topology/core_cpus_list` of each processor tells which share a
core (admin-guide/cputopology.rst). Which cores are the fast ones: on Intel the PMU devices cpu_core
and cpu_atom list both kinds (ABI/testing/sysfs-bus-event_source-devices), elsewhere
`cpu_capacity` (arm64) or, where that is missing, `cpufreq/cpuinfo_max_freq`.
"""

from __future__ import annotations

import os
import platform
import re
from dataclasses import dataclass
from pathlib import Path

import psutil

from hotset.probe.cgroups import groups
from hotset.probe.sysfs import cpu_numbers, read_int, read_text

__all__ = ["Cpu", "cpu"]

# What llama.cpp has code for, as Linux writes it, and under the name that this project uses.
_FEATURES = {
    **{name: name for name in ("avx", "avx2", "fma", "f16c", "bmi2", "avx_vnni")},
    **{name: name for name in ("avx512f", "avx512bw", "avx512_vnni", "avx512_bf16")},
    **{name: name for name in ("avx512vbmi", "amx_tile", "amx_int8", "amx_bf16")},
    **{name: name for name in ("sve", "sve2", "sme", "i8mm", "bf16")},
    "asimd": "neon",
    "asimddp": "dotprod",
}
# Turbo and favoured cores of one kind differ by a few percent; two kinds by more than this.
_SLOW_SHARE = 0.85


@dataclass(frozen=True, slots=True)
class Cpu:
    """Attributes:
    name: as the system gives it.
    num_cores: physical cores within the affinity mask and the cgroup's quota.
    num_threads: logical processors within both.
    num_performance_cores: the fast ones among `num_cores`; None with one kind of core, or where
        nothing tells.
    features: instruction sets that matter to llama.cpp; empty where nothing tells.
    """

    name: str
    num_cores: int
    num_threads: int
    num_performance_cores: int | None = None
    features: frozenset[str] = frozenset()


def cpu(root: Path = Path("/"), allowed: frozenset[int] | None = None) -> Cpu:
    """The processor as this process sees it.

    Args:
        root: where /proc and /sys are looked for.
        allowed: the processors that it may run on; None asks the system.
    """
    if allowed is None and hasattr(os, "sched_getaffinity"):
        allowed = frozenset(os.sched_getaffinity(0))
    if not allowed:
        allowed = frozenset(range(psutil.cpu_count(logical=True) or 1))
    cores = _cores(allowed, root)
    num_threads = min(len(allowed), _quota(root) or len(allowed))
    num_cores = min(num_threads, len(cores))
    fast = sum(1 for core in cores if core & _fast(allowed, root))
    return Cpu(
        name=_name(root),
        num_cores=num_cores,
        num_threads=num_threads,
        num_performance_cores=min(num_cores, fast) if 0 < fast < len(cores) else None,
        features=_features(root),
    )


def _cores(allowed: frozenset[int], root: Path) -> set[frozenset[int]]:
    """Physical cores, each as the processors on it that may be used."""
    base = root / "sys/devices/system/cpu"
    cores = {
        cpu_numbers(base / f"cpu{number}/topology/core_cpus_list") & allowed for number in allowed
    }
    if frozenset() not in cores:
        return cores
    physical = min(psutil.cpu_count(logical=False) or len(allowed), len(allowed))
    return {frozenset({number}) for number in sorted(allowed)[:physical]}


def _fast(allowed: frozenset[int], root: Path) -> frozenset[int]:
    """The processors of the fast kind; all of them, or none, where there is one kind."""
    if atom := cpu_numbers(root / "sys/devices/cpu_atom/cpus"):
        return allowed - atom
    base = root / "sys/devices/system/cpu"
    for name in ("cpu_capacity", "cpufreq/cpuinfo_max_freq"):
        speeds = {number: read_int(base / f"cpu{number}/{name}") for number in allowed}
        known = {number: speed for number, speed in speeds.items() if speed}
        if known:
            least = max(known.values()) * _SLOW_SHARE
            return frozenset(number for number, speed in known.items() if speed >= least)
    return frozenset()


def _quota(root: Path) -> int:
    """Whole processors that the tightest control group grants, rounded up; 0 without a limit."""
    found = []
    for group in groups("cpu", root):
        if group.version == 2:
            words = (read_text(group.folder / "cpu.max") or "").split()
        else:
            names = ("cpu.cfs_quota_us", "cpu.cfs_period_us")
            words = [read_text(group.folder / name) or "" for name in names]
        if len(words) == 2 and all(re.fullmatch(r"[1-9]\d{0,11}", word) for word in words):
            found.append(-(-int(words[0]) // int(words[1])))
    return min(found, default=0)


def _name(root: Path) -> str:
    return _first(root, "model name") or platform.processor() or platform.machine()


def _features(root: Path) -> frozenset[str]:
    words = (_first(root, "flags") or _first(root, "Features")).split()
    return frozenset(_FEATURES[word] for word in words if word in _FEATURES)


def _first(root: Path, wanted: str) -> str:
    """The first value under this key in /proc/cpuinfo; "" if there is none."""
    for line in (read_text(root / "proc/cpuinfo") or "").splitlines():
        key, _, value = line.partition(":")
        if key.strip() == wanted:
            return value.strip()
    return ""
