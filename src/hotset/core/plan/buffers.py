"""What must be on a device, or in RAM, before weights may; and the room that is left there."""

from __future__ import annotations

from collections.abc import Collection

from hotset.core.experience import RAM
from hotset.core.machine import Backend, Gpu, Machine
from hotset.core.memory import CacheSettings
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import Parts, Staging
from hotset.core.placement import (
    default_reserve_bytes,
    device_compute_bytes,
    host_compute_bytes,
    overhead_bytes,
)
from hotset.core.plan.shape import device_shape, ram_shape
from hotset.core.plan.types import ENGINE_BYTES
from hotset.core.streaming import Streams

__all__ = ["Buffers"]


class Buffers:
    """Of one model on one machine: estimates, corrected by what starts on it have shown.

    Args:
        reserve_bytes: to leave free on each device; None for the device's default.
    """

    def __init__(
        self, spec: ModelSpec, parts: Parts, machine: Machine, reserve_bytes: int | None
    ) -> None:
        self._spec = spec
        self._parts = parts
        self._machine = machine
        self._reserve_bytes = reserve_bytes
        self._streams = Streams(spec)
        # Buffers of devices: they take longer to count than all else, and come again and again.
        self._computes: dict[tuple[CacheSettings, Backend | None, bool, int], int] = {}
        self._ram_computes: dict[
            tuple[CacheSettings, frozenset[Backend | None], int, bool], int
        ] = {}

    def budget(self, gpu: Gpu) -> int:
        """What may be taken of a device."""
        reserve = self._reserve_bytes
        if reserve is None:
            reserve = default_reserve_bytes(gpu)
        return gpu.free_bytes - reserve - self._machine.experience.spilled(gpu.engine_name)

    def room(
        self,
        settings: CacheSettings,
        gpu: Gpu,
        *,
        is_hosted: bool,
        n_blocks_in_ram: int,
    ) -> int:
        """Bytes of a device for weights and caches; negative where its buffers do not fit."""
        room = self.budget(gpu)
        if gpu.shares_ram:
            beside = self.ram_compute(settings, (), 0) + self._parts.ram_bytes
            room = min(room, self._machine.ram_available_bytes - beside - ENGINE_BYTES)
        room -= self.overhead(gpu)
        room -= self.compute(settings, gpu, is_hosted=is_hosted, n_blocks_in_ram=n_blocks_in_ram)
        return room

    def compute(
        self, settings: CacheSettings, gpu: Gpu, *, is_hosted: bool, n_blocks_in_ram: int
    ) -> int:
        """The engine's buffer on a device."""
        key = (settings, gpu.backend, is_hosted, n_blocks_in_ram)
        estimate = self._computes.get(key)
        if estimate is None:
            estimate = self._computes[key] = device_compute_bytes(
                self._spec,
                settings,
                gpu.backend,
                staging=self._parts.staging if is_hosted else Staging(),
                is_pipelined=len(self._machine.devices) > 1 and not is_hosted,
                n_blocks_in_ram=n_blocks_in_ram,
                streams=self._streams,
            )
        shape = device_shape(settings, is_hosted=is_hosted, n_blocks_in_ram=n_blocks_in_ram)
        return self._machine.experience.compute(gpu.engine_name, shape, estimate)

    def ram_compute(
        self,
        settings: CacheSettings,
        backends: Collection[Backend | None],
        n_blocks_in_ram: int,
        *,
        has_store: bool = False,
    ) -> int:
        """The CPU's buffer beside devices of `backends`; with the store's own if there is one."""
        key = (settings, frozenset(backends), n_blocks_in_ram, has_store)
        estimate = self._ram_computes.get(key)
        if estimate is None:
            estimate = self._ram_computes[key] = host_compute_bytes(
                self._spec, settings, backends, n_blocks_in_ram, has_store=has_store
            )
        shape = ram_shape(settings, is_alone=False, has_store=has_store)
        return self._machine.experience.compute(RAM, shape, estimate)

    def overhead(self, gpu: Gpu) -> int:
        """What the engine's process takes of a device beside buffers."""
        return self._machine.experience.overhead(gpu.engine_name, overhead_bytes(gpu))
