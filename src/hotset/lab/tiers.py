"""Replays a routing through two memories: a small fast one (a graphics card's) before a larger one
(RAM), before the disk."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotset.core.errors import ConfigProblem
from hotset.lab.counts import Counts, Outcome
from hotset.lab.policies import Policy, PolicyRule
from hotset.lab.pools import Pool, pools_of
from hotset.lab.routing import Routing
from hotset.lab.simulate import turns_of

__all__ = ["simulate_tiers"]


def simulate_tiers(
    routing: Routing,
    fast: PolicyRule,
    slow: PolicyRule,
    *,
    fast_share: float,
    slow_share: float,
    is_inclusive: bool = False,
) -> Outcome:
    """Replay `routing` from a cold start. Hits are those of the fast memory; a miss that is not
    read from the disk was found in the slow one.

    Exclusive: a unit is in one of the two, and what leaves the fast memory goes to the slow one.
    Inclusive: the slow memory holds what the fast one holds as well, so that it adds only what it
    is larger by, and what leaves the fast memory costs no copy.

    Args:
        fast: with a threshold, misses that are not worth a place are used where they lie.
        slow: its threshold does not count: what is read from the disk has to lie somewhere.

    Raises:
        ConfigProblem: a memory holds no unit, or an inclusive slow one is no larger than the fast.
    """
    if is_inclusive and slow_share <= fast_share:
        raise ConfigProblem(
            f"the second tier's capacity is {slow_share:.0%} and the first's {fast_share:.0%}: an"
            " inclusive second tier must be larger"
        )
    added = slow_share - fast_share if is_inclusive else slow_share
    outcome = Outcome()
    pairs = zip(pools_of(routing, share=fast_share), pools_of(routing, share=added), strict=True)
    for fast_pool, slow_pool in pairs:
        _Tiers(
            fast_pool,
            slow_pool,
            Policy(fast, fast_pool.layer_sizes, fast_pool.num_slots),
            Policy(slow, slow_pool.layer_sizes, slow_pool.num_slots),
            outcome,
        ).replay()
    return outcome


@dataclass(slots=True)
class _Tiers:
    fast_pool: Pool
    slow_pool: Pool
    fast: Policy
    slow: Policy
    outcome: Outcome
    in_fast: set[int] = field(default_factory=set)
    in_slow: set[int] = field(default_factory=set)

    def replay(self) -> None:
        seen: set[int] = set()
        num_slots = min(self.fast_pool.num_slots, self.slow_pool.num_slots)
        for event, layer, units in self.fast_pool.events:
            counts = self.outcome.of(event.is_decode)
            before = counts.num_misses
            for turn, held in turns_of(units, event.num_tokens, num_slots):
                self.fast.begin(layer, event.num_tokens, held)
                self.slow.begin(layer, event.num_tokens, held)
                for unit in turn:
                    self._ask(unit, counts, is_new=unit not in seen)
            seen.update(units)
            counts.misses_per_event[counts.num_misses - before] += 1

    def _ask(self, unit: int, counts: Counts, *, is_new: bool) -> None:
        self.fast.used(unit)
        self.slow.used(unit)
        counts.num_requests += 1
        if unit in self.in_fast:
            counts.num_hits += 1
            return
        counts.num_compulsory += is_new
        expert_bytes = self.fast_pool.expert_bytes
        is_full = len(self.in_fast) == self.fast_pool.num_slots
        goes_fast = not is_full or self.fast.admits(unit)
        if unit not in self.in_slow:
            counts.num_disk += 1
            counts.disk_bytes += expert_bytes
            if not goes_fast:
                self._put_slow(unit, counts)
        elif goes_fast:
            self.in_slow.remove(unit)
            self.slow.leaves(unit)
        if not goes_fast:
            counts.num_in_place += 1
            return
        if is_full:
            victim = self.fast.evict()
            self.in_fast.remove(victim)
            self._put_slow(victim, counts)
        self.in_fast.add(unit)
        self.fast.enters(unit)
        counts.num_uploads += 1
        counts.upload_bytes += expert_bytes

    def _put_slow(self, unit: int, counts: Counts) -> None:
        if len(self.in_slow) == self.slow_pool.num_slots:
            self.in_slow.remove(self.slow.evict())
            counts.num_evictions += 1
        self.in_slow.add(unit)
        self.slow.enters(unit)
