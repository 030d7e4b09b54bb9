"""From recorded routing to what the planner asks: how often a cache of a given size hits."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import accumulate

from hotset.core.errors import ConfigProblem
from hotset.core.hits import HitCurve
from hotset.lab.policies import DEFAULT, POLICIES
from hotset.lab.routing import Routing
from hotset.lab.simulate import simulate

__all__ = ["joined", "recorded_curve"]

_SHARES = (0.02, 0.03, 0.05, 0.1, 0.2, 0.3, 0.4, 0.6, 0.8)


def joined(routings: Sequence[Routing]) -> Routing:
    """The recordings of one model as one, one after the other.

    Raises:
        ConfigProblem: they are of different models, or there is none.
    """
    if not routings:
        raise ConfigProblem("no recording is given; name at least one")
    first, events, batches = routings[0], [], 0
    for routing in routings:
        if routing.layers != first.layers:
            raise ConfigProblem(
                f"{first.name} and {routing.name} are recordings of different models; name those of"
                " one"
            )
        events += [replace(event, batch=event.batch + batches) for event in routing.events]
        batches = max(event.batch for event in events) + 1
    return replace(first, events=tuple(events))


def recorded_curve(routings: Sequence[Routing]) -> HitCurve:
    """What the store's policy hits in decoding, from one cold start through all recordings.

    Where all experts fit everything hits, as the first uses are forgotten in a long session.

    Raises:
        ConfigProblem: see `joined`, or nothing was decoded.
    """
    routing = joined(routings)
    if not routing.num_decode_tokens:
        raise ConfigProblem(f"{routing.name}: no token was decoded; record longer answers")
    rule = POLICIES[DEFAULT]
    shares, rates = [0.0], [0.0]
    for share in _SHARES:
        try:
            counts = simulate(routing, rule, share=share).decode
        except ConfigProblem:  # a memory below one expert holds nothing
            continue
        shares.append(share)
        rates.append(round(counts.hit_rate, 4))
    # Between policies and chance a larger memory may hit a little less; a plan must not.
    points = (*zip(shares, accumulate(rates, max), strict=True), (1.0, 1.0))
    count = f"{len(routings)} recordings" if len(routings) > 1 else "one recording"
    tokens = f"{routing.num_decode_tokens:,} decoded tokens"
    return HitCurve(points, f"this model's own routing: {count}, {tokens}")
