"""What a recording tells of each layer: how concentrated its routing is, how soon it repeats."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field

from hotset.lab.counts import percentile
from hotset.store.trace import TraceBatch, TraceLayer

__all__ = ["LayerSummary", "summarize"]


@dataclass(frozen=True, slots=True)
class LayerSummary:
    """One layer over a whole recording.

    Attributes:
        num_batches, num_decode_batches: passes through the layer; of them those of few tokens.
        num_choices: experts chosen, counted for every token.
        num_distinct: different ones among them.
        top_share: share of the choices that fell on the tenth of the layer's experts (rounded up)
            that was chosen most.
        overlap: of the experts of a decode batch, the share that the one just before it used as
            well, on average; None where no two follow each other.
        jaccard: the same over the experts of both together, as papers state it.
        reuse_tokens: tokens decoded since an expert's last use in decoding, the median over all
            uses that are not the first; None where there is none.
        reuse_p90_tokens: nine of ten uses come after at most so many.
        choices: how often each expert was chosen, by its number; those never chosen are missing.
    """

    layer: TraceLayer
    num_batches: int
    num_decode_batches: int
    num_tokens: int
    num_choices: int
    num_distinct: int
    top_share: float
    overlap: float | None
    jaccard: float | None
    reuse_tokens: int | None
    reuse_p90_tokens: int | None
    choices: dict[int, int]


@dataclass(slots=True)
class _Tally:
    layer: TraceLayer
    num_batches: int = 0
    num_decode_batches: int = 0
    num_tokens: int = 0
    choices: Counter[int] = field(default_factory=Counter)
    before: frozenset[int] = frozenset()  # the experts of the decode batch just before, if it was
    overlaps: float = 0.0
    jaccards: float = 0.0
    num_overlaps: int = 0
    num_decoded: int = 0  # tokens
    last_use: dict[int, int] = field(default_factory=dict)
    distances: Counter[int] = field(default_factory=Counter)

    def add(self, batch: TraceBatch) -> None:
        self.num_batches += 1
        self.num_tokens += batch.num_tokens
        self.choices.update(batch.experts)
        if not batch.is_decode:
            self.before = frozenset()
            return
        self.num_decode_batches += 1
        self.num_decoded += batch.num_tokens
        chosen = frozenset(batch.experts)
        if self.before:
            shared = len(chosen & self.before)
            self.overlaps += shared / len(chosen)
            self.jaccards += shared / len(chosen | self.before)
            self.num_overlaps += 1
        self.before = chosen
        for expert in chosen:
            if expert in self.last_use:
                self.distances[self.num_decoded - self.last_use[expert]] += 1
            self.last_use[expert] = self.num_decoded

    def summary(self) -> LayerSummary:
        num_choices = self.choices.total()
        num_top = -(-self.layer.num_experts // 10)
        top = sum(count for _, count in self.choices.most_common(num_top))
        return LayerSummary(
            layer=self.layer,
            num_batches=self.num_batches,
            num_decode_batches=self.num_decode_batches,
            num_tokens=self.num_tokens,
            num_choices=num_choices,
            num_distinct=len(self.choices),
            top_share=top / num_choices if num_choices else 0.0,
            overlap=self.overlaps / self.num_overlaps if self.num_overlaps else None,
            jaccard=self.jaccards / self.num_overlaps if self.num_overlaps else None,
            reuse_tokens=percentile(self.distances, 0.5) if self.distances else None,
            reuse_p90_tokens=percentile(self.distances, 0.9) if self.distances else None,
            choices=dict(sorted(self.choices.items())),
        )


def summarize(records: Iterable[TraceLayer | TraceBatch]) -> list[LayerSummary]:
    """Each layer, in the order of their numbers. Nothing but sums is kept."""
    tallies: list[_Tally] = []
    for record in records:
        if isinstance(record, TraceLayer):
            tallies.append(_Tally(record))
        else:
            tallies[record.layer].add(record)
    return [tally.summary() for tally in tallies]
