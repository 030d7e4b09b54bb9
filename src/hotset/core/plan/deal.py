"""Dealing a model's units out to devices: the split with the shortest time per token that fits.

Units keep their order, as the engine wants it, so each device gets a run of them. Within a run the
experts of the first blocks stay in RAM where not all fit. The best split is found exactly, device
after device: the best way to place the first b units on the first d devices extends the best way
to place the first a units on d - 1 of them.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import NamedTuple

from hotset.core.parts import CacheUnits, Parts, sums
from hotset.core.speed import SpeedModel

__all__ = ["Deal", "Dealer"]

_NEVER = float("inf")


@dataclass(frozen=True, slots=True)
class Deal:
    """A split.

    Attributes:
        units: how many units each device takes.
        host_moe_units: those of them whose experts stay in RAM.
        left_bytes: free of each device's room.
    """

    units: tuple[int, ...]
    host_moe_units: tuple[int, ...]
    left_bytes: tuple[int, ...]


class _Run(NamedTuple):
    """Units [start, stop) on one device, the experts of those before `split` in RAM."""

    start: int
    stop: int
    split: int
    seconds: float
    left_bytes: int


class Dealer:
    """Deals for one model, machine and cache setting.

    Args:
        rooms: bytes of each device for weights and caches.
        hosted: weights may stay in RAM; else a deal has all units with all of their experts.
        forced: exactly the experts of units before it stay in RAM; None leaves that open.
    """

    def __init__(
        self,
        model: SpeedModel,
        parts: Parts,
        caches: CacheUnits,
        rooms: tuple[int, ...],
        *,
        hosted: bool,
        forced: int | None = None,
    ) -> None:
        self._rooms = rooms
        self._hosted = hosted
        self._forced = forced
        self._n_units = parts.n_units
        self._copy = parts.output_copy_bytes
        self._expert_bytes = parts.expert_bytes
        # Sums over the first units, so that a run's figures are two look-ups each.
        self._experts = sums(parts.expert_bytes)
        self._kept = sums(
            tuple(t + c for t, c in zip(parts.trunk_bytes, caches.n_bytes, strict=True))
        )
        self._whole_bytes = self._kept[-1] + self._experts[-1] + self._copy
        reads = sums(
            tuple(t + c for t, c in zip(parts.trunk_bytes, caches.token_bytes, strict=True))
        )
        routed = sums(parts.token_expert_bytes)
        crossings = sums(tuple(1 if n else 0 for n in parts.expert_bytes))
        rates, host = model.rates, model.host_bytes_s
        self._host_s = [(r + e) / host for r, e in zip(reads, routed, strict=True)]
        self._in_ram_s = [
            e / host + n * rates.crossing_s for e, n in zip(routed, crossings, strict=True)
        ]
        self._on_device_s = [[e / speed for e in routed] for speed in model.device_bytes_s]
        self._trunk_s = [
            [r / speed + unit * rates.unit_s for unit, r in enumerate(reads)]
            for speed in model.device_bytes_s
        ]

    def deals(self) -> tuple[Deal, ...]:
        """Splits worth a look; empty if none fits, not even of the last unit.

        Returns:
            For one device: the fastest, and the one that leaves the fewest units in RAM, which is
            better where RAM is short. For several: the fastest of those that leave the fewest in
            RAM, and, if there are any, the fastest of each device alone, as one that is slower
            than RAM does harm. Trying every number of units would take too long there.
        """
        if not self._hosted and self._whole_bytes > sum(room for room in self._rooms if room > 0):
            return ()
        if self._forced is not None or not self._hosted:
            whole = self._deal_from(0)
            return (whole[1],) if whole else ()
        if len(self._rooms) == 1:
            return self._of_one()
        low, high = 0, self._n_units
        while low < high:  # dealing from `high` on fits, or nothing does
            middle = (low + high) // 2
            low, high = (low, middle) if self._deal_from(middle) else (middle + 1, high)
        fewest = self._deal_from(low) if low < self._n_units else None
        if fewest is None:
            return ()
        return (fewest[1], *(self._each_alone() if low else ()))

    def _of_one(self) -> tuple[Deal, ...]:
        """The fastest, and the one with the fewest units in RAM; once if they are the same."""
        every = [self._deal_from(first) for first in range(self._n_units)]
        fitting = [dealt for dealt in every if dealt]
        if not fitting:
            return ()
        fastest = min(fitting, key=lambda dealt: dealt[0])
        return tuple({id(dealt): dealt[1] for dealt in (fastest, fitting[0])}.values())

    def _each_alone(self) -> Iterator[Deal]:
        """The fastest split for each device, with the others out of the game."""
        rooms = self._rooms
        for device, room in enumerate(rooms):
            self._rooms = tuple(room if index == device else -1 for index in range(len(rooms)))
            yield from self._of_one()[:1]
        self._rooms = rooms

    def _deal_from(self, first: int) -> tuple[float, Deal] | None:
        """The fastest split of the units from `first` on, and its seconds for a token."""
        best: dict[int, tuple[float, tuple[_Run, ...]]] = {first: (0.0, ())}
        for device in range(len(self._rooms)):
            is_last = device == len(self._rooms) - 1
            stops = (self._n_units,) if is_last else range(first, self._n_units + 1)
            extended: dict[int, tuple[float, tuple[_Run, ...]]] = {}
            for stop in stops:
                for start, (seconds, runs) in best.items():
                    if start > stop or (
                        stop in extended and seconds >= extended[stop][0]
                    ):  # it can only grow
                        continue
                    run = self._run(device, start, stop)
                    total = seconds + run.seconds if run else _NEVER
                    if run and (stop not in extended or total < extended[stop][0]):
                        extended[stop] = (total, (*runs, run))
            best = extended
        if self._n_units not in best:
            return None
        seconds, runs = best[self._n_units]
        return seconds + self._host_s[first], Deal(
            units=tuple(run.stop - run.start for run in runs),
            host_moe_units=tuple(
                unit for run in runs for unit in range(run.start, run.split)
                if self._expert_bytes[unit]
            ),
            left_bytes=tuple(run.left_bytes for run in runs),
        )  # fmt: skip

    def _run(self, device: int, start: int, stop: int) -> _Run | None:
        """The best of one device for a run of units; None where it does not fit."""
        if start == stop:
            return _Run(start, stop, stop, 0.0, max(0, self._rooms[device]))
        left = self._rooms[device] - (self._kept[stop] - self._kept[start])
        left -= self._copy if stop == self._n_units else 0
        if left < 0:
            return None
        experts = self._experts
        if self._forced is not None:
            split = min(max(self._forced, start), stop)
        elif not self._hosted:
            split = start
        else:
            # All that fit, or none: one of the two ends is the fastest.
            split = bisect_left(experts, experts[stop] - left, start, stop)
        left -= experts[stop] - experts[split]
        if left < 0:
            return None
        on_device, in_ram = self._on_device_s[device], self._in_ram_s
        is_open = self._forced is None and self._hosted
        if is_open and in_ram[stop] - on_device[stop] < in_ram[split] - on_device[split]:
            left += experts[stop] - experts[split]
            split = stop
        seconds = self._trunk_s[device][stop] - self._trunk_s[device][start]
        seconds += on_device[stop] - on_device[split] + in_ram[split] - in_ram[start]
        return _Run(start, stop, split, seconds, left)
