"""A start that failed for want of memory: what was asked for, where, and how much was missing."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from hotset.core.errors import MachineProblem
from hotset.core.experience import RAM
from hotset.core.units import MIB

__all__ = ["FirstLook", "MemoryRow", "MemoryShort", "memory_row", "shortage_in"]


class MemoryShort(MachineProblem):
    """The engine did not get the memory that it asked for.

    Attributes:
        device: the engine's name of it, or "RAM".
        asked_bytes: of the allocation that failed; 0 where the engine did not say.
        free_bytes: of the device, as the engine saw it; None where it did not say.
        beyond_bytes: by how much the engine takes more than was planned; 0 where nobody knows.
        what: the engine's words, or ours.
    """

    def __init__(
        self,
        message: str,
        *,
        device: str = RAM,
        asked_bytes: int = 0,
        free_bytes: int | None = None,
        beyond_bytes: int = 0,
        what: str = "",
    ) -> None:
        super().__init__(message)
        self.device = device
        self.asked_bytes = asked_bytes
        self.free_bytes = free_bytes
        self.beyond_bytes = beyond_bytes
        self.what = what


@dataclass(frozen=True, slots=True)
class MemoryRow:
    """One row of the engine's table of its memory, in whole MiB as it prints them.

    Attributes:
        device: its name; "Host" for RAM.
        free_bytes: what is free of it now; None where the table does not say.
    """

    device: str
    free_bytes: int | None
    model_bytes: int
    context_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.model_bytes + self.context_bytes + self.compute_bytes


# llama.cpp common/fit.cpp, common_memory_breakdown_print; older builds have it in src with another
# prefix. A row of a device is `| total = free + (self = model + context + compute) + rest |`.
_DEVICE_ROW = re.compile(
    r"memory_breakdown_print: \|\s+- (?P<name>\S+) \(.*\)\s*\|\s*\d+ = +(?P<free>\d+)"
    r" \+ \( *\d+ = +(?P<model>\d+) \+ +(?P<context>\d+) \+ +(?P<compute>\d+)\)"
)
_OTHER_ROW = re.compile(
    r"memory_breakdown_print: \|\s+- (?P<name>\S+)\s*\|\s*\d+ = +(?P<model>\d+)"
    r" \+ +(?P<context>\d+) \+ +(?P<compute>\d+)\s*\|"
)

# Who asks for memory, and how much: alloc_tensor_range and the graph allocator, CUDA, Vulkan.
_FAILED = (
    re.compile(r"failed to allocate (?P<name>\S+) buffer of size (?P<bytes>\d+)"),
    re.compile(r"allocating (?P<mib>[\d.]+) MiB on device (?P<index>\d+): cudaMalloc failed"),
    re.compile(r"Device memory allocation of size (?P<bytes>\d+) failed"),
    re.compile(r"unable to allocate (?P<name>\S+) buffer"),
)
_HOST_ROW = "Host"
_HOST_NAME = re.compile(r"^CPU|_Host$|^HOTSET")


def memory_row(line: str) -> MemoryRow | None:
    """The row of the engine's memory table that this line is, if it is one."""
    match = _DEVICE_ROW.search(line) or _OTHER_ROW.search(line)
    if match is None:
        return None
    found = match.groupdict()
    return MemoryRow(
        device=match["name"],
        free_bytes=int(found["free"]) * MIB if "free" in found else None,
        model_bytes=int(match["model"]) * MIB,
        context_bytes=int(match["context"]) * MIB,
        compute_bytes=int(match["compute"]) * MIB,
    )


class FirstLook:
    """The first table of memory in the log of one start, judged as soon as it is complete.

    Args:
        refuses: the judge; None lets everything pass.

    Attributes:
        problem: why the start must not go on, once that is known.
    """

    def __init__(self, refuses: Callable[[Sequence[MemoryRow]], MemoryShort | None] | None) -> None:
        self.problem: MemoryShort | None = None
        self._refuses = refuses
        self._rows: list[MemoryRow] = []

    def on_line(self, line: str) -> None:
        if self._refuses is None:
            return
        row = memory_row(line)
        if row is not None:
            self._rows.append(row)
        if row is not None and row.device == _HOST_ROW:  # it comes after all devices
            self.problem = self._refuses(self._rows)
            self._refuses = None


def shortage_in(lines: Iterable[str]) -> tuple[str, int]:
    """Of which device memory was refused ("RAM", its name, or "" where nobody said), and how much
    was asked for (0 where nobody said)."""
    device, asked_bytes = "", 0
    for line in lines:
        for pattern in _FAILED:
            match = pattern.search(line)
            if match is None:
                continue
            found = match.groupdict()
            if found.get("bytes"):
                asked_bytes = int(found["bytes"])
            elif found.get("mib"):
                asked_bytes = round(float(found["mib"]) * MIB)
            if found.get("name"):
                device = RAM if _HOST_NAME.search(found["name"]) else found["name"]
            elif found.get("index"):
                device = f"CUDA{found['index']}"
            break
    return device, asked_bytes
