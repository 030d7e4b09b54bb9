"""The bound: what a cache could do that knew the future (Belady's rule, with bypass)."""

from __future__ import annotations

import heapq
import math

from hotset.lab.counts import Counts, Outcome
from hotset.lab.pools import Pool, pools_of
from hotset.lab.routing import Routing

__all__ = ["simulate_belady"]


def simulate_belady(routing: Routing, *, share: float) -> Outcome:
    """Replay `routing` and keep, after each event, the units that are wanted again soonest.

    A unit need not be kept at all, and only decoding counts as wanting one: so no policy has more
    hits in decoding with the same slots. Units of other pools' sizes cannot use a pool's slots, as
    for any policy here.

    Raises:
        ConfigProblem: the memory holds no unit.
    """
    outcome = Outcome()
    for pool in pools_of(routing, share=share):
        _replay(pool, outcome)
    return outcome


def _next_wants(pool: Pool) -> list[list[float]]:
    """For each event's units, the number of the next event of decoding that wants them."""
    wants: list[list[float]] = [[] for _ in pool.events]
    coming: dict[int, float] = {}
    for number in range(len(pool.events) - 1, -1, -1):
        event, _, units = pool.events[number]
        wants[number] = [coming.get(unit, math.inf) for unit in units]
        if event.is_decode:
            coming.update(dict.fromkeys(units, float(number)))
    return wants


def _replay(pool: Pool, outcome: Outcome) -> None:
    inside: dict[int, float] = {}  # unit -> when it is wanted next
    latest: list[tuple[float, int]] = []  # (-wanted, unit); holds entries that are no longer true
    seen: set[int] = set()
    for (event, _, units), wants in zip(pool.events, _next_wants(pool), strict=True):
        counts = outcome.of(event.is_decode)
        before = counts.num_misses
        for unit, wanted in zip(units, wants, strict=True):
            counts.num_requests += 1
            if unit in inside:
                counts.num_hits += 1
                inside[unit] = wanted
                heapq.heappush(latest, (-wanted, unit))
            else:
                counts.num_compulsory += unit not in seen
        missing = [
            (wanted, unit) for unit, wanted in zip(units, wants, strict=True) if unit not in inside
        ]
        for wanted, unit in sorted(missing):
            _consider(pool, unit, wanted, inside, latest, counts)
        seen.update(units)
        counts.misses_per_event[counts.num_misses - before] += 1


def _consider(
    pool: Pool,
    unit: int,
    wanted: float,
    inside: dict[int, float],
    latest: list[tuple[float, int]],
    counts: Counts,
) -> None:
    """Keep the unit if it is wanted sooner than another that is kept."""
    counts.num_disk += 1
    counts.disk_bytes += pool.expert_bytes
    if len(inside) == pool.num_slots:
        while inside.get(latest[0][1]) != -latest[0][0]:
            heapq.heappop(latest)
        if -latest[0][0] <= wanted:
            counts.num_in_place += 1
            return
        _, victim = heapq.heappop(latest)
        del inside[victim]
        counts.num_evictions += 1
    inside[unit] = wanted
    heapq.heappush(latest, (-wanted, unit))
    counts.num_uploads += 1
    counts.upload_bytes += pool.expert_bytes
