"""NVIDIA cards through NVML, the driver's own library (package nvidia-ml-py).

The library is loaded only where a driver is. Every question may be refused on its own (notebooks,
virtual machines, old cards); then that fact is unknown and the rest stands. Bandwidth, where no
published figure is at hand: the highest memory clock times two transfers times the bus width, as
the driver states them.
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from hotset.core.gpus import known_gpu
from hotset.core.machine import Gpu, GpuUser, Link
from hotset.probe.sysfs import read_text

__all__ = ["nvidia_gpus"]

# Where a driver leaves its mark: on Linux, and in WSL, whose library comes from Windows.
_SIGNS = ("proc/driver/nvidia/version", "dev/nvidiactl", "usr/lib/wsl/lib/libnvidia-ml.so.1")


def nvidia_gpus(
    ram_total_bytes: int,
    ram_available_bytes: int,
    root: Path = Path("/"),
    nvml: Any = None,
    *,
    with_users: bool = False,
) -> tuple[list[Gpu], str]:
    """The cards, and "" or the reason why a driver that is there does not answer.

    Args:
        ram_total_bytes, ram_available_bytes: the memory of a device that has none of its own.
        nvml: a module like `pynvml`; None loads that if `root` shows a driver.
        with_users: also ask which processes hold memory.
    """
    if nvml is None:
        if not any((root / sign).exists() for sign in _SIGNS):
            return [], ""
        import pynvml

        nvml = pynvml
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return [], str(error)
    try:
        count = nvml.nvmlDeviceGetCount()
        found = [
            _gpu(nvml, number, ram_total_bytes, ram_available_bytes, root, with_users=with_users)
            for number in range(count)
        ]
        return [gpu for gpu in found if gpu is not None], ""
    except nvml.NVMLError as error:
        return [], str(error)
    finally:
        with contextlib.suppress(nvml.NVMLError):
            nvml.nvmlShutdown()


def _gpu(
    nvml: Any,
    number: int,
    ram_total_bytes: int,
    ram_available_bytes: int,
    root: Path,
    *,
    with_users: bool,
) -> Gpu | None:
    def ask(question: Callable[..., Any], *more: Any) -> Any:
        try:
            return question(handle, *more)
        except nvml.NVMLError:
            return None

    try:
        handle = nvml.nvmlDeviceGetHandleByIndex(number)
    except nvml.NVMLError:
        return None  # a card that has fallen off the bus; the others still work
    memory = ask(nvml.nvmlDeviceGetMemoryInfo)
    shares_ram = memory is None
    total = ram_total_bytes if shares_ram else int(memory.total)
    free = ram_available_bytes if shares_ram else int(memory.free)
    name = _text(ask(nvml.nvmlDeviceGetName)) or "NVIDIA card"
    known = known_gpu(name, total)
    bandwidth = known.bandwidth_bytes_s if known else None
    pci = ask(nvml.nvmlDeviceGetPciInfo)
    return Gpu(
        name=name,
        total_bytes=total,
        free_bytes=max(0, min(free, total)),
        vendor="nvidia",
        is_integrated=shares_ram,
        shares_ram=shares_ram,
        bandwidth_bytes_s=bandwidth or _bandwidth(nvml, ask),
        link=None if shares_ram else _link(nvml, ask),
        bus_id=_bus_id(pci),
        used_by=tuple(_users(nvml, ask, root)) if with_users else (),
    )


def _bandwidth(nvml: Any, ask: Callable[..., Any]) -> int | None:
    mhz = ask(nvml.nvmlDeviceGetMaxClockInfo, nvml.NVML_CLOCK_MEM)
    bits = ask(nvml.nvmlDeviceGetMemoryBusWidth)
    return mhz * 10**6 * 2 * bits // 8 if mhz and bits else None


def _link(nvml: Any, ask: Callable[..., Any]) -> Link | None:
    """Generation: the best that card and slot can do together. Lanes: those in use, since the
    driver's maximum does not see how many are wired."""
    generation = ask(nvml.nvmlDeviceGetMaxPcieLinkGeneration)
    lanes = ask(nvml.nvmlDeviceGetCurrPcieLinkWidth) or ask(nvml.nvmlDeviceGetMaxPcieLinkWidth)
    if generation not in range(1, 7) or lanes not in (1, 2, 4, 8, 16):
        return None
    return Link(generation, lanes)


def _bus_id(pci: Any) -> str:
    """NVML writes the domain with eight digits, the kernel with four."""
    text = _text(pci.busId).lower() if pci else ""
    return re.sub(r"^0{4}(?=[0-9a-f]{4}:)", "", text)


def _users(nvml: Any, ask: Callable[..., Any], root: Path) -> Iterator[GpuUser]:
    held: dict[int, int | None] = {}
    for question in (
        nvml.nvmlDeviceGetGraphicsRunningProcesses,
        nvml.nvmlDeviceGetComputeRunningProcesses,
    ):
        for process in ask(question) or ():
            # A process that draws and computes is in both lists, with the same memory.
            held[process.pid] = process.usedGpuMemory or held.get(process.pid)
    for pid, used_bytes in sorted(held.items(), key=lambda item: (-(item[1] or 0), item[0])):
        yield GpuUser(read_text(root / f"proc/{pid}/comm") or "?", used_bytes, pid)


def _text(value: object) -> str:
    """Old versions of the binding give bytes."""
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")
