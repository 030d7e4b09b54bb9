"""The best placement for one context and one KV type: batch, projector, split, expert cache."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from hotset.core.machine import Gpu, Machine
from hotset.core.memory import CONTEXT_STEP_TOKENS, CacheSettings
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import CacheUnits, cache_units, split_model
from hotset.core.placement import (
    DeviceBytes,
    Placement,
    Projector,
    ProjectorPlace,
    RamWeights,
    device_bytes,
    ram_weights,
)
from hotset.core.plan.buffers import Buffers
from hotset.core.plan.common import STORE_BYTES, cache_settings, default_threads
from hotset.core.plan.deal import Deal, Dealer
from hotset.core.plan.rating import mean_depth, nominal_depth, rate
from hotset.core.plan.types import ENGINE_BYTES, Speed, Wishes
from hotset.core.speed import HostExperts, HostTier, speed_model
from hotset.core.units import MIB

__all__ = ["Candidate", "Search", "usable_devices"]

_UBATCHES = (2048, 1024, 512)
# Memory that a card copies from at full speed cannot be given back; some RAM must stay beside it.
_PINNED_SPARE_BYTES = 512 * MIB
# Below two tokens' worth of experts a cache of recent ones finds next to nothing.
_LEAST_CACHE_CYCLES = 2
# A picture is some 4,000 patches, and one comes every so many tokens that are written.
_PICTURE_PATCHES = 4096
_PICTURE_EVERY_TOKENS = 2000
_DEVICE_PICTURE_REUSE = 10.0
_CPU_PICTURE_REUSE = 4.5


@dataclass(frozen=True, slots=True)
class Candidate:
    """A placement that fits.

    Attributes:
        ram_left_bytes: free RAM beside all of it; negative where weights stay on the disk.
        cost_s: what candidates are compared by; smaller is better.
    """

    settings: CacheSettings
    placement: Placement
    host: HostExperts
    devices: tuple[DeviceBytes, ...]
    weights: RamWeights
    host_cache_bytes: int
    compute_bytes: int
    projector_ram_bytes: int
    shared_bytes: int
    ram_left_bytes: int
    speed: Speed
    cost_s: float

    @property
    def device_weight_bytes(self) -> int:
        """Weights that are on devices, the engine's expert cache among them."""
        return sum(d.trunk_bytes + d.expert_bytes + d.moe_cache_bytes for d in self.devices)


def usable_devices(machine: Machine) -> tuple[Gpu, ...]:
    """The devices that a plan spreads a model over.

    One that shares RAM only where there is no other: beside a card it is slower than the CPU, with
    which it shares the memory's bandwidth.
    """
    cards = tuple(gpu for gpu in machine.devices if not gpu.shares_ram)
    return cards or machine.devices[:1]


