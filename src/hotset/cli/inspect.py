"""`hotset inspect`: what a GGUF file or a directory of them is."""

from __future__ import annotations

import os.path
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from hotset.gguf.library import Entry
    from hotset.gguf.report import BlockGroup, Report

__all__ = ["inspect"]

_BAR_WIDTH = 24
_LABEL_WIDTH = 11
_NAME_LIMIT = 60
_RANGES_SHOWN = 4


def inspect(
    name: Annotated[
        str,
        typer.Argument(
            metavar="PATH",
            help="A GGUF file, any shard of a set, or a directory; or 'smollm2' or 'smollm2-moe'"
            " for the demo's.",
        ),
    ],
    as_json: Annotated[
        bool, typer.Option("--json", help="The same facts as JSON, units in the key names.")
    ] = False,
) -> None:
    """Say what a model file is: sizes, experts, context, cache, projector, problems.

    Ends with code 2 when the file cannot be used.
    """
    from hotset.cli.subjects import expanded, resolve_model

    if name and os.path.isdir(expanded(name)):  # unlike Path.is_dir, never raises
        _inspect_directory(expanded(name), as_json)
    else:
        _inspect_file(resolve_model(name), as_json)


def _inspect_file(path: Path, as_json: bool) -> None:
    import sys

    from hotset.gguf.report import make_report
    from hotset.gguf.shards import open_model

    report = make_report(open_model(path))
    if as_json:
        from dataclasses import asdict

        _echo_json(asdict(report))
    else:
        typer.echo("\n".join(_screen(report, has_bars=sys.stdout.isatty())))
    if report.problems:
        raise typer.Exit(2)


def _inspect_directory(path: Path, as_json: bool) -> None:
    from hotset.core.errors import FileProblem
    from hotset.gguf.library import list_models
    from hotset.gguf.window import printable

    entries = list_models(path)
    if not entries:
        raise FileProblem(
            f"{printable(str(path))}: no .gguf file in this directory or below it; "
            "give the directory that has your models"
        )
    if as_json:
        _echo_json({"directory": str(path), "files": [_entry_facts(entry) for entry in entries]})
    else:
        typer.echo("\n".join(_listing(path, entries)))


def _echo_json(facts: object) -> None:
    import json

    typer.echo(json.dumps(facts, indent=2))


def _entry_facts(entry: Entry) -> dict[str, object]:
    return {
        "path": str(entry.path),
        "kind": entry.kind.value if entry.kind else "none",
        "shards": len(entry.model.paths) if entry.model else 0,
        "file_bytes": entry.model.file_bytes if entry.model else 0,
        "problem": entry.problem,
    }


def _listing(directory: Path, entries: Sequence[Entry]) -> Iterator[str]:
    """One line per entry: name, size, kind, and what is wrong with it."""
    from hotset.core.units import format_bytes
    from hotset.gguf.window import printable

    names = [printable(str(entry.path.relative_to(directory)), _NAME_LIMIT) for entry in entries]
    width = max(len(name) for name in names)
    for name, entry in zip(names, entries, strict=True):
        size = format_bytes(entry.model.file_bytes) if entry.model else "-"
        kind = entry.kind.value if entry.kind else "none"
        shards = len(entry.model.paths) if entry.model else 1
        remarks = [f"{shards} shards"] if shards > 1 else []
        if entry.problem:
            remarks.append(entry.problem)
        yield f"{name:<{width}}  {size:>10}  {kind:<15}  {', '.join(remarks)}".rstrip()


def _screen(report: Report, *, has_bars: bool) -> Iterator[str]:
    """The report as lines, the answer first."""
    from hotset.core.units import format_bytes
    from hotset.gguf.window import printable

    mix = ", ".join(f"{t} {format_bytes(n)}" for t, n in report.bytes_by_type.items())
    title = [printable(report.name), printable(report.architecture) or "no architecture"]
    yield " · ".join([*title, report.kind, format_bytes(report.tensor_bytes)])
    for problem in report.problems:
        yield _line("problem", problem)
    for note in report.notes:
        yield _line("note", note)
    yield _line("file", _files(report))
    yield _line("types", mix or "no tensors")
    if report.blocks or report.mtp_blocks:
        yield from _model_lines(report)
    if report.projector_output_elements:
        yield _line("puts out", f"{report.projector_output_elements:,} elements per token")
    yield _line("tokenizer", _tokenizer(report))
    if report.bytes_by_role:
        yield ""
        yield from _table("bytes by role", report.bytes_by_role, has_bars=has_bars)
    if report.block_groups:
        yield ""
        yield "bytes by block"
        for group in report.block_groups:
            yield _group_line(group)


