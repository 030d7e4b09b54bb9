"""Turns planned tensors into writable ones: the values of a synthetic model."""

from __future__ import annotations

import math
import random
import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import replace
from functools import partial
from operator import add
from statistics import NormalDist

from hotset.core.tensortypes import TensorType
from hotset.core.units import MIB
from hotset.gguf.synth.blocks import Tile
from hotset.gguf.synth.locality import LEAN
from hotset.gguf.synth.recipe import Fill, TensorPlan
from hotset.gguf.synth.writer import Chunk, TensorEntry

__all__ = ["Filler"]

_SMALL_TILE_BYTES = 1 * MIB
_LARGE_TILE_BYTES = 16 * MIB
_LARGE_TENSOR_BYTES = 8 * MIB


class Filler:
    """Fills the tensors of one model; everything follows from the seed.

    Args:
        seed: another seed, another model.
        silent: rows of the output matrix that stay zero. Among logits of a standard deviation
            of 3 their tokens are never the greedy choice, and next to never drawn.
    """

    def __init__(self, seed: int, silent: frozenset[int]) -> None:
        self._seed = seed
        self._silent = silent
        self._tiles: dict[tuple[str, float, int, bool], Tile] = {}

    def entry(self, plan: TensorPlan) -> TensorEntry:
        """The tensor with its data, which is made when it is written."""
        return TensorEntry(plan.name, plan.shape, plan.type, partial(self._chunks, plan))

    def _chunks(self, plan: TensorPlan) -> Iterator[Chunk]:
        rng = random.Random(f"{self._seed}/{plan.name}")
        match plan.fill:
            case Fill.NORM | Fill.MIXED_NORM | Fill.BIAS | Fill.DECAY:
                return iter([_values(plan, rng)])
            case Fill.ROUTER:
                return self._router(plan, rng)
            case Fill.OUTPUT | Fill.TIED:
                return self._rows_but_silent(plan, rng)
            case _:
                return self._slices(plan, rng)

    def _router(self, plan: TensorPlan, rng: random.Random) -> Iterator[Chunk]:
        """Router weights. Without popularity every expert is as likely as any other, token by
        token; with it, rows also have a weight along the vector that embeddings lean to."""
        if not plan.popularity:
            return self._slices(plan, rng)
        n_in, n_experts = plan.shape
        # Quantiles and not draws, so that every layer is as concentrated as the next.
        normal = NormalDist(0.0, plan.popularity)
        wanted = [normal.inv_cdf((i + 0.5) / n_experts) for i in range(n_experts)]
        rng.shuffle(wanted)
        weights = array("f", b"".join(self._slices(plan, rng)))
        rows = (weights[i * n_in : (i + 1) * n_in] for i in range(n_experts))
        pairs = zip(rows, wanted, strict=True)
        return (_with_lean(row, plan.gain * w / LEAN).tobytes() for row, w in pairs)

    def _slices(self, plan: TensorPlan, rng: random.Random) -> Iterator[Chunk]:
        """Each slice of a stack (each expert) starts at a place of its own in the tile."""
        blocks_per_row = plan.shape[0] // plan.type.block_elements
        n_slices = math.prod(plan.shape[2:])
        tile = self._tile(plan)
        for _ in range(n_slices):
            yield from tile.stream(blocks_per_row * plan.shape[1], rng)

    def _rows_but_silent(self, plan: TensorPlan, rng: random.Random) -> Iterator[Chunk]:
        blocks_per_row = plan.shape[0] // plan.type.block_elements
        n_rows = plan.shape[1]
        tile = self._tile(plan)
        # As an embedding a row of zeros would be divided by its own size somewhere.
        quiet = self._tile(replace(plan, gain=plan.gain / 16)) if plan.fill is Fill.TIED else None
        row = 0
        for silent in sorted(self._silent):
            yield from tile.stream(blocks_per_row * (silent - row), rng)
            if quiet is None:
                yield bytes(blocks_per_row * plan.type.block_bytes)
            else:
                yield from quiet.stream(blocks_per_row, rng)
            row = silent + 1
        yield from tile.stream(blocks_per_row * (n_rows - row), rng)

    def _tile(self, plan: TensorPlan) -> Tile:
        n_in = plan.shape[0]
        is_product = plan.fill in (Fill.MATRIX, Fill.OUTPUT, Fill.ROUTER)
        std = plan.gain / math.sqrt(n_in) if is_product else plan.gain
        n_bytes = plan.type.row_bytes(n_in) * math.prod(plan.shape[1:])
        is_large = n_bytes > _LARGE_TENSOR_BYTES
        n_blocks = (_LARGE_TILE_BYTES if is_large else _SMALL_TILE_BYTES) // plan.type.block_bytes
        return self._cached_tile(plan.type, std, n_blocks, plan.fill is Fill.LEANING)

    def _cached_tile(self, kind: TensorType, std: float, n_blocks: int, is_leaning: bool) -> Tile:
        key = (kind.name, std, n_blocks, is_leaning)
        if key not in self._tiles:
            seed = f"{self._seed}/{kind.name}/{std}/{n_blocks}"
            lean = LEAN if is_leaning else 0.0
            self._tiles[key] = Tile(kind, std, seed, n_blocks, lean=lean)
        return self._tiles[key]


def _with_lean(row: Sequence[float], logit: float) -> array[float]:
    """The row changed so that its product with the vector that embeddings lean to, the numbers
    1, -1, 1 ..., is `logit`."""
    missing = (logit - sum(row[0::2]) + sum(row[1::2])) / len(row)
    return array("f", map(add, row, [missing, -missing] * (len(row) // 2)))


def _values(plan: TensorPlan, rng: random.Random) -> bytes:
    n = math.prod(plan.shape)
    match plan.fill:
        case Fill.NORM:
            values = [plan.gain * rng.uniform(0.8, 1.2) for _ in range(n)]
        case Fill.MIXED_NORM:
            values = [plan.gain * rng.uniform(0.8, 1.2) * rng.choice((-1, 1)) for _ in range(n)]
        case Fill.DECAY:
            values = [-plan.gain * rng.uniform(0.5, 1.5) for _ in range(n)]
        case _:
            values = [rng.gauss(0.0, plan.gain) for _ in range(n)]
    return struct.pack(f"<{n}f", *values)
