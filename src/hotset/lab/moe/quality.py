"""How close the converted model comes to the dense one, on texts that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense
from hotset.lab.moe.forward import FeedForward, Forward, activations, dense_feed_forward
from hotset.lab.moe.write import Experts

__all__ = ["MixedFeedForward", "Quality", "measure_quality"]


@dataclass(frozen=True, slots=True)
class Quality:
    """With so many experts used.

    Attributes:
        perplexity_ratio: perplexity over the dense model's.
        divergence: Kullback-Leibler, of the dense model's next token from this one's, in nats.
        agreement: share of places where both find the same token likeliest.
        overlap: of a token's experts, the share that the token before it used as well.
    """

    num_used: int
    perplexity_ratio: float
    divergence: float
    agreement: float
    overlap: float


class MixedFeedForward:
    """What the engine does with the converted model, without its rounding."""

    def __init__(self, blocks: Sequence[Experts], num_dense: int, num_used: int) -> None:
        self._blocks = blocks
        self._num_dense = num_dense
        self._num_used = num_used
        self._chosen: list[Floats] = []

    def __call__(self, number: int, block: Block, inputs: Floats) -> Floats:
        if number < self._num_dense:
            return dense_feed_forward(number, block, inputs)
        experts = self._blocks[number - self._num_dense]
        chosen = _chosen(experts, inputs, self._num_used)
        self._chosen.append(chosen)
        hidden = activations(block, inputs)
        for expert, neurons in enumerate(experts.split.experts):
            hidden[:, neurons] *= chosen[:, expert : expert + 1]
        return hidden @ block.down.T

    def overlap(self, has_next: NDArray[np.bool_]) -> float:
        """Share of a token's experts that the next one uses as well, over all blocks."""
        shared = [(c[1:] * c[:-1]).sum(axis=1)[has_next[:-1]].mean() for c in self._chosen]
        return float(np.mean(shared)) / self._num_used


def _chosen(experts: Experts, inputs: Floats, num_used: int) -> Floats:
    """1 where the router chooses, 0 elsewhere; shape (tokens, experts)."""
    scores = inputs @ experts.router.T
    top = np.argpartition(-scores, num_used - 1, axis=1)[:, :num_used]
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, top, 1, axis=1)
    return chosen


def measure_quality(
    model: Dense, blocks: Sequence[Experts], texts: Sequence[Sequence[int]], used: Sequence[int]
) -> list[Quality]:
    """The converted model against the dense one, for each number of experts used."""
    ends = np.cumsum([len(text) for text in texts])
    inside = np.ones(ends[-1], dtype=bool)
    inside[ends - 1] = False  # what comes after a text is nobody's guess
    following = np.roll([token for text in texts for token in text], -1)[inside]
    rows = np.arange(len(following))

    def guesses(feed_forward: FeedForward) -> Floats:
        forward = Forward(model, texts)
        for number in range(model.num_blocks):
            forward.step(number, model.block(number), feed_forward)
        return _log_shares(forward.outputs()[inside] @ model.embedding.T)

    def compare(num_used: int) -> Quality:
        mixed = MixedFeedForward(blocks, model.num_blocks - len(blocks), num_used)
        ours = guesses(mixed)
        return Quality(
            num_used,
            float(np.exp((dense[rows, following] - ours[rows, following]).mean())),
            float((np.exp(dense) * (dense - ours)).sum(axis=1).mean()),
            float((dense.argmax(axis=1) == ours.argmax(axis=1)).mean()),
            mixed.overlap(inside),
        )

    dense = guesses(dense_feed_forward)
    return [compare(num_used) for num_used in used]


def _log_shares(logits: Floats) -> Floats:
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits
