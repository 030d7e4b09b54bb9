"""The dense model computed with numpy, many texts at a time: what calibration looks at."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

import numpy as np

from hotset.lab.moe.attention import Attention
from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense

__all__ = ["FeedForward", "Forward", "activations", "dense_feed_forward", "normed"]


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

    Attributes:
        attention: of these texts.
        states: what the next block gets, shape (tokens, width).
    """

    def __init__(self, model: Dense, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        self.attention = Attention(model, texts)
        self.states: Floats = model.embedding[[token for text in texts for token in text]]

    def attend(self, block: Block) -> None:
        """The first half of a step."""
        inputs = normed(self.states, block.attn_norm, self._model.norm_epsilon)
        self.states = self.states + self.attention.output(block, inputs)

    def step(self, number: int, block: Block, feed_forward: FeedForward) -> None:
        """Through one block; they come in order."""
        self.attend(block)
        inputs = normed(self.states, block.ffn_norm, self._model.norm_epsilon)
        self.states += feed_forward(number, block, inputs)

    def outputs(self) -> Floats:
        """After all blocks: what the output matrix is multiplied with."""
        weight = self._model.floats("output_norm.weight")[0]
        return normed(self.states, weight, self._model.norm_epsilon)
