"""What the expert store takes of RAM for a batch, beside its memory for experts.

The store is a device of the engine, and computes the products of a block's routed experts and what
lies between them (native/plugin/device.cpp says what it takes). The results lie in a buffer of its
own, for which ggml's scheduler plans as for every device's: they are replayed here on the engine's
allocator, in the order of build_moe_ffn in llama.cpp's src/llama-graph.cpp. Beside the CPU all of
it is read where it lies. A card's results are copied into this buffer first.

What goes on to the rest of the block, weighted by the router, takes the place of what down gives,
and leaves when the experts of a token are summed up. So every block finds the buffer empty.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotset.core.compute import batch_tokens
from hotset.core.heap import NOTHING, Heap, Held
from hotset.core.memory import CacheSettings
from hotset.core.modelspec import Experts, ModelSpec
from hotset.core.replay import Matrices

__all__ = ["ExpertRows", "expert_rows", "fullest_rows", "store_compute_bytes"]

_F32_BYTES = 4
_INWARD = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps")
_DOWN = "ffn_down_exps"


@dataclass(frozen=True, slots=True)
class ExpertRows:
    """The routed experts of one block, as a token passes them; in elements of one expert's rows.

    Attributes:
        count: experts in the block.
        used: experts that a token uses.
        inward: what each of gate and up makes, or both in one tensor.
        inner: what goes into down. In a block without a gate it takes the place of what up makes.
        outward: what down makes.
    """

    count: int
    used: int
    inward: tuple[int, ...]
    inner: int
    outward: int

    @property
    def is_gated(self) -> bool:
        return sum(self.inward) > self.inner

    @property
    def widths(self) -> tuple[int, ...]:
        """What is there at once, beside the CPU; elements of one expert's rows. What down makes
        takes the place of gate and up, unless it is wider."""
        if not self.is_gated:
            return (*self.inward, self.outward)
        apart = (self.outward,) if self.outward > sum(self.inward) else ()
        return (*self.inward, self.inner, *apart)

    def n_bytes(self, n_tokens: int, *, is_beside_card: bool = False) -> int:
        """The buffer that a batch of `n_tokens` needs."""
        heap = Heap()

        def take(n_elements: int) -> Held:
            return heap.take(n_tokens * n_elements * _F32_BYTES)

        copy = NOTHING
        if is_beside_card:  # the choice of experts is a part of all in their order, and stays
            copy = take(self.outward)
            take(self.count)
        inward = [take(self.used * width) for width in self.inward]
        heap.drop(copy)
        if self.is_gated:
            take(self.used * self.inner)
            heap.drop(*inward)
        take(self.used * self.outward)
        return heap.peak_bytes


def expert_rows(spec: ModelSpec) -> tuple[ExpertRows, ...]:
    """Of every kind of block with routed experts, in the order of their first."""
    if spec.experts is None:
        return ()
    kinds = {id(layer.matrices): layer.matrices for layer in spec.layers}
    found = (_rows(matrices, spec.experts) for matrices in kinds.values())
    return tuple(rows for rows in found if rows.outward)


def _rows(matrices: Matrices, experts: Experts) -> ExpertRows:
    def dims(name: str) -> tuple[int, ...]:
        shape = matrices[name].dims if name in matrices else ()
        return shape if len(shape) > 1 else (0, 0)

    return ExpertRows(
        experts.count,
        experts.used,
        tuple(width for name in _INWARD if (width := dims(name)[1])),
        *dims(_DOWN)[:2],
    )


def fullest_rows(
    spec: ModelSpec, settings: CacheSettings, *, is_beside_card: bool = False
) -> ExpertRows:
    """Of the block that needs most; empty ones in a model without routed experts."""
    n_tokens = batch_tokens(settings)
    return max(
        expert_rows(spec),
        key=lambda rows: rows.n_bytes(n_tokens, is_beside_card=is_beside_card),
        default=ExpertRows(0, 0, (), 0, 0),
    )


def store_compute_bytes(
    spec: ModelSpec, settings: CacheSettings, *, is_beside_card: bool = False
) -> int:
    """What the store's buffer takes: the fullest block's.

    Args:
        is_beside_card: a card computes the rest, and its rows come and go.
    """
    rows = fullest_rows(spec, settings, is_beside_card=is_beside_card)
    return rows.n_bytes(batch_tokens(settings), is_beside_card=is_beside_card)
