"""Routings for the tests: made up, with a seed."""

from __future__ import annotations

import random
from array import array
from collections.abc import Sequence

from hotset.lab.routing import Routing, routing_of
from hotset.store.trace import TraceBatch, TraceLayer

Record = TraceLayer | TraceBatch


def layers(sizes: Sequence[int], expert_bytes: Sequence[int]) -> list[TraceLayer]:
    return [
        TraceLayer(number, f"blk.{number}", size, n_bytes)
        for number, (size, n_bytes) in enumerate(zip(sizes, expert_bytes, strict=True))
    ]


def batch(number: int, layer: int, tokens: Sequence[Sequence[int]]) -> TraceBatch:
    ids = array("H", [expert for token in tokens for expert in token])
    return TraceBatch(number, layer, len(tokens), len(tokens), len(tokens[0]), ids)


def skewed_records(
    sizes: Sequence[int],
    expert_bytes: Sequence[int],
    *,
    used: int,
    batches: Sequence[int],
    seed: int,
) -> list[Record]:
    """Tokens that mostly choose among a few experts of each layer, which change slowly.

    Args:
        batches: tokens of each batch.
    """
    rng = random.Random(seed)
    hot = [rng.sample(range(size), min(size, 2 * used)) for size in sizes]
    records: list[Record] = [*layers(sizes, expert_bytes)]
    for number, num_tokens in enumerate(batches):
        for layer, size in enumerate(sizes):
            if rng.random() < 0.1:
                hot[layer][rng.randrange(len(hot[layer]))] = rng.randrange(size)
            records.append(
                batch(
                    number,
                    layer,
                    [_choice(rng, hot[layer], size, used) for _ in range(num_tokens)],
                )
            )
    return records


def skewed(
    sizes: Sequence[int],
    expert_bytes: Sequence[int],
    *,
    used: int,
    batches: Sequence[int],
    seed: int,
) -> Routing:
    records = skewed_records(sizes, expert_bytes, used=used, batches=batches, seed=seed)
    return routing_of(f"skewed {seed}", records)


def _choice(rng: random.Random, hot: Sequence[int], size: int, used: int) -> list[int]:
    chosen: dict[int, None] = {}
    while len(chosen) < used:
        chosen[rng.choice(hot) if rng.random() < 0.7 else rng.randrange(size)] = None
    return list(chosen)
