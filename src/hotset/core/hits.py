"""How often an expert that a token needs is in a cache: by the model's own recorded routing, or by
a prior until it has been recorded."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from itertools import pairwise

__all__ = ["HitCurve", "prior_curve"]


@dataclass(frozen=True, slots=True)
class HitCurve:
    """Share of look-ups that hit, over the share of a model's experts that a cache holds.

    Attributes:
        points: (share held, share of hits), straight lines between them; from (0, 0) to (1, 1).
        source: where they come from, in words for a plan.

    Raises:
        ValueError: points that no cache has.
    """

    points: tuple[tuple[float, float], ...]
    source: str

    def __post_init__(self) -> None:
        if not self.points or self.points[0] != (0.0, 0.0) or self.points[-1] != (1.0, 1.0):
            raise ValueError("the points do not go from (0, 0) to (1, 1)")
        for (share, hits), (next_share, next_hits) in pairwise(self.points):
            if not (share < next_share and hits <= next_hits):
                raise ValueError(f"a cache of {next_share} hits {next_hits}, one of {share} {hits}")

    def rate(self, share: float) -> float:
        """Expected share of look-ups that hit.

        Args:
            share: of the experts that the cache holds; less than 0 counts as 0, more than 1 as 1.
        """
        share = min(max(share, 0.0), 1.0)
        at = min(bisect_right(self.points, share, key=lambda point: point[0]), len(self.points) - 1)
        (low_share, low), (high_share, high) = self.points[at - 1], self.points[at]
        return low + (high - low) * (share - low_share) / (high_share - low_share)


def prior_curve(architecture: str, n_experts: int) -> HitCurve:
    """What to expect of a model whose routing nobody has recorded here.

    Args:
        architecture: as the file names it.
        n_experts: routed experts of a layer.
    """
    if n_experts <= _FEW_EXPERTS:
        return HitCurve(_EVEN, "a prior: few and large experts are used evenly")
    if architecture in _FAMILIES:
        model, points = _FAMILIES[architecture]
        return HitCurve(points, f"a prior for {architecture}: one public recording of {model}")
    return HitCurve(_MANY, "a prior: public recordings of three other models")


# Models of few and large experts (Mixtral's 8) route nearly evenly: only the share counts.
_FEW_EXPERTS = 16
_EVEN = ((0.0, 0.0), (1.0, 1.0))

# The mean of the families below with a policy that keeps what was used often and lately, first
# tokens included; the last point but one is published runs of Qwen3-30B-A3B (94 to 96 % at 60 %).
# Short recordings of one topic: real use may be lower.
_MANY = (
    (0.0, 0.0),
    (0.03, 0.27),
    (0.05, 0.38),
    (0.10, 0.56),
    (0.20, 0.75),
    (0.30, 0.85),
    (0.40, 0.905),
    (0.60, 0.95),
    (1.0, 1.0),
)

# One prompt each, replayed by `hotset simulate`, with fewer experts per token than the models use
# (6 of 128, gpt-oss 2), which makes hits more likely; beyond 40 % as above.
_FAMILIES = {
    "qwen3moe": (
        "Qwen3-30B-A3B",
        (
            (0.0, 0.0),
            (0.05, 0.390),
            (0.10, 0.589),
            (0.20, 0.776),
            (0.30, 0.885),
            (0.40, 0.940),
            (0.60, 0.950),
            (1.0, 1.0),
        ),
    ),
    "gemma4": (
        "Gemma 4 26B-A4B",
        (
            (0.0, 0.0),
            (0.05, 0.371),
            (0.10, 0.589),
            (0.20, 0.764),
            (0.30, 0.860),
            (0.40, 0.926),
            (0.60, 0.950),
            (1.0, 1.0),
        ),
    ),
    "gpt-oss": (
        "gpt-oss-120b",
        (
            (0.0, 0.0),
            (0.05, 0.445),
            (0.10, 0.601),
            (0.20, 0.754),
            (0.30, 0.835),
            (0.40, 0.878),
            (0.60, 0.950),
            (1.0, 1.0),
        ),
    ),
}
