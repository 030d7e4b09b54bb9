"""Memory of graphics cards that the engines of a gateway share."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from hotset.core.placement import default_reserve_bytes

if TYPE_CHECKING:
    from hotset.core.machine import Gpu, Machine
    from hotset.core.placement import DeviceBytes
    from hotset.core.plan import Wishes

__all__ = ["Cards", "free_by_address", "granted_only"]

# Asking a driver can take some 20 ms.
_LOOK_EVERY_S = 0.2


def free_by_address() -> dict[str, int]:
    """Free bytes of each card whose driver says so, by PCI address."""
    from hotset.probe.graphics import graphics
    from hotset.probe.memory import memory

    ram = memory()
    found = graphics(ram.usable_bytes, ram.available_bytes).gpus
    return {gpu.bus_id: gpu.free_bytes for gpu in found if gpu.bus_id}


@dataclass(slots=True)
class _Use:
    """What one engine takes. While it loads, whatever has become less since its start is its own.

    Attributes:
        free_before: when it started.
        most: by its plan.
        taken: as measured once it was up; None before.
    """

    free_before: Mapping[str, int]
    most: Mapping[str, int]
    taken: Mapping[str, int] | None = None


class Cards:
    """How many bytes all engines together may take of each card. Safe for several threads.

    Devices whose memory is RAM are left out: what they take is counted there.

    Args:
        devices: as the engine lists them, before this gateway has started anything.
        reserve_bytes: left alone on each; None for the planner's own choice.
        look: free bytes by PCI address. A card that it does not know keeps what it had free.
    """

    def __init__(
        self,
        devices: Sequence[Gpu],
        reserve_bytes: int | None = None,
        look: Callable[[], Mapping[str, int]] = free_by_address,
    ) -> None:
        self._devices = {gpu.engine_name: gpu for gpu in devices if not gpu.shares_ram}
        self._reserve = {
            name: default_reserve_bytes(gpu) if reserve_bytes is None else reserve_bytes
            for name, gpu in self._devices.items()
        }
        self._look = look
        self._looked_s = -_LOOK_EVERY_S
        self._seen: Mapping[str, int] = {}
        self._uses: dict[str, _Use] = {}
        self._lock = threading.Lock()

    def taken(self, devices: Sequence[DeviceBytes]) -> dict[str, int]:
        """A plan's bytes on cards, by the engine's name for them; where it takes none, no entry."""
        found = ((one.device, one.total_bytes) for one in devices)
        return {name: n for name, n in found if n and name in self._devices}

    def room(self) -> dict[str, int]:
        """What is free of each card and what engines of ours have, without the reserve."""
        with self._lock:
            free = self._free()
            ours = [_taken(use, free) for use in self._uses.values()]
        return {
            name: max(0, free[name] + sum(use.get(name, 0) for use in ours) - self._reserve[name])
            for name in self._devices
        }

    def begin(self, model_id: str, most: Mapping[str, int]) -> None:
        """An engine starts, with a plan for so many bytes."""
        with self._lock:
            self._uses[model_id] = _Use(self._free(is_now=True), most)

    def settle(self, model_id: str) -> None:
        """The engine is up: what it took since its start stays its own."""
        with self._lock:
            use = self._uses[model_id]
            use.taken = _taken(use, self._free(is_now=True))

    def end(self, model_id: str) -> None:
        """The engine is gone."""
        with self._lock:
            self._uses.pop(model_id, None)
            self._looked_s = -_LOOK_EVERY_S

    def _free(self, *, is_now: bool = False) -> dict[str, int]:
        """Free bytes by the engine's names."""
        now_s = time.monotonic()
        if self._devices and (is_now or now_s - self._looked_s >= _LOOK_EVERY_S):
            self._looked_s, self._seen = now_s, self._look()
        return {
            name: self._seen.get(gpu.bus_id, gpu.free_bytes) for name, gpu in self._devices.items()
        }


def _taken(use: _Use, free: Mapping[str, int]) -> Mapping[str, int]:
    if use.taken is not None:
        return use.taken
    less = {name: before - free[name] for name, before in use.free_before.items()}
    return {name: min(max(0, n), use.most.get(name, 0)) for name, n in less.items()}


def granted_only(
    machine: Machine, wishes: Wishes, granted: Mapping[str, int]
) -> tuple[Machine, Wishes]:
    """The machine with no more of each card than what was granted, and wishes that go with it.

    What is free now may be meant for another engine that is just starting. What was granted has the
    reserve taken off already.
    """

    def limited(gpu: Gpu) -> Gpu:
        if gpu.shares_ram:
            return gpu
        reserve = wishes.reserve_bytes
        left = gpu.free_bytes - (default_reserve_bytes(gpu) if reserve is None else reserve)
        most = granted.get(gpu.engine_name, left)
        return replace(gpu, free_bytes=max(0, min(gpu.free_bytes, most)))

    devices = tuple(map(limited, machine.devices))
    return replace(machine, devices=devices), replace(wishes, reserve_bytes=0)
