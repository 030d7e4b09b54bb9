"""The memory comparison as tables: printed, and as docs/memory.md."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from statistics import median

from benchmarks.planner.memory import (
    Compared,
    Projected,
    compare_cards,
    compare_dry,
    compare_loads,
    compare_projectors,
    software_card,
)
from benchmarks.planner.memorycases import (
    CARD_CASES,
    DRY_CASES,
    LOAD_CASES,
    PROJECTOR_CASES,
    Case,
    quick_cases,
)
from benchmarks.planner.storememory import (
    STORE_CASES,
    STORE_TITLE,
    Stored,
    compare_stores,
    store_lines,
    store_summary,
)

from hotset.core.compute import batch_tokens, mask_bytes
from hotset.core.units import format_count
from hotset.engine.embedded import EmbeddedEngine
from hotset.gguf.synth.fullscale import fullscale_spec

__all__ = ["document", "fitted_rows", "halves", "print_comparison", "print_stores", "summary"]

DOCS = Path(__file__).parents[2] / "docs" / "memory.md"

_HEAD = """# The memory model against the engine

Made by `python -m benchmarks.planner memory --write`; do not edit. What hotset counts, beside what
the engine says that it takes: {build} on the CPU, {server} with a card.

A dry start gives the engine's account before it reads the weights, so the files can be sparse: true
header, full size, no data. The engine rounds down to whole MiB. "Exact" are rows in which both the
model and the context are the engine's whole MiB. Compute is counted never to be less than the
engine's. "Within" are those whose compute is within 10 % or 64 MiB, and the total within 2 % or
64 MiB.

{words}
"""
_COLUMNS = (
    "| Model | Context | KV | Batch | Slots | FA | Model MiB | Context MiB | Compute MiB"
    " | Error MiB | Total |\n|---|---:|---|---:|---:|---|---:|---:|---:|---:|---:|"
)
_CARD_TITLE = "## On a card"
_SHARES = "| Starts | Rows | Exact | Within | Worst compute | Median compute | Worst total |"


def print_stores(*, is_quick: bool, is_written: bool) -> int:
    """The same for the buffers with the expert store, and that section of the page."""
    rows = list(compare_stores(STORE_CASES[:6] if is_quick else STORE_CASES))
    section = "\n".join(store_lines(rows))
    print(section)
    if is_written:
        DOCS.write_text(with_section(DOCS.read_text(), section))
        print(f"wrote {DOCS}")
    return 0 if all(row.is_within for row in rows) else 1


def with_section(page: str, section: str) -> str:
    """The page with this section instead of its own, before that of the card."""
    end = page.index(_CARD_TITLE)
    start = page.find(STORE_TITLE)
    return page[: end if start < 0 else start] + section + "\n" + page[end:]


def print_comparison(*, is_quick: bool, is_written: bool) -> int:
    """Compare, print, and write the page if asked. Returns 1 if a row is out of tolerance."""
    dry = _shown("dry starts", compare_dry(quick_cases() if is_quick else DRY_CASES))
    loads = _shown("loads", compare_loads(LOAD_CASES[:1] if is_quick else LOAD_CASES))
    stores = list(compare_stores(STORE_CASES[:1] if is_quick else STORE_CASES))
    print(store_summary(stores))
    cards: list[Compared] = []
    projectors: list[Projected] = []
    server = "no llama-server"
    with software_card() as found:
        if found is None:
            print(
                "no llama-server with a software card: skipped (docs/memory.md says what it needs)"
            )
        else:
            engine, environ = found
            server = engine.build
            cases = CARD_CASES[:2] if is_quick else CARD_CASES
            cards = _shown("card", compare_cards(cases, engine, environ))
            trials = PROJECTOR_CASES[:1] if is_quick else PROJECTOR_CASES
            projectors = list(compare_projectors(trials, engine, environ))
    print("\n".join([*summary(dry, loads, cards), *_projector_lines(projectors)]))
    if is_written:
        DOCS.write_text(document(dry, loads, stores, cards, projectors, server))
        print(f"wrote {DOCS}")
    are_within = [row.is_within for row in (*dry, *loads, *cards)]
    are_within += [row.is_within for row in projectors]
    are_within += [row.is_within for row in stores]
    return 0 if all(are_within) else 1


def _shown(what: str, rows: Iterable[Compared]) -> list[Compared]:
    """All rows; those out of tolerance are printed as they come."""
    kept = []
    for row in rows:
        kept.append(row)
        if not row.is_within:
            print(f"{what}: out of tolerance: {_line(row)}")
    return kept


def halves(rows: Sequence[Compared]) -> tuple[list[Compared], list[Compared]]:
    """Every other row."""
    return list(rows[::2]), list(rows[1::2])


def fitted_rows(rows: Sequence[Compared]) -> float:
    """Rows of the model's width that the engine holds beside the blocks: the median over dry starts
    with flash attention of models with one residual stream and no indexer."""
    found = []
    for row in rows:
        spec = fullscale_spec(row.case.model, mix=row.case.mix)
        settings = row.case.cache_settings()
        if row.case.flash == "off" or spec.working.lasting_elements:
            continue
        n_tokens = batch_tokens(settings)
        rest = row.taken.compute_mib * 2**20 - mask_bytes(spec, settings)
        found.append((rest / n_tokens / 4 - spec.working.ffn_elements) / spec.n_embd)
    return median(found)


def summary(
    dry: Sequence[Compared], loads: Sequence[Compared], cards: Sequence[Compared]
) -> list[str]:
    """The figures of all parts, as a table."""
    fitted, held = halves(dry)
    parts = [
        ("dry, fitted half", fitted),
        ("dry, held-out half", held),
        ("dry, all", list(dry)),
        ("loads", list(loads)),
        ("card: the card", [row for row in cards if row.planned.device != "Host"]),
        ("card: RAM beside it", [row for row in cards if row.planned.device == "Host"]),
    ]
    return [_SHARES, "|---|---:|---:|---:|---:|---:|---:|", *(_sums(n, r) for n, r in parts if r)]


def _sums(name: str, rows: Sequence[Compared]) -> str:
    worst = max(rows, key=lambda row: abs(row.compute_error_mib))
    middle = median(row.compute_error_mib for row in rows)
    total = max((row.total_share for row in rows), key=abs)
    return (
        f"| {name} | {len(rows)} | {sum(row.is_exact for row in rows)} |"
        f" {sum(row.is_within for row in rows)} |"
        f" {worst.compute_error_mib:+.1f} MiB ({worst.compute_share:+.1%}) |"
        f" {middle:+.1f} MiB | {total:+.2%} |"
    )


def document(
    dry: Sequence[Compared],
    loads: Sequence[Compared],
    stores: Sequence[Stored],
    cards: Sequence[Compared],
    projectors: Sequence[Projected],
    server: str,
) -> str:
    """The page."""
    fitted, _ = halves(dry)
    pairs = {(row.case.model, row.case.mix) for row in dry}
    words = (
        f"{len(dry)} dry starts of {len(pairs)} pairs of model and type mix, {len(loads)} loads,"
        f" {len({row.case for row in cards})} places on a card. The one constant that is fitted,"
        " rows of the model's width beside the blocks, comes from every other dry start:"
        f" {fitted_rows(fitted):.2f} (the code has 5). The other terms follow from the graph; those"
        " of qwen4exp's indexer were found with ten starts of its model, from both halves."
        " granite-3.1-1b-a400m is not tried with quantized KV: the engine aborts on that."
    )
    head = _HEAD.format(build=EmbeddedEngine().build, server=server, words=_wrapped(words))
    lines = [head, *summary(dry, loads, cards), ""]
    lines += ["## Dry starts", "", *_table(dry), ""]
    lines += ["## Loads", "", *_table(loads), "", *store_lines(stores)]
    if cards:
        lines += [_CARD_TITLE, "", _CARD_WORDS, "", *_card_table(cards), ""]
        lines += [*_projector_lines(projectors), ""]
    return "\n".join(lines)


_CARD_WORDS = """Where whole blocks are in RAM, the card computes their large batches, too, with
copies of their matrices and caches. These buffers are replayed tensor by tensor on the engine's
allocator.

