"""What the router chose, as a cache sees it: one event per layer and batch, with a set of experts.

A trace of the engine (docs/trace.md) and the public recordings (`hotset.lab.csvtrace`) both become
a `Routing`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from itertools import accumulate
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.lab.csvtrace import is_csv_trace, read_csv_trace
from hotset.store.trace import TraceBatch, TraceLayer, read_trace

__all__ = ["Event", "Routing", "load_routing", "read_records", "routing_of"]


@dataclass(frozen=True, slots=True)
class Event:
    """One layer of one batch.

    Attributes:
        batch: the same for all layers of one pass through the model.
        num_tokens: tokens of the batch in this layer.
        is_decode: the next tokens of some answers, and no piece of a prompt.
        experts: distinct, in the order in which the store is asked for them.
        num_choices: experts chosen, counted for every token.
    """

    batch: int
    layer: int
    num_tokens: int
    is_decode: bool
    experts: tuple[int, ...]
    num_choices: int


@dataclass(frozen=True)
class Routing:
    """A whole recording.

    Attributes:
        name: of its file, or of what made it.
        layers: with experts, in the model's order; their numbers count from 0.
        events: in the order in which the engine came to them.
    """

    name: str
    layers: tuple[TraceLayer, ...]
    events: tuple[Event, ...]

    @cached_property
    def first_units(self) -> tuple[int, ...]:
        """The number of each layer's expert 0, where all experts of all layers are numbered."""
        return (0, *accumulate(layer.num_experts for layer in self.layers))[:-1]

    @property
    def num_units(self) -> int:
        return sum(layer.num_experts for layer in self.layers)

    @property
    def all_bytes(self) -> int:
        """Of all experts of all layers."""
        return sum(layer.num_experts * layer.expert_bytes for layer in self.layers)

    def decode_only(self) -> Routing:
        """The same without its prompts."""
        return replace(self, events=tuple(event for event in self.events if event.is_decode))

    @cached_property
    def num_decode_tokens(self) -> int:
        """Decoded tokens: those of the first layer of each batch."""
        first: dict[int, int] = {}
        for event in self.events:
            if event.is_decode:
                first.setdefault(event.batch, event.num_tokens)
        return sum(first.values())

    @cached_property
    def cycle_units(self) -> float:
        """Experts that one decoded token touches, all layers together; 0 without any."""
        choices = sum(event.num_choices for event in self.events if event.is_decode)
        return choices / self.num_decode_tokens if self.num_decode_tokens else 0.0


def routing_of(name: str, records: Iterable[TraceLayer | TraceBatch]) -> Routing:
    """The recording that these records of a trace make."""
    layers, events = [], []
    for record in records:
        if isinstance(record, TraceLayer):
            layers.append(record)
        else:
            distinct = dict.fromkeys(record.experts)
            # As the plugin does: a token's experts as they are, those of several by their number.
            experts = tuple(distinct) if record.num_tokens == 1 else tuple(sorted(distinct))
            events.append(
                Event(
                    record.batch,
                    record.layer,
                    record.num_tokens,
                    record.is_decode,
                    experts,
                    len(record.experts),
                )
            )
    return Routing(name, tuple(layers), tuple(events))


def read_records(path: Path) -> Iterator[TraceLayer | TraceBatch]:
    """The records of a trace of the engine or of a CSV file, in order.

    Raises:
        FileProblem: neither, or damaged; with the place.
    """
    return read_csv_trace(path) if is_csv_trace(path) else read_trace(path)


def load_routing(path: Path) -> Routing:
    """A recording from a trace of the engine or from a CSV file.

    Raises:
        FileProblem: neither, or damaged, or without a single event.
    """
    routing = routing_of(path.stem, read_records(path))
    if not routing.events:
        raise FileProblem(f"routing trace {path}: holds no routing; record it again")
    return routing