class Search:
    """Placements of one model on one machine."""

    def __init__(
        self, spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None
    ) -> None:
        self._spec = spec
        self._machine = replace(machine, devices=usable_devices(machine))
        self._wishes = wishes
        self._projector = projector if wishes.has_vision else None
        self._parts = split_model(spec)
        self._threads = default_threads(machine, wishes)
        self._model = speed_model(spec, self._machine, threads=self._threads)
        self._buffers = Buffers(spec, self._parts, self._machine, wishes.reserve_bytes)

    def best(self, context: int, kv_type: str) -> Candidate | None:
        """The cheapest placement; with the projector where that fits at all. None: nothing fits."""
        for places in self._projector_places():
            found = [c for place in places for c in self._candidates(context, kv_type, place)]
            if found:
                return min(found, key=lambda c: c.cost_s)
        return None

    def fits(self, context: int, kv_type: str) -> bool:
        """Whether anything does, however slow. Cheaper than `best`."""
        settings = self._settings(context, kv_type, self._ubatches(context)[-1])
        return any(True for _ in self._placed(settings, ProjectorPlace.NONE))

    def largest(self, kv_type: str, limit: int) -> int:
        """The largest context that fits in any way, up to `limit`; 0 if none does."""
        low, high = 0, limit // CONTEXT_STEP_TOKENS
        while low < high:  # `low` steps fit, `high + 1` do not
            middle = (low + high + 1) // 2
            is_fitting = self.fits(middle * CONTEXT_STEP_TOKENS, kv_type)
            low, high = (middle, high) if is_fitting else (low, middle - 1)
        return low * CONTEXT_STEP_TOKENS

    def _projector_places(self) -> tuple[tuple[ProjectorPlace, ...], ...]:
        none = (ProjectorPlace.NONE,)
        if self._projector is None:
            return (none,)
        return ((ProjectorPlace.DEVICE, ProjectorPlace.RAM), none)

    def _ubatches(self, context: int) -> tuple[int, ...]:
        if self._wishes.ubatch_tokens:
            return (self._wishes.ubatch_tokens,)
        fitting = tuple(n for n in _UBATCHES if n <= context)
        return fitting or _UBATCHES[-1:]

    def _settings(self, context: int, kv_type: str, ubatch: int) -> CacheSettings:
        return cache_settings(self._wishes, kv_type, context, ubatch)

    def _candidates(self, context: int, kv_type: str, place: ProjectorPlace) -> list[Candidate]:
        return [
            candidate
            for ubatch in self._ubatches(context)
            for candidate in self._placed(self._settings(context, kv_type, ubatch), place)
        ]

    def _placed(self, settings: CacheSettings, place: ProjectorPlace) -> Iterator[Candidate]:
        """Every sensible placement for one batch size."""
        caches, deep = (
            cache_units(self._spec, settings, depth(settings))
            for depth in (nominal_depth, mean_depth)
        )
        for is_hosted in self._modes():
            deals = self._deals(settings, deep, place, is_hosted=is_hosted)
            is_any = False
            for deal in deals:
                if is_any and not any(deal.units):
                    break  # only where nothing else does
                for placement in self._placements(deal, place, is_hosted=is_hosted):
                    found = self._candidate(settings, caches, deep, placement, is_hosted=is_hosted)
                    if found:
                        is_any = True
                        yield found

    def _deals(
        self, settings: CacheSettings, deep: CacheUnits, place: ProjectorPlace, *, is_hosted: bool
    ) -> tuple[Deal, ...]:
        """Splits with all units on devices, and, where those do not do, with blocks in RAM.

        The devices compute the blocks in RAM, too, and have less room then, and their buffers take
        long to count. So they are left out where splits with all units are the fastest and the
        fullest even with the room of all, and RAM holds the experts that they leave there.
        """
        whole = self._dealt(settings, deep, place, is_hosted=is_hosted, n_samples=())
        if not is_hosted or self._wishes.cpu_moe_layers is not None:
            return whole
        n_units, n_blocks = self._parts.n_units, self._spec.n_layers
        are_full = whole and all(sum(deal.units) == n_units for deal in whole)
        if are_full and self._has_room_for_experts(settings):
            return (*whole, _nothing(self._machine.devices))
        samples = tuple({1, min(2, n_blocks), n_blocks // 2 or 1, n_blocks})
        parted = self._dealt(settings, deep, place, is_hosted=True, n_samples=samples)
        return (
            *(deal for deal in whole if sum(deal.units) == n_units),
            *(deal for deal in parted if sum(deal.units) < n_units),
            _nothing(self._machine.devices),
        )

    def _has_room_for_experts(self, settings: CacheSettings) -> bool:
        """Whether RAM holds all of them beside whatever else may be there, devices left aside."""
        needed = self._parts.ram_bytes + sum(self._parts.expert_bytes) + ENGINE_BYTES
        needed += self._buffers.ram_compute(settings, (), 0) + _PINNED_SPARE_BYTES
        needed += self._projector.total_bytes if self._projector else 0
        is_beside_devices = any(gpu.shares_ram for gpu in self._machine.devices)
        return needed <= self._machine.ram_available_bytes and not is_beside_devices

    def _dealt(
        self,
        settings: CacheSettings,
        deep: CacheUnits,
        place: ProjectorPlace,
        *,
        is_hosted: bool,
        n_samples: tuple[int, ...],
    ) -> tuple[Deal, ...]:
        """Splits for the room that there is beside the largest buffers of all `n_samples`, numbers
        of blocks in RAM."""
        rooms = [
            min(
                self._buffers.room(settings, gpu, is_hosted=is_hosted, n_blocks_in_ram=n)
                for n in n_samples or (0,)
            )
            for gpu in self._machine.devices
        ]
        if place is ProjectorPlace.DEVICE and self._projector:
            rooms[0] -= self._projector.total_bytes
            if rooms[0] < 0:
                return ()
        return Dealer(
            self._model, self._parts, deep, tuple(rooms),
            hosted=is_hosted, forced=self._wishes.cpu_moe_layers,
        ).deals()  # fmt: skip

    def _modes(self) -> tuple[bool, ...]:
        """Whether weights of offloaded blocks may stay in RAM: both, unless the user has said."""
        if self._wishes.cpu_moe_layers is None:
            return (False, True)
        return (self._wishes.cpu_moe_layers > 0,)

    def _placements(
        self, deal: Deal, place: ProjectorPlace, *, is_hosted: bool
    ) -> Iterator[Placement]:
        plain = Placement(units=deal.units, host_moe_units=deal.host_moe_units, projector=place)
        yield plain
        is_whole = sum(deal.units) == self._parts.n_units
        experts = self._spec.experts
        if not (self._wishes.has_moe_cache and is_hosted and is_whole and experts):
            return
        # How the engine shares its cache between devices is its own affair: one device only.
        if len(deal.units) > 1 or self._wishes.cpu_moe_layers is not None:
            return
        held = sum(self._parts.expert_bytes)
        kept = held - sum(self._parts.expert_bytes[unit] for unit in deal.host_moe_units)
        cache = (deal.left_bytes[0] + kept) // MIB * MIB
        if _LEAST_CACHE_CYCLES * experts.bytes_per_token <= cache < held:
            yield replace(plain, host_moe_units=self._parts.moe_units, moe_cache_bytes=cache)

    def _candidate(
        self,
        settings: CacheSettings,
        caches: CacheUnits,
        deep: CacheUnits,
        placement: Placement,
        *,
        is_hosted: bool,
    ) -> Candidate | None:
        """The placement with its sums; None if RAM does not hold what must be there, or a device
        what the samples did not show."""
        first = self._parts.n_units - placement.n_offloaded
        n_in_ram = min(first, self._spec.n_layers)
        devices = tuple(
            device_bytes(
                self._parts, caches, placement, index, gpu,
                compute_bytes=self._buffers.compute(
                    settings, gpu, is_hosted=is_hosted, n_blocks_in_ram=n_in_ram
                ),
                projector=self._projector,
                budget_bytes=self._buffers.budget(gpu),
            )
            for index, gpu in enumerate(self._machine.devices)
        )  # fmt: skip
        devices = tuple(
            replace(taken, overhead_bytes=self._buffers.overhead(gpu))
            if taken.overhead_bytes
            else taken
            for taken, gpu in zip(devices, self._machine.devices, strict=True)
        )
        if any(taken.total_bytes > max(0, taken.budget_bytes) for taken in devices):
            return None
        shared = sum(
            taken.total_bytes
            for taken, gpu in zip(devices, self._machine.devices, strict=True)
            if gpu.shares_ram
        )
        host_cache = sum(caches.n_bytes[:first])
        # Of all devices, used or not: a device that grows until it is used must not cost RAM.
        backends = {gpu.backend for gpu in self._machine.devices if placement.n_offloaded}
        compute = with_store = self._buffers.ram_compute(settings, backends, n_in_ram)
        if self._wishes.can_store:
            with_store = self._buffers.ram_compute(settings, backends, n_in_ram, has_store=True)
        projector_ram = 0
        if self._projector and placement.projector is ProjectorPlace.RAM:
            projector_ram = self._projector.total_bytes
        beside = host_cache + projector_ram + shared + ENGINE_BYTES
        weights = ram_weights(self._parts, placement)
        host = self._host(placement, weights, beside + compute, beside + with_store)
        if host is None:
            return None
        if host.tier is HostTier.STORE:
            compute = with_store
        fixed = beside + compute
        speed = rate(
            self._model, self._parts, caches, deep, placement, host, settings.ubatch_tokens
        )
        return Candidate(
            settings=settings,
            placement=placement,
            host=host,
            devices=devices,
            weights=weights,
            host_cache_bytes=host_cache,
            compute_bytes=compute,
            projector_ram_bytes=projector_ram,
            shared_bytes=shared,
            ram_left_bytes=self._machine.ram_available_bytes - fixed - weights.total_bytes,
            speed=speed,
            cost_s=speed.cost_s + self._picture_cost_s(placement.projector),
        )

    def _host(
        self, placement: Placement, weights: RamWeights, fixed: int, fixed_with_store: int
    ) -> HostExperts | None:
        """Where the weights are that no device has; None if RAM is too small for the rest."""
        left = self._machine.ram_available_bytes - fixed
        if left < 0:
            return None
        if weights.total_bytes <= left:
            is_copied = placement.host_moe_units or placement.n_offloaded < self._parts.n_units
            is_pinned = (
                bool(placement.n_offloaded and is_copied)
                and not self._machine.devices[0].shares_ram
                and left - weights.total_bytes >= _PINNED_SPARE_BYTES
            )
            return HostExperts(HostTier.RAM, weights.expert_bytes, is_pinned)
        if placement.moe_cache_bytes:
            return None  # the engine's cache is filled from RAM
        experts = self._spec.experts
        others = fixed_with_store + weights.trunk_bytes + STORE_BYTES
        store = self._machine.ram_available_bytes - others
        if not (self._wishes.can_store and experts and weights.expert_bytes):
            return HostExperts(HostTier.PAGES, left)
        least = 2 * experts.bytes_per_token // len(experts.layers)
        if store < least:
            return HostExperts(HostTier.PAGES, left)
        return HostExperts(HostTier.STORE, store)

    def _picture_cost_s(self, place: ProjectorPlace) -> float:
        """What pictures add to a written token, on average."""
        if place is ProjectorPlace.NONE or self._projector is None:
            return 0.0
        if place is ProjectorPlace.DEVICE:
            rate_bytes_s = self._model.device_bytes_s[0] * _DEVICE_PICTURE_REUSE
        else:
            rate_bytes_s = self._model.host_bytes_s * _CPU_PICTURE_REUSE
        read = self._projector.n_bytes * _PICTURE_PATCHES
        return read / rate_bytes_s / _PICTURE_EVERY_TOKENS


def _nothing(devices: tuple[Gpu, ...]) -> Deal:
    """No device takes anything: what remains where not even the last unit fits."""
    none = tuple(0 for _ in devices)
    return Deal(none, (), none)
