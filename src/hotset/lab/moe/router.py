"""The router of a block: from a token's state to which experts matter for it."""

from __future__ import annotations

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.split import Split

__all__ = ["expert_scores", "fit_router"]

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


def fit_router(inputs: Floats, scores: Floats) -> Floats:
    """Weights of the router, shape (experts, width): by ridge regression on the scores' logarithm.

    Args:
        inputs: what the router sees, shape (tokens, width).
        scores: of `expert_scores` for the same tokens.
    """
    wanted = np.log(scores + _FLOOR * scores.mean())
    # What all experts have in common decides nothing.
    wanted -= wanted.mean(axis=1, keepdims=True)
    gram = inputs.T @ inputs
    gram[np.diag_indices_from(gram)] += _RIDGE * np.trace(gram) / len(gram)
    weights = np.linalg.solve(gram, inputs.T @ wanted).T
    # As small as the softmax can still tell apart: see `write_moe`.
    weights *= _LOGIT_SPREAD / np.std(inputs @ weights.T)
    router: Floats = weights.astype(np.float32)
    return router
