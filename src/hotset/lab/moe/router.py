"""The router of a block: from a token's state to which experts matter for it."""

from __future__ import annotations

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.split import Split

__all__ = ["RouterFit", "chosen_experts", "expert_scores"]

_RIDGE = 1e-3
# Of the mean score: below it, how little an expert matters makes no difference.
_FLOOR = 1e-3
# Of the logits: the chosen experts' weights are then one to a thousandth, and still in order.
_LOGIT_SPREAD = 1e-3


def expert_scores(hidden: Floats, down: Floats, split: Split) -> Floats:
    """How long a vector each expert adds to the output, squared; shape (tokens, experts).

    Args:
        hidden: what the neurons hold, shape (tokens, neurons).
        down: the block's output matrix, shape (width, neurons).
    """
    scores = []
    for neurons in split.experts:
        inside = hidden[:, neurons]
        gram = down[:, neurons].T @ down[:, neurons]
        scores.append(np.einsum("ti,ti->t", inside @ gram, inside))
    return np.stack(scores, axis=1)


def chosen_experts(router: Floats, inputs: Floats, num_used: int) -> Floats:
    """1 where the router chooses, 0 elsewhere; shape (tokens, experts)."""
    scores = inputs @ router.T
    top = np.argpartition(-scores, num_used - 1, axis=1)[:, :num_used]
    chosen = np.zeros_like(scores)
    np.put_along_axis(chosen, top, 1, axis=1)
    return chosen


class RouterFit:
    """Routers by ridge regression, for any way to make experts of a block.

    Args:
        inputs: what the router sees, shape (tokens, width).
    """

    def __init__(self, inputs: Floats) -> None:
        self._inputs = inputs
        gram = inputs.T @ inputs
        gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / len(gram)
        self._solved = np.linalg.solve(gram, inputs.T)

    def by_scores(self, scores: Floats) -> Floats:
        """Weights, shape (experts, width), that foretell what `expert_scores` gives for the same
        tokens, less what all experts have in common: that decides nothing."""
        weights = (self._solved @ (scores - scores.mean(axis=1, keepdims=True))).T
        # As small as the softmax can still tell apart: see `write_moe`.
        weights *= _LOGIT_SPREAD / np.std(self._inputs @ weights.T)
        router: Floats = weights.astype(np.float32)
        return router

    def by_logarithms(self, scores: Floats) -> Floats:
        """The same for the scores' logarithms, which few huge scores do not decide."""
        return self.by_scores(np.log(scores + _FLOOR * scores.mean()))
