"""Which errors of a block matter: how the next token's chances depend on what it adds."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense
from hotset.lab.moe.forward import Forward, dense_feed_forward, normed

__all__ = ["feed_forward_gradients", "sensitivities"]

_ROWS = 256  # tokens whose chances of all next tokens are in memory at once
# Of the mean: what the few texts say nothing about matters a little all the same.
_FLOOR = 0.02


def sensitivities(
    model: Dense, texts: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Floats]:
    """For each block a matrix S, shape (width, width): an error e of what the block adds to a token
    costs about |S e|^2, up to one factor.

    The square is the Fisher information: the mean outer product of gradients of log chances, of
    tokens that are drawn as the model itself would.
    """
    # All later tokens attend to the first one of a text, whose gradients are like no other's.
    is_first = np.concatenate([np.arange(len(text)) == 0 for text in texts])
    found = []
    for gradients in feed_forward_gradients(model, texts, rng):
        others = gradients[~is_first]
        values, vectors = np.linalg.eigh((others.T @ others).astype(np.float64))
        values = np.maximum(values, 0)
        root = (vectors * np.sqrt(values + _FLOOR * values.mean())) @ vectors.T
        found.append((root / np.linalg.norm(root)).astype(np.float32))
    return found


def feed_forward_gradients(
    model: Dense, texts: Sequence[Sequence[int]], rng: np.random.Generator
) -> list[Floats]:
    """For each block, gradients by what its feed-forward part adds, shape (tokens, width): of the
    sum of -log(chance) over all places, of a next token drawn by the model."""
    forward = Forward(model, texts)
    before = []
    for number in range(model.num_blocks):
        before.append(forward.states)
        forward.step(number, model.block(number), dense_feed_forward)
    weight = model.floats("output_norm.weight")[0]
    back = _norm_gradient(
        forward.states, weight, _output_gradient(model, forward.outputs(), rng), model.norm_epsilon
    )
    gradients = []
    for number in reversed(range(model.num_blocks)):
        gradients.append(back)
        forward.states = before[number]
        back = _step_gradient(model, forward, model.block(number), back)
    return gradients[::-1]


def _output_gradient(model: Dense, outputs: Floats, rng: np.random.Generator) -> Floats:
    gradient = np.empty_like(outputs)
    for begin in range(0, len(outputs), _ROWS):
        rows = slice(begin, begin + _ROWS)
        chances = outputs[rows] @ model.embedding.T
        chances = np.exp(chances - chances.max(axis=1, keepdims=True))
        chances /= chances.sum(axis=1, keepdims=True)
        sums = np.cumsum(chances, axis=1)
        drawn = (sums < rng.random((len(sums), 1), dtype=np.float32) * sums[:, -1:]).sum(axis=1)
        gradient[rows] = chances @ model.embedding - model.embedding[drawn]
    return gradient


def _step_gradient(model: Dense, forward: Forward, block: Block, wanted: Floats) -> Floats:
    """Backwards through the block whose input is in `forward`."""
    epsilon = model.norm_epsilon
    before = forward.states
    forward.attend(block)
    middle = forward.states
    inputs = normed(middle, block.ffn_norm, epsilon)
    gate, up = inputs @ block.gate.T, inputs @ block.up.T
    with np.errstate(over="ignore"):
        open_share = 1 / (1 + np.exp(-gate))
    by_hidden = wanted @ block.down
    by_gate = by_hidden * up * open_share * (1 + gate * (1 - open_share))
    by_inputs = by_gate @ block.gate + (by_hidden * gate * open_share) @ block.up
    by_middle = wanted + _norm_gradient(middle, block.ffn_norm, by_inputs, epsilon)
    inputs = normed(before, block.attn_norm, epsilon)
    by_attention = forward.attention.gradient(block, inputs, by_middle)
    return by_middle + _norm_gradient(before, block.attn_norm, by_attention, epsilon)


def _norm_gradient(states: Floats, weight: Floats, wanted: Floats, epsilon: float) -> Floats:
    scale = 1 / np.sqrt(np.mean(np.square(states), axis=1, keepdims=True) + np.float32(epsilon))
    scaled = wanted * weight
    along = np.mean(scaled * states, axis=1, keepdims=True)
    gradient: Floats = scale * scaled - states * scale**3 * along
    return gradient
