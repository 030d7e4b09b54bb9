"""Pages of counters, laid out by hand."""

from __future__ import annotations

import struct
from dataclasses import fields

from hotset.store import LayerCounters

NUM_TOTALS = 12
LAYER_BYTES = 136


def page_of(
    totals: list[int],
    layers: list[LayerCounters],
    *,
    version: int = 2,
    num_totals: int = NUM_TOTALS,
    num_layers: int | None = None,
    layer_bytes: int = LAYER_BYTES,
    state: int = 1,
    header_bytes: int = 32,
) -> bytes:
    """A page as docs/plugin.md lays it out."""
    page = b"HOTSETCT" + struct.pack("<II", version, num_totals)
    num_layers = len(layers) if num_layers is None else num_layers
    page += struct.pack("<IIII", num_layers, layer_bytes, state, header_bytes)
    page += struct.pack("<12Q", *totals)
    for layer in layers:
        name, copy, num_experts, *numbers = (getattr(layer, f.name) for f in fields(layer))
        page += name.encode().ljust(64, b"\0")
        page += struct.pack("<IIQ7Q", copy, num_experts, *numbers)
    return page


def layer(name: str, copy: int = 0, numbers: tuple[int, ...] = (0,) * 8) -> LayerCounters:
    return LayerCounters(name, copy, 128, *numbers)
