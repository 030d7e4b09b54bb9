"""What earlier starts and answers have shown of one model with one engine on this machine.

A plan's compute buffers and speeds are estimates until the model has run here once. Then the
engine's own account and the measured rates are kept (`probe/starts.py`), and the next plan takes
them from here. Everything is a plain value; an empty `Experience` changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import exp, log
from statistics import median

__all__ = ["RAM", "Experience", "Pace", "Paces", "pace_of"]

RAM = "RAM"
"""The name of the memory that is no device's."""

# Four of five samples lie within a pace's spread.
_WITHIN = 0.8


@dataclass(frozen=True, slots=True)
class Pace:
    """How measured rates compare with predicted ones.

    Attributes:
        ratio: measured over predicted, the median.
        spread: most samples are within `ratio` divided and multiplied by this; 1 or more.
        num_samples: answers of a model, or models where it is a pace of several.
    """

    ratio: float
    spread: float
    num_samples: int


@dataclass(frozen=True, slots=True)
class Paces:
    """Decode and prefill apart: what holds one up need not hold up the other."""

    decode: Pace | None = None
    prefill: Pace | None = None


def pace_of(ratios: Sequence[float]) -> Pace | None:
    """The pace that positive `ratios` show; None for none."""
    if not ratios:
        return None
    middle = median(ratios)
    away = sorted(abs(log(ratio / middle)) for ratio in ratios)
    return Pace(middle, exp(away[int(_WITHIN * (len(away) - 1) + 0.5)]), len(ratios))


@dataclass(frozen=True, slots=True)
class Experience:
    """What is known of one model, one engine and one machine. Devices go by the engine's names.

    Attributes:
        compute_bytes: by device and shape (`core.plan.shape`): what the engine took for buffers.
        compute_factors: by device: the most that a start took beyond its estimate, as a factor
            above 1; for shapes that have not been seen.
        overhead_bytes: by device: what the process held there beside its own buffers.
        own: by setup (`core.plan.pace`): answers of this model.
        others: by setup: the medians of all models that have run here.
        spilled_bytes: by device: what its driver moved to RAM although it seemed to be free.
    """

    compute_bytes: Mapping[tuple[str, str], int] = field(default_factory=dict)
    compute_factors: Mapping[str, float] = field(default_factory=dict)
    overhead_bytes: Mapping[str, int] = field(default_factory=dict)
    own: Mapping[str, Paces] = field(default_factory=dict)
    others: Mapping[str, Paces] = field(default_factory=dict)
    spilled_bytes: Mapping[str, int] = field(default_factory=dict)

    def compute(self, device: str, shape: str, estimate_bytes: int) -> int:
        """Buffers of a batch: as seen, or the estimate, raised where starts have exceeded it."""
        seen = self.compute_bytes.get((device, shape))
        if seen is not None:
            return seen
        return int(estimate_bytes * self.compute_factors.get(device, 1.0))

    def overhead(self, device: str, assumed_bytes: int) -> int:
        return self.overhead_bytes.get(device, assumed_bytes)

    def spilled(self, device: str) -> int:
        """What cannot be had of a device although it looks free."""
        return self.spilled_bytes.get(device, 0)
