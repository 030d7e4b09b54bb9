"""Samples of a group's memory while the soak runs, and what they come to."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median

from benchmarks.store.engine import Running

__all__ = ["Sample", "Sampler", "growth"]

_EVERY_S = 0.5


@dataclass(frozen=True, slots=True)
class Sample:
    """One moment, bytes.

    Attributes:
        seconds: since the first sample.
        anonymous_bytes: resident and of no file: the store's memory, caches, buffers.
        cached_bytes: file pages that the group brought in.
        arena_bytes: experts in the store, part of the anonymous ones.
    """

    seconds: float
    anonymous_bytes: int
    cached_bytes: int
    arena_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.anonymous_bytes + self.cached_bytes


class Sampler:
    """A thread that samples until the block is left."""

    def __init__(self, engine: Running) -> None:
        self.samples: list[Sample] = []
        self._engine = engine
        self._begun = time.monotonic()
        self._end = threading.Event()
        self._thread = threading.Thread(target=self._run, name="sampler")

    def __enter__(self) -> Sampler:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._end.set()
        self._thread.join()

    def _run(self) -> None:
        while True:
            counters, group = self._engine.counters(), self._engine.group
            self.samples.append(
                Sample(
                    time.monotonic() - self._begun, group.anonymous_bytes(), group.cached_bytes(),
                    counters.resident_bytes if counters else 0,
                )
            )  # fmt: skip
            if self._end.wait(_EVERY_S):
                return


def growth(samples: Sequence[Sample], of: Callable[[Sample], int]) -> int:
    """Median of the last quarter of the time less that of the first, bytes."""
    end_s = samples[-1].seconds
    first = [of(sample) for sample in samples if sample.seconds <= end_s / 4]
    last = [of(sample) for sample in samples if sample.seconds >= end_s * 3 / 4]
    return round(median(last) - median(first))
