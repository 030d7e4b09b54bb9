"""Which neurons every token computes, and which form an expert: those that matter together."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hotset.lab.moe.blocks import Floats

__all__ = ["Split", "better_split", "first_split"]

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


def first_split(
    strengths: Floats, num_experts: int, expert_width: int, rng: np.random.Generator
) -> Split:
    """Split the neurons by what they did on calibration text, whoever will choose among them.

    Args:
        strengths: what each neuron adds to the output, as a length; shape (tokens, neurons). The
            neurons that add most on average are shared, the others form experts of equal size.
    """
    shared, routed = _parted(strengths.mean(axis=0), num_experts * expert_width)
    groups = _groups(strengths[:, routed], num_experts, rng)
    return Split(shared, np.sort(routed[groups], axis=1))


def better_split(strengths: Floats, at_first: Floats, chosen: Floats, expert_width: int) -> Split:
    """Split them anew, for a router that chooses like this.

    Each neuron goes where it is computed when it matters most, as far as there is room; those that
    would be missed most wherever they went are shared.

    Args:
        strengths: what each neuron adds to the output, squared; shape (tokens, neurons).
        at_first: shape (neurons): what it would cost, in the same measure, not to compute it for
            the first tokens of texts.
        chosen: 1 where an expert is chosen, else 0; shape (tokens, experts).
    """
    caught = strengths.T @ chosen
    missed = strengths.sum(axis=0) + at_first - caught.max(axis=1)
    num_experts = chosen.shape[1]
    shared, routed = _parted(missed, num_experts * expert_width)
    members = _assign(caught[routed], expert_width)
    return Split(shared, np.stack([routed[members == n] for n in range(num_experts)]))


def _parted(worth: Floats, num_routed: int) -> tuple[Ids, Ids]:
    """Those of most worth, and the others."""
    order = np.argsort(-worth, kind="stable")
    num_shared = len(worth) - num_routed
    return np.sort(order[:num_shared]), np.sort(order[num_shared:])


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
