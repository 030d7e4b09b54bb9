"""From rounds of measurements to the rows of a table. Pure: numbers in, numbers out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from statistics import median
from typing import TypeVar

from benchmarks.store.models import FEW_USED, BenchModel
from benchmarks.store.physics import costs_of, limit_s
from benchmarks.store.variants import FEW, IN_RAM, Cell, Variant
from benchmarks.store.workload import Measured

__all__ = ["ModelResults", "Round", "Row", "rows_of"]

_Phase = TypeVar("_Phase", int, str)


@dataclass(frozen=True, slots=True)
class Round:
    """One round: each variant once, by its key, and the disk's rate in bytes per second."""

    disk_bytes_per_s: float
    measured: dict[str, Measured]


@dataclass(frozen=True, slots=True)
class ModelResults:
    """What is known of one model."""

    model: BenchModel
    cells: tuple[Cell, ...]
    variants: tuple[Variant, ...]
    rounds: tuple[Round, ...]


@dataclass(frozen=True, slots=True)
class Row:
    """Medians over the rounds. `to_mmap` and `to_ram` are medians of the ratios within a round, by
    phase: "decode", "parallel", "512" ...; empty where there is nothing to compare with."""

    label: str
    decode: float
    decode_tokens: float
    parallel: float | None
    prefill: dict[int, float]
    to_mmap: dict[str, float]
    to_ram: dict[str, float]
    hit_rate: float | None
    read_bytes: float
    limit_rate: float | None
    limit_share: float | None
    arena_bytes: float | None
    arena_share: float | None
    start_s: float
    resident_bytes: float
    anonymous_bytes: float
    peak_bytes: float


def rows_of(results: ModelResults) -> list[Row]:
    """One row per variant, in the order in which they ran."""
    opponents = {cell.store.key: cell.mmap.key for cell in results.cells}
    return [
        _row(results, variant, opponents.get(variant.key))
        for variant in results.variants
        if variant.key != FEW.key
    ]


def _row(results: ModelResults, variant: Variant, mmap: str | None) -> Row:
    rounds, model = results.rounds, results.model
    runs = [one.measured[variant.key] for one in rounds]

    def middle(get: Callable[[Measured], float | None]) -> float | None:
        values = [value for run in runs if (value := get(run)) is not None]
        return median(values) if values else None

    def sure(get: Callable[[Measured], float]) -> float:
        return median(get(run) for run in runs)

    limits = [_limit_rate(model, one, variant) for one in rounds] if mmap else []
    shares = [run.decode / limit for run, limit in zip(runs, limits, strict=False)]
    arena_bytes = middle(lambda run: run.arena_bytes)
    return Row(
        label=variant.label,
        decode=sure(lambda run: run.decode),
        decode_tokens=sure(lambda run: run.decode_tokens),
        parallel=middle(lambda run: run.parallel),
        prefill={
            n: median(rates) for n, rates in _by_phase([run.prefill or {} for run in runs]).items()
        },
        to_mmap=_ratios(rounds, variant.key, mmap) if mmap else {},
        to_ram=_ratios(rounds, variant.key, IN_RAM.key) if variant != IN_RAM else {},
        hit_rate=middle(lambda run: run.hit_rate),
        read_bytes=sure(lambda run: run.read_bytes),
        limit_rate=median(limits) if limits else None,
        limit_share=median(shares) if shares else None,
        arena_bytes=arena_bytes,
        arena_share=None if arena_bytes is None else arena_bytes / model.expert_bytes,
        start_s=sure(lambda run: run.start_s),
        resident_bytes=sure(lambda run: run.resident_bytes),
        anonymous_bytes=sure(lambda run: run.anonymous_bytes),
        peak_bytes=sure(lambda run: run.peak_bytes),
    )


def _limit_rate(model: BenchModel, one: Round, variant: Variant) -> float:
    whole, few = one.measured[IN_RAM.key], one.measured[FEW.key]
    costs = costs_of(1 / whole.decode, model.n_used, 1 / few.decode, FEW_USED)
    missed = one.measured[variant.key].read_bytes
    return 1 / limit_s(costs, model.n_layers, missed, one.disk_bytes_per_s)


def _rates(run: Measured) -> dict[str, float]:
    rates = {"decode": run.decode} | {str(n): rate for n, rate in (run.prefill or {}).items()}
    return rates if run.parallel is None else rates | {"parallel": run.parallel}


def _ratios(rounds: Sequence[Round], key: str, other: str) -> dict[str, float]:
    ratios = []
    for one in rounds:
        ours, theirs = _rates(one.measured[key]), _rates(one.measured[other])
        ratios.append({phase: ours[phase] / theirs[phase] for phase in ours if phase in theirs})
    return {phase: median(values) for phase, values in _by_phase(ratios).items()}


def _by_phase(runs: Sequence[dict[_Phase, float]]) -> dict[_Phase, list[float]]:
    phases = dict.fromkeys(phase for run in runs for phase in run)
    return {phase: [run[phase] for run in runs if phase in run] for phase in phases}
