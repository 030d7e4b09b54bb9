"""The dense model computed with numpy, many texts at a time: what calibration looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense

__all__ = ["FeedForward", "Forward", "activations", "normed"]


class FeedForward(Protocol):
    """What a block does with each token after attention."""

    def __call__(self, number: int, block: Block, inputs: Floats) -> Floats:
        """From the normed states, shape (tokens, width), to what is added to them."""


def normed(states: Floats, weight: Floats, epsilon: float) -> Floats:
    """RMS norm of each row."""
    scale = np.sqrt(np.mean(np.square(states), axis=1, keepdims=True) + np.float32(epsilon))
    scaled: Floats = states / scale * weight
    return scaled


def activations(block: Block, inputs: Floats) -> Floats:
    """What the neurons of the block hold, shape (tokens, neurons)."""
    gate = inputs @ block.gate.T
    with np.errstate(over="ignore"):  # far below zero nothing passes, as it should be
        gate /= 1 + np.exp(-gate)
    gate *= inputs @ block.up.T
    return gate


def dense_feed_forward(number: int, block: Block, inputs: Floats) -> Floats:
    """As the model was trained."""
    del number
    return activations(block, inputs) @ block.down.T


class Forward:
    """States of several texts, block by block.

    Args:
        texts: tokens of each; none sees another.
    """

    def __init__(self, model: Dense, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self._bounds = np.cumsum([0, *map(len, texts)])
        self._states = model.embedding[[token for text in texts for token in text]]
        self._cosines, self._sines = self._rotation(max(map(len, texts)))

    def step(self, number: int, block: Block, feed_forward: FeedForward) -> None:
        """Through one block; they come in order."""
        epsilon = self._model.norm_epsilon
        self._states = self._states + self._attend(
            block, normed(self._states, block.attn_norm, epsilon)
        )
        inputs = normed(self._states, block.ffn_norm, epsilon)
        self._states += feed_forward(number, block, inputs)

    def outputs(self) -> Floats:
        """After all blocks: what the output matrix is multiplied with."""
        weight = self._model.floats("output_norm.weight")[0]
        return normed(self._states, weight, self._model.norm_epsilon)

    def _rotation(self, longest: int) -> tuple[Floats, Floats]:
        half = self._model.width // self._model.num_heads // 2
        base = self._model.number("rope.freq_base")
        angles = np.outer(np.arange(longest), base ** (-np.arange(half) / half))
        return np.cos(angles).astype(np.float32), np.sin(angles).astype(np.float32)

    def _rotated(self, heads: Floats) -> Floats:
        """Pairs of neighbours turned by their token's place; heads: (heads, tokens, size)."""
        n = heads.shape[1]
        even, odd, cosines, sines = (
            heads[..., ::2],
            heads[..., 1::2],
            self._cosines[:n],
            self._sines[:n],
        )
        turned = np.empty_like(heads)
        turned[..., ::2] = even * cosines - odd * sines
        turned[..., 1::2] = even * sines + odd * cosines
        return turned

    def _attend(self, block: Block, inputs: Floats) -> Floats:
        model = self._model
        size = model.width // model.num_heads
        groups = model.num_heads // model.num_kv_heads

        def heads(weight: Floats, count: int) -> Floats:
            return (inputs @ weight.T).reshape(len(inputs), count, size).transpose(1, 0, 2)

        queries = heads(block.query, model.num_heads)
        keys = heads(block.key, model.num_kv_heads)
        values = heads(block.value, model.num_kv_heads)
        mixed = np.empty_like(inputs)
        for begin, end in zip(self._bounds[:-1], self._bounds[1:], strict=True):
            query = self._rotated(queries[:, begin:end])
            key = np.repeat(self._rotated(keys[:, begin:end]), groups, axis=0)
            value = np.repeat(values[:, begin:end], groups, axis=0)
            scores = query @ key.transpose(0, 2, 1) / np.float32(size**0.5)
            scores += np.triu(np.full(scores.shape[1:], -np.inf, dtype=np.float32), 1)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            mixed[begin:end] = (scores @ value).transpose(1, 0, 2).reshape(end - begin, -1)
        return mixed @ block.attn_output.T
