"""Attention of one block over several texts, forwards and backwards."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.dense import Block, Dense

__all__ = ["Attention"]


@dataclass(frozen=True, slots=True)
class _Heads:
    """Of one text, turned by their tokens' places; shape (heads, tokens, size). Keys and values
    are repeated for the heads that share them."""

    rows: slice
    query: Floats
    key: Floats
    value: Floats
    shares: Floats


class Attention:
    """Args:
    texts: tokens of each; none sees another.
    """

    def __init__(self, model: Dense, texts: Sequence[Sequence[int]]) -> None:
        self._model = model
        ends = np.cumsum([0, *map(len, texts)])
        self._rows = [slice(begin, end) for begin, end in pairwise(ends.tolist())]
        self._size = model.width // model.num_heads
        self._num_sharing = model.num_heads // model.num_kv_heads
        half = self._size // 2
        base = model.number("rope.freq_base")
        angles = np.outer(np.arange(max(map(len, texts))), base ** (-np.arange(half) / half))
        self._cosines, self._sines = (
            np.cos(angles).astype(np.float32),
            np.sin(angles).astype(np.float32),
        )

    def output(self, block: Block, inputs: Floats) -> Floats:
        """What attention adds to each token, from the normed states; shape (tokens, width)."""
        mixed = np.empty_like(inputs)
        for text in self._texts(block, inputs):
            mixed[text.rows] = _side_by_side(text.shares @ text.value)
        return mixed @ block.attn_output.T

    def gradient(self, block: Block, inputs: Floats, wanted: Floats) -> Floats:
        """Of a sum that has the gradient `wanted` by the output: its gradient by the inputs."""
        model, size = self._model, self._size
        back = wanted @ block.attn_output
        by_query = np.empty((len(inputs), model.num_heads * size), dtype=np.float32)
        by_key = np.empty((len(inputs), model.num_kv_heads * size), dtype=np.float32)
        by_value = np.empty_like(by_key)
        for text in self._texts(block, inputs):
            mixed = back[text.rows].reshape(-1, model.num_heads, size).transpose(1, 0, 2)
            by_shares = mixed @ text.value.transpose(0, 2, 1)
            by_scores = by_shares - (by_shares * text.shares).sum(axis=-1, keepdims=True)
            by_scores *= text.shares / np.float32(size**0.5)
            by_query[text.rows] = _side_by_side(self._turned(by_scores @ text.key, -1))
            keys = self._turned(by_scores.transpose(0, 2, 1) @ text.query, -1)
            by_key[text.rows] = _side_by_side(self._gathered(keys))
            values = text.shares.transpose(0, 2, 1) @ mixed
            by_value[text.rows] = _side_by_side(self._gathered(values))
        total: Floats = by_query @ block.query + by_key @ block.key + by_value @ block.value
        return total

    def _texts(self, block: Block, inputs: Floats) -> Iterator[_Heads]:
        model = self._model

        def heads(weight: Floats, count: int) -> Floats:
            return (inputs @ weight.T).reshape(len(inputs), count, self._size).transpose(1, 0, 2)

        queries = heads(block.query, model.num_heads)
        keys = heads(block.key, model.num_kv_heads)
        values = heads(block.value, model.num_kv_heads)
        for rows in self._rows:
            query = self._turned(queries[:, rows], 1)
            key = np.repeat(self._turned(keys[:, rows], 1), self._num_sharing, axis=0)
            value = np.repeat(values[:, rows], self._num_sharing, axis=0)
            scores = query @ key.transpose(0, 2, 1) / np.float32(self._size**0.5)
            scores += np.triu(np.full(scores.shape[1:], -np.inf, dtype=np.float32), 1)
            scores = np.exp(scores - scores.max(axis=-1, keepdims=True))
            scores /= scores.sum(axis=-1, keepdims=True)
            yield _Heads(rows, query, key, value, scores)

    def _turned(self, heads: Floats, direction: int) -> Floats:
        """Pairs of neighbours turned by their token's place, or back."""
        n = heads.shape[1]
        cosines, sines = self._cosines[:n], direction * self._sines[:n]
        even, odd = heads[..., ::2], heads[..., 1::2]
        turned = np.empty_like(heads)
        turned[..., ::2] = even * cosines - odd * sines
        turned[..., 1::2] = even * sines + odd * cosines
        return turned

    def _gathered(self, heads: Floats) -> Floats:
        """The sum over the heads that share a key or value."""
        _, n, size = heads.shape
        total: Floats = heads.reshape(-1, self._num_sharing, n, size).sum(axis=1)
        return total


def _side_by_side(heads: Floats) -> Floats:
    """(heads, tokens, size) as (tokens, heads * size)."""
    return heads.transpose(1, 0, 2).reshape(heads.shape[1], -1)
