"""What drafting with an MTP head takes, against the engine's own account of both its contexts.

The engine gives two in a dry start that drafts: of the main context, and of the one that drafts,
whose weights are the main one's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping
from dataclasses import replace

from benchmarks.planner.dry import HOST, drafting_breakdowns
from benchmarks.planner.memory import (
    Compared,
    Planned,
    planned,
    planned_on_card,
    software_card,
    written_cases,
)
from benchmarks.planner.memorycases import Case

from hotset.core.compute import input_bytes
from hotset.core.drafting import DRAFT_TOKENS, drafting, head_spec, second_settings
from hotset.core.modelspec import ModelSpec
from hotset.engine.base import Engine
from hotset.engine.embedded import EmbeddedEngine

__all__ = [
    "DRAFTING_CARD_CASES",
    "DRAFTING_CASES",
    "TINY_DRAFTING_CASES",
    "compare_drafting",
    "is_as_counted",
    "planned_drafting",
    "print_drafting",
]


def _tiny_cases(model: str) -> tuple[Case, ...]:
    plain = Case(model=model, context_tokens=8192, draft_tokens=DRAFT_TOKENS)
    return (
        plain,
        replace(plain, context_tokens=20000, kv="q8_0", slots=3, ubatch_tokens=2048),
        replace(plain, context_tokens=4096, slots=2, flash="off"),
    )


TINY_DRAFTING_CASES = tuple(
    case
    for model in ("qwen35-mtp", "qwen35moe-mtp", "glm4moe-mtp", "qwen4exp-mtp")
    for case in _tiny_cases(model)
)
"""Every synthetic family with a head."""

_SIZES = ((4096, 512), (8192, 2048), (32768, 512), (131072, 2048), (262144, 512))

DRAFTING_CASES = tuple(
    Case(
        model=model,
        mix=mix,
        context_tokens=context,
        kv=kv,
        slots=slots,
        ubatch_tokens=ubatch,
        draft_tokens=DRAFT_TOKENS,
    )
    for model, mix in (("qwen3.6-35b-a3b-mtp", "Q4_K_XL"), ("glm-4.5-air-mtp", "Q2_K"))
    for kv, slots in (("f16", 1), ("q8_0", 1), ("f16", 4))
    for context, ubatch in (_SIZES if slots == 1 else _SIZES[:2])
)
"""Models at full size, as sparse files."""

_HEAD_AND_OUTPUT = 2  # units

DRAFTING_CARD_CASES = tuple(
    replace(case, gpu_layers=units)
    for case in _tiny_cases("qwen35moe-mtp")[:2]
    for units in (99, _HEAD_AND_OUTPUT)
)
"""All on the card; the head and the output alone."""


def planned_drafting(
    spec: ModelSpec, case: Case
) -> tuple[tuple[Planned, ...], tuple[Planned, ...]]:
    """The main context and the one that drafts, each by device, RAM last."""
    settings = replace(case.cache_settings(), draft_tokens=0)
    added, head = drafting(spec, settings, draft_tokens=case.draft_tokens), head_spec(spec)
    assert added is not None
    assert head is not None
    n_units = len(spec.layers) + 1
    first = n_units - min(case.gpu_layers or 0, n_units)  # unit on the card
    units = {HOST: range(first), "Vulkan0": range(first, n_units)}
    main, second = [], []
    for trunk in planned_on_card(spec, case) if case.gpu_layers else (planned(spec, case),):
        weights, caches = added.share(units[trunk.device])
        row = replace(trunk, model_bytes=trunk.model_bytes + weights)
        is_beside = bool(case.gpu_layers) and row.device == HOST
        compute = input_bytes(head, second_settings(settings)) if is_beside else added.compute_bytes
        main.append(row)
        second.append(replace(row, context_bytes=caches, compute_bytes=compute))
    return tuple(main), tuple(second)


def compare_drafting(
    cases: tuple[Case, ...],
    engine: Engine | None = None,
    environ: Mapping[str, str] | None = None,
) -> Iterator[tuple[str, Compared]]:
    """Dry starts that draft, of the embedded engine where none is given: for each case a line for
    every device of the "main" context and of the "draft" context."""
    engine = engine or EmbeddedEngine()
    for case, file, spec in written_cases(cases):
        taken = drafting_breakdowns(engine, case.settings(file), environ or os.environ)
        for name, ours, theirs in zip(
            ("main", "draft"), planned_drafting(spec, case), taken, strict=True
        ):
            for own, their in zip(ours, theirs, strict=True):
                yield name, Compared(case, own, their)


def is_as_counted(name: str, row: Compared) -> bool:
    """Within tolerance. What RAM holds of a batch for whole recurrent blocks there, which a card
    computes, is counted as without drafting and comes out too small; weights and caches count."""
    is_streamed = row.case.gpu_layers == _HEAD_AND_OUTPUT and row.planned.device == HOST
    return row.is_exact if is_streamed and name == "main" else row.is_within


def print_drafting() -> int:
    """Compare and print. Returns 1 if a row is out of tolerance."""
    rows = list(compare_drafting((*TINY_DRAFTING_CASES, *DRAFTING_CASES)))
    with software_card() as found:
        if found:
            rows += compare_drafting(DRAFTING_CARD_CASES, *found)
    print("\n".join(_lines(rows)))
    off = sum(not is_as_counted(name, row) for name, row in rows)
    print(
        f"\n{len(rows)} rows, {sum(row.is_exact for _, row in rows)} exact, {off} out of tolerance"
    )
    return 1 if off else 0


def _lines(rows: list[tuple[str, Compared]]) -> Iterator[str]:
    yield "| Model | Units | Context | KV | Batch | Slots | FA | Of | Model | KV, state | Compute |"
    yield "|---|---:|---:|---|---:|---:|---|---|---:|---:|---:|"
    for name, row in rows:
        case, ours, theirs = row.case, row.planned, row.taken
        units = case.gpu_layers or "-"
        yield (
            f"| {case.model} {case.mix} | {units} | {case.context_tokens:,} | {case.kv} |"
            f" {case.ubatch_tokens} | {case.slots} | {case.flash} | {name}, {ours.device} |"
            f" {ours.model_bytes // 2**20} / {theirs.model_mib} |"
            f" {ours.context_bytes // 2**20} / {theirs.context_mib} |"
            f" {ours.compute_bytes / 2**20:.1f} / {theirs.compute_mib} |"
        )
