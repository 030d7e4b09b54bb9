"""The matrix of policies, traces and capacities, and what it says about the store's default."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from statistics import mean

from benchmarks.lab.recordings import Recordings

from hotset.lab.matrix import BOUND, Cell, Wanted, run_matrix
from hotset.lab.policies import DEFAULT, POLICIES
from hotset.lab.routing import Routing
from hotset.lab.simulate import simulate
from hotset.lab.tiers import simulate_tiers

__all__ = [
    "SHARES",
    "admission_table",
    "half_life_table",
    "hit_table",
    "judge",
    "lead_table",
    "tier_table",
]

SHARES = (0.05, 0.1, 0.2, 0.3, 0.4)
_POLICIES = (DEFAULT, "lru", "layer-lru", "decayed", "layer-lfu", BOUND)
_HALF_LIVES = (16.0, 32.0, 64.0, 128.0, 256.0)
_THRESHOLDS = (0.0, 1.0, 1.25, 1.5, 2.0)
_MOST_LOST_POINTS = 0.5
_TIERS = ((0.05, 0.25), (0.1, 0.3))


@dataclass(frozen=True, slots=True)
class Verdict:
    """The default against recency and against the bound, in points of the hit rate.

    Attributes:
        worst: the least lead over recency, and where.
    """

    worst_points: float
    worst_at: str
    mean_lead_points: float
    mean_gap_points: float


def judge(recordings: Recordings) -> tuple[list[Cell], Verdict]:
    """All replays of the judging recordings, and the verdict on the default."""
    cells = []
    for routing in recordings.judging:
        cells += run_matrix(routing, Wanted(policies=_POLICIES, shares=SHARES))
    rates = {(cell.trace, cell.policy, cell.share): 100 * cell.hit_rate for cell in cells}
    places = [(cell.trace, cell.share) for cell in cells if cell.policy == DEFAULT]
    leads = {
        (trace, share): rates[trace, DEFAULT, share] - rates[trace, "lru", share]
        for trace, share in places
    }
    gaps = [rates[trace, BOUND, share] - rates[trace, DEFAULT, share] for trace, share in places]
    worst = min(leads, key=lambda place: leads[place])
    verdict = Verdict(
        leads[worst], f"{worst[0]} at {worst[1]:.0%}", mean(leads.values()), mean(gaps)
    )
    return cells, verdict


def hit_table(cells: Sequence[Cell]) -> list[str]:
    """Markdown: one row per trace and policy, one column per capacity."""
    lines = _head(["trace", "policy", *(f"{share:.0%}" for share in SHARES)])
    rates = {(cell.trace, cell.policy, cell.share): 100 * cell.hit_rate for cell in cells}
    for trace in dict.fromkeys(cell.trace for cell in cells):
        for policy in _POLICIES:
            values = [f"{rates[trace, policy, share]:.1f}" for share in SHARES]
            lines.append(_row([trace, policy, *values]))
    return lines


def lead_table(cells: Sequence[Cell]) -> list[str]:
    """Markdown: what the default leads recency by, and whether it ever loses half a point."""
    lines = _head(["trace", *(f"{share:.0%}" for share in SHARES), "least", "within 0.5 points"])
    rates = {(cell.trace, cell.policy, cell.share): 100 * cell.hit_rate for cell in cells}
    for trace in dict.fromkeys(cell.trace for cell in cells):
        leads = [rates[trace, DEFAULT, share] - rates[trace, "lru", share] for share in SHARES]
        verdict = "yes" if min(leads) >= -_MOST_LOST_POINTS else "no"
        values = [f"{lead:+.1f}" for lead in (*leads, min(leads))]
        lines.append(_row([trace, *values, verdict]))
    return lines


def half_life_table(routings: Sequence[Routing]) -> list[str]:
    """Markdown: the default's hit rates with other half-lives, on the mean over `routings`."""
    lines = _head(["half-life, tokens", *(f"{share:.0%}" for share in SHARES)])
    for half_life in _HALF_LIVES:
        rule = replace(POLICIES[DEFAULT], half_life_tokens=half_life)
        rates = [
            mean(100 * simulate(routing, rule, share=share).decode.hit_rate for routing in routings)
            for share in SHARES
        ]
        lines.append(_row([f"{half_life:.0f}", *(f"{rate:.1f}" for rate in rates)]))
    return lines


def admission_table(routings: Sequence[Routing], share: float = 0.1) -> list[str]:
    """Markdown: hits and uploads per token as the threshold grows, global and by layer."""
    lines = _head(
        [
            "trace",
            *(
                f"{name}, {threshold:g}"
                for name in ("decayed", DEFAULT)
                for threshold in _THRESHOLDS
            ),
        ]
    )
    for routing in routings:
        cells = []
        for name in ("decayed", DEFAULT):
            for threshold in _THRESHOLDS:
                rule = replace(POLICIES[name], threshold=threshold)
                counts = simulate(routing, rule, share=share).decode
                uploads = counts.num_uploads / max(1, routing.num_decode_tokens)
                cells.append(f"{100 * counts.hit_rate:.1f} / {uploads:.0f}")
        lines.append(_row([routing.name, *cells]))
    return lines


def tier_table(routings: Sequence[Routing]) -> list[str]:
    """Markdown: requests that reach the disk, in percent, with two tiers."""
    lru, quota = POLICIES["lru"], POLICIES[DEFAULT]
    kinds = (
        ("exclusive, lru + lru", lru, lru, False),
        (f"exclusive, {DEFAULT} + lru", quota, lru, False),
        (f"exclusive, {DEFAULT} + {DEFAULT}", quota, quota, False),
        (f"inclusive, {DEFAULT} + {DEFAULT}", quota, quota, True),
    )
    lines = _head(["trace", "VRAM + RAM", *(name for name, *_ in kinds)])
    for routing in routings:
        for fast_share, slow_share in _TIERS:
            values = []
            for _, fast, slow, is_inclusive in kinds:
                counts = simulate_tiers(
                    routing, fast, slow,
                    fast_share=fast_share, slow_share=slow_share, is_inclusive=is_inclusive,
                ).decode  # fmt: skip
                values.append(f"{100 * counts.num_disk / max(1, counts.num_requests):.1f}")
            lines.append(_row([routing.name, f"{fast_share:.0%} + {slow_share:.0%}", *values]))
    return lines


def _head(names: Sequence[str]) -> list[str]:
    return [_row(names), _row(["---"] * len(names))]


def _row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"
