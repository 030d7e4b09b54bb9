"""How close the converted model comes to the dense one, on texts that it was not fitted to."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense
from hotset.lab.moe.forward import FeedForward, Forward, activations, dense_feed_forward
from hotset.lab.moe.router import chosen_experts
from hotset.lab.moe.write import Experts

__all__ = ["MixedFeedForward", "Quality", "measure_quality"]


@dataclass(frozen=True, slots=True)
class Quality:
    """With so many experts used.

    Attributes:
        perplexity_ratio, ratio_error: perplexity over the dense model's, and the standard error
            of it that comes from the choice of the text.
        divergence, divergence_error: Kullback-Leibler, of the dense model's next token from this
            one's, in nats.
        agreement: share of places where both find the same token likeliest.
        overlap: of a token's experts, the share that the token before it used as well.
    """

    num_used: int
    perplexity_ratio: float
    ratio_error: float
    divergence: float
    divergence_error: float
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
        chosen = chosen_experts(experts.router, inputs, self._num_used)
        self._chosen.append(chosen)
        hidden = activations(block, inputs)
        for expert, neurons in enumerate(experts.split.experts):
            hidden[:, neurons] *= chosen[:, expert : expert + 1]
        return hidden @ block.down.T

    def overlap(self, has_next: NDArray[np.bool_]) -> float:
        """Share of a token's experts that the next one uses as well, over all blocks."""
        shared = [(c[1:] * c[:-1]).sum(axis=1)[has_next[:-1]].mean() for c in self._chosen]
        return float(np.mean(shared)) / self._num_used


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
        losses, loss_error = _mean(dense[rows, following] - ours[rows, following])
        divergence, divergence_error = _mean((np.exp(dense) * (dense - ours)).sum(axis=1))
        return Quality(
            num_used,
            float(np.exp(losses)),
            float(np.exp(losses)) * loss_error,
            divergence,
            divergence_error,
            float((dense.argmax(axis=1) == ours.argmax(axis=1)).mean()),
            mixed.overlap(inside),
        )

    dense = guesses(dense_feed_forward)
    return [compare(num_used) for num_used in used]


def _mean(values: Floats) -> tuple[float, float]:
    """With its standard error, as if tokens were independent."""
    return float(values.mean()), float(values.std() / len(values) ** 0.5)


def _log_shares(logits: Floats) -> Floats:
    logits -= logits.max(axis=1, keepdims=True)
    logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
    return logits
