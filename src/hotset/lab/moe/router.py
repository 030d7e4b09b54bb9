"""The router of a block: from a token's state to which experts matter for it."""

from __future__ import annotations

import numpy as np

from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.split import Split

__all__ = ["expert_scores"]


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
