"""What a soak found, and whether that is within its bounds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from benchmarks.store.soak.memory import Sample, growth

from hotset.core.units import MIB

__all__ = ["SoakResult", "as_lines", "broken_bounds"]

MOST_OVER = 0.03
"""Of the budget: what resident and cached bytes together may exceed it by."""
MOST_GROWTH = 0.01
"""Of the budget: what the noise of two medians may look like."""


@dataclass(frozen=True, slots=True)
class SoakResult:
    """One soak.

    Attributes:
        budget_bytes: for the whole process and its page cache; arena_bytes: the store's part.
        peak_bytes: the kernel's own greatest value; 0 where it keeps none.
        num_compared: how often the fixed prompt was asked; num_changed: how often its answer was
            not the stock engine's.
    """

    budget_bytes: int
    arena_bytes: int
    peak_bytes: int
    samples: Sequence[Sample]
    num_requests: Mapping[str, int]
    errors: Sequence[str]
    num_compared: int
    num_changed: int

    @property
    def most_bytes(self) -> int:
        return max(self.peak_bytes, *(sample.total_bytes for sample in self.samples))

    @property
    def over(self) -> float:
        """Share of the budget that the greatest value lies above it; negative below."""
        return self.most_bytes / self.budget_bytes - 1


def broken_bounds(result: SoakResult) -> list[str]:
    """One line for each bound that the soak did not keep."""
    grown = growth(result.samples, lambda sample: sample.total_bytes)
    broken = []
    if result.over > MOST_OVER:
        broken.append(f"memory was {result.over:.1%} above the budget; {MOST_OVER:.0%} are allowed")
    if grown > MOST_GROWTH * result.budget_bytes:
        broken.append(f"memory grew by {grown / MIB:.1f} MiB from the first quarter to the last")
    if result.num_changed:
        broken.append(f"{result.num_changed} of {result.num_compared} fixed answers changed")
    if not result.num_compared:
        broken.append("the fixed prompt was never asked; run longer")
    if result.errors:
        broken.append(f"{len(result.errors)} requests failed, first: {result.errors[0]}")
    return broken


def as_lines(result: SoakResult) -> list[str]:
    """The result for people; figures in MiB."""
    samples, last = result.samples, result.samples[-1]
    by_samples = max(sample.total_bytes for sample in samples)
    grown = growth(samples, lambda sample: sample.total_bytes)
    beside = growth(samples, lambda sample: sample.total_bytes - sample.arena_bytes)
    requests = ", ".join(f"{n} {kind}" for kind, n in sorted(result.num_requests.items()))
    rows = {
        "time": f"{last.seconds / 60:.1f} minutes, {len(samples)} samples",
        "requests": f"{requests}; {len(result.errors)} failed",
        "fixed answers": f"{result.num_compared}, {result.num_changed} changed",
        "budget": f"{_mib(result.budget_bytes)} MiB, {_mib(result.arena_bytes)} of it for experts",
        "most": f"{_mib(result.most_bytes)} MiB, {result.over:+.1%} of the budget;"
        f" {_mib(by_samples)} by the samples alone",
        "at the end": f"{_mib(last.anonymous_bytes)} MiB resident,"
        f" {_mib(last.cached_bytes)} cached",
        "growth": f"{_mib(grown)} MiB from the first quarter to the last,"
        f" {_mib(beside)} without the experts",
    }
    return [f"{name:14}{text}" for name, text in rows.items()]


def _mib(n_bytes: int) -> str:
    return f"{n_bytes / MIB:.1f}"
