"""What `hotset store status` says of the engines that run."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from hotset.core.units import format_bytes
from hotset.store.counters import Counters, LayerCounters, StoreState
from hotset.store.pages import RunningStore

__all__ = ["running_lines"]

_COMMAND_CHARACTERS = 70
_STATES = {
    StoreState.NONE: "has not opened the store",
    StoreState.OPEN: "",
    StoreState.CLOSED: "has closed the store",
}
_COLUMNS = "  {:<10} {:>14} {:>10} {:>12} {:>6} {:>10} {:>10} {:>10}"


def running_lines(stores: Sequence[RunningStore], *, with_layers: bool) -> Iterator[str]:
    """A line per engine, and a table of its layers if wanted."""
    if not stores:
        yield "running with the store: none"
    for store in stores:
        command = store.command
        if len(command) > _COMMAND_CHARACTERS:
            command = f"{command[:_COMMAND_CHARACTERS]}..."
        yield f"running with the store: process {store.pid}, {command}"
        if store.counters is None:
            yield f"  {store.reason}"
        else:
            yield f"  {_totals(store.counters)}"
            if with_layers:
                yield from _table(store.counters.layers)


def _totals(counters: Counters) -> str:
    parts = [
        _STATES[counters.state],
        f"{format_bytes(counters.resident_bytes)} of {format_bytes(counters.budget_bytes)} in use",
        f"{counters.num_requests:,} experts asked for",
        f"{_share(counters)} from RAM" if counters.num_requests else "",
        f"{format_bytes(counters.read_bytes)} read",
        f"{counters.wait_ns / 1e9:.1f} s waited",
        f"{counters.num_evictions:,} out",
    ]
    return " · ".join(part for part in parts if part)


def _table(layers: Sequence[LayerCounters]) -> Iterator[str]:
    yield _COLUMNS.format("LAYER", "EXPERTS", "IN RAM", "ASKED", "HITS", "READ", "WAITED", "OUT")
    for layer in layers:
        yield _COLUMNS.format(
            layer.name + (f" ({layer.copy + 1})" if layer.copy else ""),
            f"{layer.num_experts:,} x {format_bytes(layer.expert_bytes)}",
            format_bytes(layer.resident_bytes),
            f"{layer.num_requests:,}",
            _share(layer),
            format_bytes(layer.read_bytes),
            f"{layer.wait_ns / 1e9:.1f} s",
            f"{layer.num_evictions:,}",
        )


def _share(counted: Counters | LayerCounters) -> str:
    return f"{counted.num_hits / counted.num_requests:.0%}" if counted.num_requests else "-"
