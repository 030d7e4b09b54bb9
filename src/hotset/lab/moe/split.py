"""Which neurons every token computes, and which form an expert: those that fire together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.lab.moe.blocks import Floats

__all__ = ["Split", "split_neurons"]

Ids = NDArray[np.intp]

_PROJECTED = 256
_ROUNDS = 12


class Split:
    """The neurons of one block.

    Attributes:
        shared: computed for every token.
        experts: shape (experts, neurons of each).
    """

    __slots__ = ("experts", "shared")

    def __init__(self, shared: Ids, experts: Ids) -> None:
        self.shared = shared
        self.experts = experts


def split_neurons(
    strengths: Floats,
    is_first: NDArray[np.bool_],
    num_experts: int,
    expert_width: int,
    rng: np.random.Generator,
) -> Split:
    """Split the neurons by what they did on calibration text.

    Args:
        strengths: what each neuron adds to the output, as a length; shape (tokens, neurons). The
            neurons that add most on average are shared, the others form experts of equal size.
        is_first: which tokens begin a text. All later ones attend to them, by states like no
            other token's; so what makes those is shared as well.
    """
    num_routed = num_experts * expert_width
    # Of all that is added to a token: a few tokens with huge states would decide otherwise.
    strengths = strengths / np.linalg.norm(strengths, axis=1, keepdims=True)
    others = strengths[~is_first]
    worth = np.maximum(others.mean(axis=0), strengths[is_first].mean(axis=0))
    order = np.argsort(-worth, kind="stable")
    num_shared = strengths.shape[1] - num_routed
    routed = np.sort(order[num_shared:])
    groups = _groups(others[:, routed], num_experts, rng)
    return Split(np.sort(order[:num_shared]), np.sort(routed[groups], axis=1))


def _groups(strengths: Floats, num_groups: int, rng: np.random.Generator) -> Ids:
    """Balanced k-means over the neurons' strengths through the text; shape (groups, size)."""
    # A random projection keeps the angles between neurons well enough, and is much smaller.
    signs = rng.choice(np.array([-1, 1], dtype=np.float32), (_PROJECTED, len(strengths)))
    points = (signs @ (strengths - strengths.mean(axis=0))).T
    points /= np.linalg.norm(points, axis=1, keepdims=True) + 1e-9
    size = len(points) // num_groups
    centres = _spread(points, num_groups, rng)
    members = np.zeros(len(points), dtype=np.intp)
    for _ in range(_ROUNDS):
        before, members = members, _assign(points @ centres.T, size)
        if np.array_equal(before, members):
            break
        centres = np.stack([points[members == group].mean(axis=0) for group in range(num_groups)])
        centres /= np.linalg.norm(centres, axis=1, keepdims=True) + 1e-9
    return np.stack([np.flatnonzero(members == group) for group in range(num_groups)])


def _spread(points: Floats, count: int, rng: np.random.Generator) -> Floats:
    """Points far from each other, the first by chance."""
    chosen = [int(rng.integers(len(points)))]
    nearest = points @ points[chosen[0]]
    while len(chosen) < count:
        chosen.append(int(nearest.argmin()))
        nearest = np.maximum(nearest, points @ points[chosen[-1]])
    return points[chosen]


def _assign(likeness: Floats, size: int) -> Ids:
    """A group for each point, `size` points in each: the surest first, then what is left over."""
    ranked = np.argsort(-likeness, axis=1, kind="stable")
    rows = np.arange(len(likeness))
    margins = likeness[rows, ranked[:, 0]] - likeness[rows, ranked[:, 1]]
    room = [size] * likeness.shape[1]
    members = np.empty(len(likeness), dtype=np.intp)
    for point in np.argsort(-margins, kind="stable"):
        group = next(group for group in ranked[point] if room[group])
        members[point] = group
        room[group] -= 1
    return members
