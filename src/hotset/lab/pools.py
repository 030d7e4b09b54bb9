"""How a budget becomes slots: layers whose experts have one size share a pool, as in the store."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotset.core.errors import ConfigProblem
from hotset.lab.routing import Event, Routing

__all__ = ["Pool", "pools_of"]

_BLOCK_BYTES = 4096


@dataclass(frozen=True, slots=True)
class Pool:
    """Layers that compete for the same slots, and their share of the events.

    Attributes:
        layers: their numbers in the routing.
        expert_bytes: of one unit.
        num_slots: units that fit.
        events: of these layers, with their layer's number in the pool and the pool's unit numbers.
    """

    layers: tuple[int, ...]
    layer_sizes: tuple[int, ...]
    expert_bytes: int
    num_slots: int
    events: tuple[tuple[Event, int, tuple[int, ...]], ...]


def pools_of(routing: Routing, *, share: float | None = None, ram_bytes: int = 0) -> list[Pool]:
    """The pools of a memory that holds `share` of all units, or as many as fit `ram_bytes`.

    Bytes are turned into slots as the store does for experts of one matrix: a slot is a block
    larger, so that a direct read can go straight to its place.

    Raises:
        ConfigProblem: a pool would have no slot.
    """
    sizes = dict.fromkeys(layer.expert_bytes for layer in routing.layers)
    if share is None:
        slots_bytes = sum(
            layer.num_experts * _slot_bytes(layer.expert_bytes) for layer in routing.layers
        )
        share = min(1.0, ram_bytes / slots_bytes)
    # The plugin adds layers by name, so that blk.10 comes before blk.2. Between units of equal
    # worth the first one leaves.
    order = sorted(range(len(routing.layers)), key=lambda layer: routing.layers[layer].name)
    pools = []
    for expert_bytes in sizes:
        layers = [at for at in order if routing.layers[at].expert_bytes == expert_bytes]
        layer_sizes = [routing.layers[layer].num_experts for layer in layers]
        # The smallest step above, so that a tenth of 480 units is 48 whatever a tenth is in binary.
        num_slots = min(sum(layer_sizes), int(share * sum(layer_sizes) + 1e-9))
        if not num_slots:
            raise ConfigProblem(
                f"a capacity of {share:.2%} holds no expert of {sum(layer_sizes)}; give more"
            )
        pools.append(
            Pool(
                tuple(layers),
                tuple(layer_sizes),
                expert_bytes,
                num_slots,
                _events(routing, layers, layer_sizes),
            )
        )
    return pools


def _slot_bytes(expert_bytes: int) -> int:
    return -(-(expert_bytes + _BLOCK_BYTES - 1) // _BLOCK_BYTES) * _BLOCK_BYTES


def _events(
    routing: Routing, layers: Sequence[int], layer_sizes: Sequence[int]
) -> tuple[tuple[Event, int, tuple[int, ...]], ...]:
    numbers = {layer: number for number, layer in enumerate(layers)}
    firsts = [sum(layer_sizes[:number]) for number in range(len(layers))]
    return tuple(
        (event, number, tuple([firsts[number] + expert for expert in event.experts]))
        for event in routing.events
        if (number := numbers.get(event.layer)) is not None
    )
