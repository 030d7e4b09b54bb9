"""Where in a model's files lies what every token needs, and where the experts."""

from __future__ import annotations

import re

from hotset.core.modelspec import Role
from hotset.core.roles import place_tensor
from hotset.gguf.shards import ModelFile

__all__ = ["ByteRange", "ranges_beside_experts"]

ByteRange = tuple[int, int]
"""First byte in the file, and the byte behind the last."""

# What is multiplied by the router's choice. Biases and scales of experts are needed as a whole.
_CHOSEN = re.compile(r"_(ch)?exps\.weight$")
# Memory comes in pages of at least this. Two ranges closer than that touch the same page or
# neighbours, so nothing is gained by keeping them apart.
_PAGE_BYTES = 4096


def ranges_beside_experts(model: ModelFile, n_layers: int) -> tuple[tuple[ByteRange, ...], ...]:
    """For each file of `model`, in order, the ranges that an engine needs whatever the router says.

    That is all but the experts' matrices and the MTP head, which an engine leaves alone unless it
    drafts with it. Ranges are ascending and at least a page apart.

    Args:
        n_layers: blocks without the MTP head (`ModelSpec.n_layers`).
    """
    needed: list[list[ByteRange]] = [[] for _ in model.paths]
    for index, tensor in model.placed_tensors():
        role = place_tensor(tensor.name, n_layers).role
        is_chosen = role is Role.ROUTED_EXPERTS and _CHOSEN.search(tensor.name) is not None
        if tensor.n_bytes and role is not Role.MTP and not is_chosen:
            needed[index].append((tensor.offset_bytes, tensor.offset_bytes + tensor.n_bytes))
    return tuple(_merged(sorted(ranges)) for ranges in needed)


def _merged(ranges: list[ByteRange]) -> tuple[ByteRange, ...]:
    merged: list[ByteRange] = []
    for begin, end in ranges:
        if merged and begin - merged[-1][1] < _PAGE_BYTES:
            merged[-1] = (merged[-1][0], end)
        else:
            merged.append((begin, end))
    return tuple(merged)
