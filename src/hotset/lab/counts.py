"""What a replay counts, prompts and answers apart."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

__all__ = ["Counts", "Outcome", "percentile"]


@dataclass(slots=True)
class Counts:
    """Sums over the events of one phase. A request is one expert of one layer.

    Attributes:
        num_compulsory: misses of units never asked for before; no cache can avoid them.
        num_in_place: misses that were served where the unit lies and moved nothing.
        upload_bytes: moved into the memory at hand (into the first of two tiers).
        disk_bytes, num_disk: read from the disk.
        misses_per_event: how many events had so many misses.
    """

    num_requests: int = 0
    num_hits: int = 0
    num_compulsory: int = 0
    num_evictions: int = 0
    num_in_place: int = 0
    num_uploads: int = 0
    upload_bytes: int = 0
    num_disk: int = 0
    disk_bytes: int = 0
    misses_per_event: Counter[int] = field(default_factory=Counter)

    @property
    def num_misses(self) -> int:
        return self.num_requests - self.num_hits

    @property
    def hit_rate(self) -> float:
        """0 where nothing was asked for."""
        return self.num_hits / self.num_requests if self.num_requests else 0.0

    def add(self, other: Counts) -> None:
        for name in self.__slots__:
            if name == "misses_per_event":
                self.misses_per_event.update(other.misses_per_event)
            else:
                setattr(self, name, getattr(self, name) + getattr(other, name))


@dataclass(slots=True)
class Outcome:
    """Of one replay."""

    decode: Counts = field(default_factory=Counts)
    prompt: Counts = field(default_factory=Counts)

    def of(self, is_decode: bool) -> Counts:
        return self.decode if is_decode else self.prompt

    def both(self) -> Counts:
        total = Counts()
        total.add(self.decode)
        total.add(self.prompt)
        return total


def percentile(counter: Counter[int], share: float) -> int:
    """The least number that at least `share` of all counted are not above; 0 of nothing."""
    left = share * counter.total()
    for number in sorted(counter):
        left -= counter[number]
        if left <= 0:
            return number
    return 0