def _model_lines(report: Report) -> Iterator[str]:
    from hotset.core.units import format_bytes
    from hotset.gguf.window import printable

    mtp = f" and {report.mtp_blocks} of an MTP head" if report.mtp_blocks else ""
    yield _line("blocks", f"{report.blocks}{mtp}, width {report.embedding_elements:,}")
    experts = report.experts
    if experts is None:
        yield _line("experts", "none (dense)")
    else:
        yield _line(
            "experts",
            f"{experts.count} in {experts.blocks} blocks, {experts.used} used: "
            f"{format_bytes(experts.n_bytes)}, {format_bytes(experts.bytes_per_token)} per token",
        )
    known = f"{report.context_tokens:,} tokens" if report.context_tokens else "not stated"
    yield _line("context", known)
    for cache in report.kv_cache:
        keeps = cache.limit_tokens or report.context_tokens
        limit = f" (at most {cache.limit_tokens:,} tokens)" if cache.limit_tokens else ""
        total = (
            f", {format_bytes(keeps * cache.f16_bytes_per_token)} for all of it" if keeps else ""
        )
        yield _line(
            "KV f16",
            f"{cache.f16_bytes_per_token:,} bytes per token{limit}: {cache.kind}, "
            f"{cache.blocks} blocks{total}",
        )
    if report.recurrent_state_bytes_per_sequence:
        state = format_bytes(report.recurrent_state_bytes_per_sequence)
        yield _line("state", f"{state} per sequence (recurrent)")
    for projector in report.projectors:
        yield _line("projector", printable(Path(projector).name))


def _line(label: str, text: str) -> str:
    return f"  {label:<{_LABEL_WIDTH}}{text}"


def _files(report: Report) -> str:
    from hotset.core.units import format_bytes
    from hotset.gguf.window import printable

    first = report.files[0]
    size = format_bytes(sum(file.file_bytes for file in report.files))
    count = f"{len(report.files)} shards, " if len(report.files) > 1 else ""
    name = printable(Path(first.path).name)
    return f"{name}, {count}{size}, {report.tensors:,} tensors, GGUF version {first.gguf_version}"


def _tokenizer(report: Report) -> str:
    if not report.has_tokenizer:
        return "none"
    template = "with" if report.has_chat_template else "without"
    return f"{report.vocabulary_tokens:,} tokens, {template} chat template"


def _table(title: str, sizes: Mapping[str, int], *, has_bars: bool) -> Iterator[str]:
    from hotset.core.units import format_bytes

    total = sum(sizes.values())
    yield title
    for label, n_bytes in sizes.items():
        share = n_bytes / total if total else 0.0
        bar = "  " + "█" * round(share * _BAR_WIDTH) if has_bars else ""
        yield f"  {label:<16}{format_bytes(n_bytes):>10}  {share:6.1%}{bar}".rstrip()


def _group_line(group: BlockGroup) -> str:
    from hotset.core.units import format_bytes

    each = " each" if len(group.blocks) > 1 else ""
    roles = ", ".join(f"{role} {format_bytes(n)}" for role, n in group.bytes_by_role.items())
    return (
        f"  blk {_ranges(group.blocks)}: {format_bytes(group.n_bytes)}{each} ({roles}); "
        f"cache: {group.cache}"
    )


def _ranges(numbers: Sequence[int]) -> str:
    """Ascending numbers in short: `0-39`, `3-47 every 4th`, `0-2, 5, 7-9 and 4 more`."""
    step = numbers[1] - numbers[0] if len(numbers) > 2 else 1
    if step > 1 and tuple(numbers) == tuple(range(numbers[0], numbers[-1] + 1, step)):
        return f"{numbers[0]}-{numbers[-1]} every {step}{_ordinal(step)}"
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][-1] + 1:
            runs[-1].append(number)
        else:
            runs.append([number])
    shown = [f"{run[0]}-{run[-1]}" if len(run) > 1 else str(run[0]) for run in runs]
    hidden = sum(len(run) for run in runs[_RANGES_SHOWN:])
    more = f" and {hidden} more" if hidden else ""
    return ", ".join(shown[:_RANGES_SHOWN]) + more


def _ordinal(number: int) -> str:
    return {2: "nd", 3: "rd"}.get(number, "th")
