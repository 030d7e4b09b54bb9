"""How well the speed model predicts published runs: fitted on one half, judged by the other."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from math import exp, log
from statistics import median

from benchmarks.planner.rows import Row, decode_per_s, prefill_per_s, read_rows

from hotset.core.speed import FITTED, Rates

__all__ = ["NOMINAL_SHARE", "fit", "halves", "print_table", "rank_correlation"]

NOMINAL_SHARE = 0.80
"""Of the bandwidth that memory modules are sold with, what a read of all cores measures."""

_FITTED_NAMES = ("vram_share", "unit_s", "ram_share", "crossing_s")
_BOUNDS = {
    "vram_share": (0.5, 0.9),
    "unit_s": (5e-6, 400e-6),
    "ram_share": (0.5, 1.0),
    "crossing_s": (5e-6, 400e-6),
    "nominal_share": (0.6, 0.8),
}
_STEPS = 60


def halves(rows: Sequence[Row]) -> tuple[list[Row], list[Row]]:
    """Every other run of each kind, in the order of the file; inferred ones are in neither."""
    fitted: list[Row] = []
    held: list[Row] = []
    for kind in ("experts in RAM", "all on cards", "no card"):
        of_kind = [row for row in rows if row.kind == kind and row.decode]
        fitted += of_kind[::2]
        held += of_kind[1::2]
    return fitted, held


def error(row: Row, rates: Rates, nominal_share: float) -> float:
    """Predicted over measured, as a logarithm."""
    return log(decode_per_s(row, rates, nominal_share) / (row.decode or 1.0))


def fit(rows: Sequence[Row]) -> tuple[Rates, float]:
    """The constants with the least mean absolute logarithmic error, by ever smaller steps."""
    best = {name: getattr(FITTED, name) for name in _FITTED_NAMES}
    best["nominal_share"] = NOMINAL_SHARE

    def loss(values: dict[str, float]) -> float:
        rates, share = _unpacked(values)
        return sum(abs(error(row, rates, share)) for row in rows) / len(rows)

    lowest, step = loss(best), 0.4
    for _ in range(_STEPS):
        is_better = False
        for name, (low, high) in _BOUNDS.items():
            for factor in (exp(step), exp(-step)):
                tried = best | {name: min(max(best[name] * factor, low), high)}
                if (cost := loss(tried)) < lowest - 1e-9:
                    best, lowest, is_better = tried, cost, True
        if not is_better:
            step /= 2
    return _unpacked(best)


def _unpacked(values: dict[str, float]) -> tuple[Rates, float]:
    return replace(FITTED, **{n: values[n] for n in _FITTED_NAMES}), values["nominal_share"]


def rank_correlation(xs: Sequence[float], ys: Sequence[float]) -> float:
    """Spearman's, with mean ranks for equal values."""

    def ranks(values: Sequence[float]) -> list[float]:
        return [
            sum(other < value for other in values)
            + (sum(other == value for other in values) - 1) / 2
            for value in values
        ]

    a, b = ranks(xs), ranks(ys)
    mean = (len(xs) - 1) / 2
    top = sum((x - mean) * (y - mean) for x, y in zip(a, b, strict=True))
    spread = (sum((x - mean) ** 2 for x in a) * sum((y - mean) ** 2 for y in b)) ** 0.5
    return top / spread if spread else 0.0


def print_table() -> None:
    """The constants, every run, and the errors by kind."""
    rows = read_rows()
    fitted, held = halves(rows)
    rates, share = fit(fitted)
    shown = {name: getattr(rates, name) for name in _FITTED_NAMES} | {"nominal_share": share}
    print("fitted now:  " + "  ".join(f"{name} {value:.3g}" for name, value in shown.items()))
    used = {name: getattr(FITTED, name) for name in _FITTED_NAMES}
    used["nominal_share"] = NOMINAL_SHARE
    print("in the code: " + "  ".join(f"{name} {value:.3g}" for name, value in used.items()))
    print()
    print("| id | kind | model | cards | host blocks | half | measured | predicted | error |")
    print("|---|---|---|---|---:|---|---:|---:|---:|")
    for row in rows:
        if row.decode:
            half = "fit" if row in fitted else "held" if row in held else "-"
            predicted = decode_per_s(row, FITTED, NOMINAL_SHARE)
            print(
                f"| {row.id} | {row.kind} | {row.model} {row.mix} | {row.gpus}x {row.gpu or 'none'}"
                f" | {row.host_layers} | {half} | {row.decode:.1f} | {predicted:.1f}"
                f" | {predicted / row.decode - 1:+.0%} |"
            )
    print()
    _print_summary("decode, fitted half", fitted, _decode_of, _decoded)
    _print_summary("decode, held-out half", held, _decode_of, _decoded)
    for kind in ("experts in RAM", "all on cards"):
        of_kind = [row for row in held if row.kind == kind]
        _print_summary(f"decode, held out, {kind}", of_kind, _decode_of, _decoded)
    inferred = [row for row in rows if row.kind == "RAM speed inferred"]
    _print_summary("decode, RAM speed inferred", inferred, _decode_of, _decoded)
    prefills = [row for row in rows if row.prefill]
    _print_summary(
        "prefill, all",
        prefills,
        lambda row: row.prefill or 0.0,
        lambda row: prefill_per_s(row, FITTED, NOMINAL_SHARE),
    )


def _decode_of(row: Row) -> float:
    return row.decode or 0.0


def _decoded(row: Row) -> float:
    return decode_per_s(row, FITTED, NOMINAL_SHARE)


def _print_summary(
    what: str,
    rows: Sequence[Row],
    measured: Callable[[Row], float],
    predicted: Callable[[Row], float],
) -> None:
    if not rows:
        return
    truth, guess = [measured(row) for row in rows], [predicted(row) for row in rows]
    errors = [abs(g / t - 1) for g, t in zip(guess, truth, strict=True)]
    print(
        f"{what:<34} {len(rows):>2} runs  median error {median(errors):>4.0%}"
        f"  worst {max(errors):>4.0%}  rank correlation {rank_correlation(truth, guess):.2f}"
    )
