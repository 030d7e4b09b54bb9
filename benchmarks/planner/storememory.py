"""The buffers of a batch with the expert store, against the engine's own account.

Experts are never read before somebody asks for them, so the files can be sparse, and what is loaded
is what is no expert.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from statistics import median

from benchmarks.planner.memory import written_cases
from benchmarks.planner.memorycases import Case

from hotset.core.compute import compute_bytes_estimate
from hotset.core.errors import EngineProblem
from hotset.core.loaded import BufferKind
from hotset.core.settings import ExpertStore
from hotset.core.storecompute import store_compute_bytes
from hotset.core.units import MIB, format_count
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.start import start
from hotset.store import check_embedded, child_settings, find_native
from hotset.store.child import BUFFER_TYPE
from hotset.store.page import CountersPage

__all__ = ["STORE_CASES", "STORE_TITLE", "Stored", "compare_stores", "store_lines", "store_summary"]

STORE_TITLE = "## With the expert store"

_PAIRS = (
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("qwen3.6-35b-a3b", "IQ4_XS"),
    ("qwen3-next-80b-a3b", "Q4_K_M"),
    ("gpt-oss-20b", "MXFP4"),
    ("gpt-oss-120b", "MXFP4"),
    ("gemma-4-26b-a4b", "Q8_0"),
    ("glm-4.7-flash", "Q6_K"),
    ("mixtral-8x7b", "Q4_0"),
    ("olmoe-1b-7b", "Q8_0"),
    ("granite-3.1-3b-a800m", "Q4_K_M"),
)


def _cases() -> tuple[Case, ...]:
    found = []
    for model, mix in _PAIRS:
        plain = Case(model=model, mix=mix, context_tokens=8192)
        found += [
            replace(plain, context_tokens=4096, ubatch_tokens=16),
            replace(plain, ubatch_tokens=128),
            plain,
            replace(plain, context_tokens=16384, ubatch_tokens=2048, kv="q8_0"),
            replace(plain, flash="off"),
            replace(plain, context_tokens=4096, slots=4),
        ]
    return tuple(found)


STORE_CASES = _cases()

_WORDS = """The store is a device of the engine, and what it makes of a batch lies in a buffer of
its own. It is replayed on the engine's allocator (`core/storecompute.py`): gate, up and their
product for all experts in use, and what down makes, where the gap of gate and up does not hold it.
The CPU's buffer shrinks by what the experts held there, which is less: they shared it with
attention. Starts of xllamacpp on sparse files; the engine shows hundredths of a MiB. `python -m
benchmarks.planner memory --store --write` makes this part alone."""


@dataclass(frozen=True, slots=True)
class Stored:
    """One start: hotset's figures beside the engine's, bytes."""

    case: Case
    planned_store: int
    planned_processor: int
    store: int
    processor: int

    @property
    def error_mib(self) -> float:
        """Of both together; more than the engine's."""
        return (self.planned_store + self.planned_processor - self.store - self.processor) / MIB

    @property
    def share(self) -> float:
        return self.error_mib * MIB / (self.store + self.processor)

    @property
    def is_within(self) -> bool:
        """Never too little, and within 10 % or 64 MiB."""
        return self.error_mib > -1 and (self.error_mib <= 64 or self.share <= 0.1)


def compare_stores(cases: Sequence[Case]) -> Iterator[Stored]:
    """Starts of the embedded engine with the store.

    Raises:
        EngineProblem: the engine does not take the store.
    """
    engine, native = EmbeddedEngine(), find_native()
    check = check_embedded(os.environ, native)
    if check.plugin is None:
        raise EngineProblem(f"engine {check.engine}: {check.reason}")
    for case, file, spec in written_cases(tuple(cases)):
        asked = case.cache_settings()
        with CountersPage() as page:
            child = child_settings(native, check.plugin, [file], ram_bytes=0, counters=page.path)
            store = ExpertStore(
                plugin=check.plugin,
                ram_bytes=0,
                counters=page.path,
                environment=child.environment,
                server_environment=child.plugin_environment,
                server_arguments=tuple(child.arguments),
            )
            settings = replace(case.settings(file), load_mode="mmap", expert_store=store)
            with start(engine, settings, os.environ) as running:
                buffers = running.loaded.buffers
        taken = [buffer for buffer in buffers if buffer.kind is BufferKind.COMPUTE]
        yield Stored(
            case,
            store_compute_bytes(spec, asked),
            compute_bytes_estimate(spec, asked, has_experts=False),
            sum(buffer.n_bytes for buffer in taken if buffer.device == BUFFER_TYPE),
            sum(buffer.n_bytes for buffer in taken if buffer.device != BUFFER_TYPE),
        )


def store_summary(rows: Sequence[Stored]) -> str:
    """The figures of all rows, in a line."""
    worst = max(rows, key=lambda row: abs(row.error_mib))
    apart = max(abs(row.planned_store - row.store) for row in rows) / MIB
    return (
        f"{len(rows)} starts, {sum(row.is_within for row in rows)} within; the store's buffer is"
        f" off by {apart:.2f} MiB at most, both together by {worst.error_mib:+.1f} MiB"
        f" ({worst.share:+.1%}) at worst, the median is"
        f" {median(row.error_mib for row in rows):+.1f} MiB."
    )


def store_lines(rows: Sequence[Stored]) -> list[str]:
    """The section of docs/memory.md."""
    title = (
        "| Model | Context | KV | Batch | Slots | FA | Store MiB | CPU MiB | Error MiB | Share |\n"
        "|---|---:|---|---:|---:|---|---:|---:|---:|---:|"
    )
    lines = [STORE_TITLE, "", _WORDS, "", store_summary(rows), "", title]
    for row in rows:
        case = row.case
        lines.append(
            f"| {case.model} {case.mix} | {format_count(case.context_tokens)} | {case.kv} |"
            f" {case.ubatch_tokens} | {case.slots} | {case.flash} |"
            f" {row.planned_store / MIB:.2f} / {row.store / MIB:.2f} |"
            f" {row.planned_processor / MIB:.2f} / {row.processor / MIB:.2f} |"
            f" {row.error_mib:+.2f} | {row.share:+.1%} |"
        )
    return [*lines, ""]
