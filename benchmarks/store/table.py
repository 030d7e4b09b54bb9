"""The results as a table for people and as JSON for programs."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import asdict

from benchmarks.store.results import ModelResults, Row, rows_of

from hotset.core.units import MIB, format_bytes

__all__ = ["as_json", "as_table"]


def as_table(results: ModelResults) -> str:
    """One model: a headline, a table, one line per variant."""
    model, rows = results.model, rows_of(results)
    lengths = sorted({n for row in rows for n in row.prefill})
    phases = ["decode", *map(str, lengths), "parallel"]
    head = ["", "arena MiB", "of exp.", "hit", "MiB/tok", "of limit"]
    for phase in phases:
        name = {"decode": "decode", "parallel": "2 at once"}.get(phase, f"pp{phase}")
        head += [name, "/mmap", "/RAM"]
    head += ["start s", "pages MiB", "anon MiB", "peak MiB"]
    body = [_cells(row, lengths, phases) for row in rows]
    widths = [max(len(line[i]) for line in [head, *body]) for i in range(len(head))]
    lines = [
        "  ".join(
            cell.ljust(width) if i == 0 else cell.rjust(width)
            for i, (cell, width) in enumerate(zip(line, widths, strict=True))
        )
        for line in [head, *body]
    ]
    disk = sorted(one.disk_bytes_per_s for one in results.rounds)[len(results.rounds) // 2]
    title = (
        f"{model.mix}, {model.locality} routing: {format_bytes(model.file_bytes)}, "
        f"{format_bytes(model.expert_bytes)} of it experts; medians of {len(results.rounds)}; "
        f"disk {disk / 1e9:.2f} GB/s by the matrix; tokens/s"
    )
    return "\n".join([title, *lines])


def _cells(row: Row, lengths: Sequence[int], phases: Sequence[str]) -> list[str]:
    rates = {"decode": row.decode, "parallel": row.parallel}
    rates |= {str(n): row.prefill.get(n) for n in lengths}
    cells = [
        row.label, _mib(row.arena_bytes), _percent(row.arena_share), _percent(row.hit_rate),
        f"{row.read_bytes / MIB:.1f}", _percent(row.limit_share),
    ]  # fmt: skip
    for phase in phases:
        cells += [_rate(rates[phase]), _ratio(row.to_mmap, phase), _ratio(row.to_ram, phase)]
    sizes = (row.resident_bytes, row.anonymous_bytes, row.peak_bytes)
    return [*cells, f"{row.start_s:.2f}", *map(_mib, sizes)]


def _rate(value: float | None) -> str:
    return "" if value is None else f"{value:.2f}"


def _ratio(ratios: dict[str, float], phase: str) -> str:
    return f"{ratios[phase]:.2f}" if phase in ratios else ""


def _mib(n_bytes: float | None) -> str:
    return "" if n_bytes is None else f"{n_bytes / MIB:.0f}"


def _percent(share: float | None) -> str:
    return "" if share is None else f"{100 * share:.1f}%"


def as_json(machine: dict[str, object], all_results: Sequence[ModelResults]) -> str:
    """Everything that was measured, and the rows made of it."""
    models = []
    for results in all_results:
        known = asdict(results)
        # Thousands of offsets, of no use to a reader.
        del known["model"]["matrices"]
        known["model"]["path"] = results.model.path.name
        models.append(known | {"rows": [asdict(row) for row in rows_of(results)]})
    return json.dumps({"machine": machine, "models": models}, indent=1)
