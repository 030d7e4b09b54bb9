"""Many replays of one routing: policies by capacities, as rows and as a plot."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from hotset.core.errors import ConfigProblem
from hotset.core.units import MIB
from hotset.lab.belady import simulate_belady
from hotset.lab.counts import Counts, Outcome, percentile
from hotset.lab.policies import POLICIES, PolicyRule
from hotset.lab.routing import Routing
from hotset.lab.simulate import simulate
from hotset.lab.svg import Line, Panel, line_plot
from hotset.lab.tiers import simulate_tiers

__all__ = ["BOUND", "Cell", "Wanted", "hit_plot", "run_matrix"]

BOUND = "bound"
"""The name of Belady's rule among the policies."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """Which replays.

    Attributes:
        policies: names of `POLICIES`, or BOUND.
        shares: capacities, as parts of all units.
        vram_share: of a faster memory before it, with the same policy; None: there is none.
        half_life_tokens: instead of the policies' own; recency has none.
        threshold: of the admission; 0: every miss is brought in.
    """

    policies: tuple[str, ...]
    shares: tuple[float, ...]
    vram_share: float | None = None
    half_life_tokens: float | None = None
    threshold: float = 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Cell:
    """One replay; counts and rates are those of decoding.

    Attributes:
        share, vram_share: capacities, as parts of all units; vram_share 0: no such memory.
        misses_p50, misses_p95, misses_p99: per event, which is one layer of one step.
    """

    trace: str
    policy: str
    share: float
    vram_share: float
    num_tokens: int
    num_requests: int
    num_hits: int
    hit_rate: float
    num_compulsory: int
    num_capacity: int
    num_evictions: int
    num_in_place: int
    num_uploads: int
    upload_mib_per_token: float
    num_disk: int
    disk_mib_per_token: float
    misses_p50: int
    misses_p95: int
    misses_p99: int
    prompt_requests: int
    prompt_hits: int

    @property
    def is_selective(self) -> bool:
        """Not everything that was read was also moved into the memory at hand."""
        return self.policy != BOUND and self.num_uploads != self.num_disk

    def as_row(self) -> dict[str, object]:
        return asdict(self)


def run_matrix(routing: Routing, wanted: Wanted) -> list[Cell]:
    """All replays, policy by policy.

    Raises:
        ConfigProblem: a wish makes no sense, or a memory holds no expert.
    """
    for name, value in (("half-life", wanted.half_life_tokens), ("threshold", wanted.threshold)):
        if value is None:
            continue
        if not value >= 0 or (name == "half-life" and value == 0):  # which nan is not
            raise ConfigProblem(f"a {name} of {value:g} makes no sense; give a larger one")
    return [
        _cell(routing, policy, share, wanted, _replay(routing, policy, share, wanted))
        for policy in wanted.policies
        for share in wanted.shares
    ]


def _replay(routing: Routing, policy: str, share: float, wanted: Wanted) -> Outcome:
    if policy == BOUND:
        # What both memories together could hold: the disk is read for nothing else.
        return simulate_belady(routing, share=min(1.0, share + (wanted.vram_share or 0.0)))
    rule = _rule(policy, wanted)
    if wanted.vram_share is None:
        return simulate(routing, rule, share=share)
    return simulate_tiers(routing, rule, rule, fast_share=wanted.vram_share, slow_share=share)


def _rule(policy: str, wanted: Wanted) -> PolicyRule:
    rule = replace(POLICIES[policy], threshold=wanted.threshold)
    if rule.half_life_tokens is None or wanted.half_life_tokens is None:
        return rule
    return replace(rule, half_life_tokens=wanted.half_life_tokens)


def _cell(routing: Routing, policy: str, share: float, wanted: Wanted, outcome: Outcome) -> Cell:
    counts: Counts = outcome.decode
    tokens = max(1, routing.num_decode_tokens)
    p50, p95, p99 = (percentile(counts.misses_per_event, p) for p in (0.5, 0.95, 0.99))
    return Cell(
        trace=routing.name,
        policy=policy,
        share=share,
        vram_share=wanted.vram_share or 0.0,
        num_tokens=routing.num_decode_tokens,
        num_requests=counts.num_requests,
        num_hits=counts.num_hits,
        hit_rate=counts.hit_rate,
        num_compulsory=counts.num_compulsory,
        num_capacity=counts.num_misses - counts.num_compulsory,
        num_evictions=counts.num_evictions,
        num_in_place=counts.num_in_place,
        num_uploads=counts.num_uploads,
        upload_mib_per_token=counts.upload_bytes / MIB / tokens,
        num_disk=counts.num_disk,
        disk_mib_per_token=counts.disk_bytes / MIB / tokens,
        misses_p50=p50,
        misses_p95=p95,
        misses_p99=p99,
        prompt_requests=outcome.prompt.num_requests,
        prompt_hits=outcome.prompt.num_hits,
    )


def hit_plot(cells: Sequence[Cell]) -> str:
    """Hit rate over capacity, one panel per trace, one line per policy; SVG."""
    panels = []
    for trace in dict.fromkeys(cell.trace for cell in cells):
        lines = []
        for policy in dict.fromkeys(cell.policy for cell in cells):
            points = sorted(
                (100 * cell.share, 100 * cell.hit_rate)
                for cell in cells
                if (cell.trace, cell.policy) == (trace, policy)
            )
            lines.append(Line(policy, tuple(points)))
        panels.append(Panel(trace, tuple(lines)))
    return line_plot(panels, x_label="memory for experts, % of all", y_label="hits, %")
