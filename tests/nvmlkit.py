"""A stand-in for NVIDIA's driver library."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from types import SimpleNamespace
from typing import Any, TypeVar

from hotset.core.units import GIB

T = TypeVar("T")


class NVMLError(Exception):
    """As the binding's: raised for whatever the driver does not answer."""


@dataclass
class FakeCard:
    """What the driver answers for one card; None: it refuses to."""

    name: str | bytes | None = "NVIDIA GeForce RTX 3060"
    total: int | None = 12 * GIB
    free: int = 11 * GIB
    bus_id: str | bytes | None = "00000000:01:00.0"
    generation: int | None = 4
    lanes: int | None = 16
    lanes_now: int | None = 16
    clock_mhz: int | None = 7501
    bus_bits: int | None = 192
    drawing: list[tuple[int, int | None]] | None = field(default_factory=list)
    computing: list[tuple[int, int | None]] | None = field(default_factory=list)


class FakeNvml:
    """A module like pynvml, with these cards. None: a card that has fallen off the bus."""

    NVMLError = NVMLError
    NVML_CLOCK_MEM = 2

    def __init__(self, cards: list[FakeCard | None], *, starts: bool = True) -> None:
        self._cards, self._starts = cards, starts
        self.num_open = 0

    def nvmlInit(self) -> None:  # noqa: N802 - the driver's own names, here and below
        if not self._starts:
            raise NVMLError("Driver/library version mismatch")
        self.num_open += 1

    def nvmlShutdown(self) -> None:  # noqa: N802
        self.num_open -= 1
        raise NVMLError("Unknown Error")  # which changes nothing

    def nvmlDeviceGetCount(self) -> int:  # noqa: N802
        return len(self._cards)

    def nvmlDeviceGetHandleByIndex(self, number: int) -> FakeCard:  # noqa: N802
        return _answer(self._cards[number])

    def __getattr__(self, name: str) -> Callable[..., Any]:
        def processes(pairs: list[tuple[int, int | None]] | None) -> Any:
            found = _answer(pairs)
            return [SimpleNamespace(pid=pid, usedGpuMemory=used) for pid, used in found]

        answers: dict[str, Callable[[FakeCard], Any]] = {
            "MemoryInfo": lambda c: SimpleNamespace(total=_answer(c.total), free=c.free),
            "Name": lambda c: _answer(c.name),
            "PciInfo": lambda c: SimpleNamespace(busId=_answer(c.bus_id)),
            "MaxPcieLinkGeneration": lambda c: _answer(c.generation),
            "MaxPcieLinkWidth": lambda c: _answer(c.lanes),
            "CurrPcieLinkWidth": lambda c: _answer(c.lanes_now),
            "MemoryBusWidth": lambda c: _answer(c.bus_bits),
            "GraphicsRunningProcesses": lambda c: processes(c.drawing),
            "ComputeRunningProcesses": lambda c: processes(c.computing),
        }
        if name == "nvmlDeviceGetMaxClockInfo":
            return lambda card, which: _answer(card.clock_mhz if which == 2 else None)
        return answers[name.removeprefix("nvmlDeviceGet")]


def _answer(value: T | None) -> T:
    if value is None:
        raise NVMLError("Not Supported")
    return value