Mesa's llvmpipe as the card, in dry starts with a vocabulary of 32,768: it takes no
tensor of more than 128 MiB. It needs requirements/engines.txt, a processor with AVX-512, and a
Vulkan driver for software (`VK_DRIVER_FILES`, or Debian's mesa-vulkan-drivers)."""


def _projector_lines(rows: Sequence[Projected]) -> list[str]:
    """Each load with a projector: what it weighs, and where the engine put it."""
    if not rows:
        return []
    title = "| Projector on | Context | Weights MiB | The engine says |\n|---|---:|---:|---|"
    lines = ["", title]
    for row in rows:
        ours = f"{row.planned_bytes / 2**20:.2f}"
        where = f"{row.taken_mib} MiB, {row.backend}"
        lines.append(f"| {row.case.projector} | {row.case.context_tokens} | {ours} | {where} |")
    return lines


def _wrapped(text: str) -> str:
    """Lines of at most 104 characters."""
    lines = [""]
    for word in text.split():
        if len(lines[-1]) + len(word) > 102:
            lines.append("")
        lines[-1] = f"{lines[-1]} {word}".strip()
    return "\n".join(lines)


def _table(rows: Sequence[Compared]) -> list[str]:
    return [_COLUMNS, *(_line(row) for row in rows)]


def _card_table(rows: Sequence[Compared]) -> list[str]:
    title = _COLUMNS.replace("| Model |", "| Model | Units | Experts in RAM | Device |", 1)
    title = title.replace("|---|", "|---|---:|---:|---|", 1)
    lines = [title]
    for row in rows:
        case = row.case
        units = "all" if case.gpu_layers == 99 else str(case.gpu_layers)
        where = f"| {_name(case)} | {units} | {case.host_experts} | {row.planned.device} |"
        lines.append(_line(row).replace(f"| {_name(case)} |", where, 1))
    return lines


def _name(case: Case) -> str:
    return f"{case.model} {case.mix}".strip()


def _line(row: Compared) -> str:
    case, ours, theirs = row.case, row.planned, row.taken
    model = _beside(ours.model_bytes, theirs.model_mib)
    context = _beside(ours.context_bytes, theirs.context_mib)
    return (
        f"| {_name(case)} | {format_count(case.context_tokens)} | {case.kv} |"
        f" {case.ubatch_tokens} | {case.slots} | {case.flash} | {model} | {context} |"
        f" {ours.compute_bytes / 2**20:.1f} / {theirs.compute_mib} |"
        f" {row.compute_error_mib:+.1f} | {row.total_share:+.2%} |"
    )


def _beside(n_bytes: int, taken_mib: int) -> str:
    """One figure where the two agree, else both."""
    ours = n_bytes // 2**20
    return format_count(ours) if ours == taken_mib else f"**{ours} / {taken_mib}**"
