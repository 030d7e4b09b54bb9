"""Replays a routing through a cache, as the store would serve it.

An event is atomic: all its units are looked up before any of them makes another leave, and none of
them leaves while the event lasts. An event of more units than may be held at once goes in turns,
the next of which is asked for while the present one is held (native/plugin/products.cpp); each of
its units is asked for once here, where the plugin asks for each of its matrices.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from hotset.lab.counts import Counts, Outcome
from hotset.lab.policies import PROMPT_TOKENS, Policy, PolicyRule
from hotset.lab.pools import Pool, pools_of
from hotset.lab.routing import Routing

__all__ = ["simulate", "turns_of"]


def simulate(
    routing: Routing, rule: PolicyRule, *, share: float | None = None, ram_bytes: int = 0
) -> Outcome:
    """Replay `routing` from a cold start.

    A rule with a threshold serves misses where they lie if they are not worth a place; without
    one, every miss is brought in.

    Args:
        share: of all units that the memory holds; else `ram_bytes` tells.

    Raises:
        ConfigProblem: the memory holds no unit.
    """
    outcome = Outcome()
    for pool in pools_of(routing, share=share, ram_bytes=ram_bytes):
        _Cache(pool, rule, outcome).replay()
    return outcome


def turns_of(
    units: Sequence[int], num_tokens: int, num_slots: int
) -> Iterator[tuple[Sequence[int], Sequence[int]]]:
    """The units of an event, as many at a time as the store takes at once; with each turn, what
    may not leave meanwhile: its own units and those of the turn before."""
    most = max(1, num_slots // 2 if num_tokens > PROMPT_TOKENS else num_slots)
    if len(units) <= most:
        yield units, units
        return
    size = max(1, most // 2)
    # A single slot cannot hold the turn before as well.
    before = size if num_slots > 1 else 0
    for first in range(0, len(units), size):
        yield units[first : first + size], units[max(0, first - before) : first + size]


@dataclass(slots=True)
class _Cache:
    pool: Pool
    rule: PolicyRule
    outcome: Outcome

    def replay(self) -> None:
        pool = self.pool
        policy = Policy(self.rule, pool.layer_sizes, pool.num_slots)
        inside: set[int] = set()
        seen: set[int] = set()
        for event, layer, units in pool.events:
            counts = self.outcome.of(event.is_decode)
            before = counts.num_misses
            for turn, held in turns_of(units, event.num_tokens, pool.num_slots):
                policy.begin(layer, event.num_tokens, held)
                for unit in turn:
                    policy.used(unit)
                    counts.num_requests += 1
                    if unit in inside:
                        counts.num_hits += 1
                        continue
                    counts.num_compulsory += unit not in seen
                    self._bring_in(unit, policy, inside, counts)
            seen.update(units)
            counts.misses_per_event[counts.num_misses - before] += 1

    def _bring_in(self, unit: int, policy: Policy, inside: set[int], counts: Counts) -> None:
        if len(inside) == self.pool.num_slots:
            if not policy.admits(unit):
                counts.num_in_place += 1
                return
            inside.remove(policy.evict())
            counts.num_evictions += 1
        inside.add(unit)
        policy.enters(unit)
        counts.num_uploads += 1
        counts.upload_bytes += self.pool.expert_bytes
        counts.num_disk += 1
        counts.disk_bytes += self.pool.expert_bytes
