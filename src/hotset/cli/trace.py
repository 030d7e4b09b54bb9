"""`hotset trace`: record which experts a model chooses, and look at what was recorded."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import EngineName, Json, ModelName, Ram, Threads
from hotset.core.errors import ConfigProblem, FileProblem, MachineProblem

if TYPE_CHECKING:
    from hotset.lab.locality import LayerSummary

__all__ = ["trace"]

_MOST_PROMPT_BYTES = 16 << 20
_PARTING = "---"
_SHADES = " ░▒▓█"
_MAP_COLUMNS = 64

trace = typer.Typer(name="trace", rich_markup_mode=None)


@trace.callback(invoke_without_command=True)
def commands(context: typer.Context) -> None:
    """Routing traces: record which experts a model chooses, and look at it."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@trace.command()
def record(
    model: ModelName,
    prompts: Annotated[
        Path,
        typer.Option(
            "--prompts",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="A text file. Lines of --- part its prompts; without them each line is one.",
        ),
    ],
    out: Annotated[
        Path,
        typer.Option(
            "--out", "-o", readable=False, help="The new trace. [default: after the model's name]"
        ),
    ] = Path(),
    max_tokens: Annotated[
        int, typer.Option("--max-tokens", help="Longest answer to a prompt, in tokens.")
    ] = 128,
    temp: Annotated[float, typer.Option("--temp", help="Temperature of the answers.")] = 0.7,
    ram: Ram = None,
    threads: Threads = None,
    engine: EngineName = "embedded",
) -> None:
    """Ask MODEL each prompt and write down its routing.

    The text is thrown away. A model that fits into RAM is computed where it is mapped, so that
    recording costs next to nothing; a larger one runs through the expert store.
    """
    from hotset.cli.chat import Conversation
    from hotset.cli.experts import watched_store
    from hotset.cli.launching import launch, prepare, through_store
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import settings_of
    from hotset.cli.wishing import wishes_from

    if max_tokens < 1:
        raise ConfigProblem(f"--max-tokens is {max_tokens}; it must be at least 1")
    if not 0 <= temp <= 10:
        raise ConfigProblem(f"--temp is {temp}; it must be between 0 and 10")
    texts = _read_prompts(prompts)
    ready = prepare(model, wishes_from(None, None, 1, threads, ram, is_serving=False), engine)
    if ready.plugin is None:
        ready = through_store(ready, 0)
    if out == Path():
        out = Path(f"{ready.path.stem}.trace")
    with watched_store(ready, out) as (store, experts):
        with LoadingLine() as loading:
            settings = settings_of(ready, store=store)
            running = launch(ready, settings, loading.show, on_line=experts.hear)
        with running:
            experts.adopt()
            for number, text in enumerate(texts, 1):
                # The same prompts give the same answers again.
                options = {"max_tokens": max_tokens, "temperature": temp, "seed": number}
                answer = Conversation(running, "", options, is_shown=False).ask(text)
                if answer.finish_reason == "interrupted":
                    break
                tokens = answer.timings.answer_tokens if answer.timings else 0
                note(f"prompt {number} of {len(texts)}: {tokens} tokens")
        experts.check_trace()
    note(f"written to {out} · next: hotset trace show {out}, hotset simulate {out}")


def _read_prompts(path: Path) -> list[str]:
    """The prompts of a file.

    Raises:
        FileProblem: it cannot be read, is no text, is too large or holds none.
    """
    try:
        with path.open("rb") as file:
            content = file.read(_MOST_PROMPT_BYTES + 1)
        if len(content) > _MOST_PROMPT_BYTES:
            raise FileProblem(f"{path}: larger than 16 MiB; give fewer prompts")
        lines = content.decode("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise FileProblem(f"{path}: not a text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise FileProblem(f"{path}: cannot be read: {error.strerror}") from error
    texts = lines
    if _PARTING in lines:
        blocks = groupby(lines, lambda line: line == _PARTING)
        texts = ["\n".join(block) for is_parting, block in blocks if not is_parting]
    prompts = [text.strip() for text in texts if text.strip()]
    if not prompts:
        raise FileProblem(f"{path}: holds no prompt; write one on each line")
    return prompts


@trace.command()
def show(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="A routing trace, or a CSV recording.",
        ),
    ],
    with_map: Annotated[
        bool, typer.Option("--map", help="Show which experts of each layer were chosen.")
    ] = False,
    svg: Annotated[
        Path | None, typer.Option("--svg", readable=False, help="Write that map as a picture.")
    ] = None,
    as_json: Json = False,
) -> None:
    """What a routing trace tells of each layer.

    Steps are batches of up to 8 tokens, the rest is prompt. DISTINCT: different experts chosen.
    TOP 10 %: share of the choices that fell on the tenth of the experts that was chosen most.
    REUSE: share of a step's experts that the step before it used as well. AFTER: tokens until an
    expert is used again, for half of the uses, and for nine tenths.
    """
    from hotset.lab.locality import summarize
    from hotset.lab.routing import read_records

    layers = summarize(read_records(file))
    if svg is not None:
        _write_map(svg, file.name, layers)
    if as_json:
        print(json.dumps([asdict(layer) for layer in layers], indent=1))
        return
    for line in _table(layers):
        print(line)
    if with_map:
        for line in _map(layers):
            print(line)


_ROW = "{:<10} {:>8} {:>8} {:>8} {:>9} {:>13} {:>9} {:>7} {:>8}"


def _table(layers: list[LayerSummary]) -> Iterator[str]:
    from hotset.cli.screen import harmless
    from hotset.core.units import format_bytes

    yield _ROW.format(
        *("LAYER", "EXPERT", "BATCHES", "STEPS", "TOKENS", "DISTINCT", "TOP 10 %", "REUSE", "AFTER")
    )
    for summary in layers:
        layer = summary.layer
        yield harmless(
            _ROW.format(
                layer.name,
                format_bytes(layer.expert_bytes),
                f"{summary.num_batches:,}",
                f"{summary.num_decode_batches:,}",
                f"{summary.num_tokens:,}",
                f"{summary.num_distinct:,} of {layer.num_experts:,}",
                f"{summary.top_share:.0%}",
                "-" if summary.overlap is None else f"{summary.overlap:.0%}",
                "-"
                if summary.reuse_tokens is None
                else f"{summary.reuse_tokens:,}..{summary.reuse_p90_tokens:,}",
            )
        )


def _shares(summary: LayerSummary) -> list[float]:
    """How often each expert was chosen, as a part of the most chosen one of its layer."""
    most = max(summary.choices.values(), default=1)
    return [summary.choices.get(n, 0) / most for n in range(summary.layer.num_experts)]


def _map(layers: list[LayerSummary]) -> Iterator[str]:
    from hotset.cli.screen import harmless

    yield ""
    yield "experts of each layer from left to right; the darker, the more often chosen"
    for summary in layers:
        shares = _shares(summary)
        step = -(-len(shares) // _MAP_COLUMNS)
        cells = [max(shares[at : at + step]) for at in range(0, len(shares), step)]
        row = "".join(_SHADES[-int(-cell * (len(_SHADES) - 1) // 1)] for cell in cells)
        yield f"{harmless(summary.layer.name):<10} {row}"


def _write_map(path: Path, title: str, layers: list[LayerSummary]) -> None:
    from hotset.lab.svg import heat_map

    picture = heat_map(title, [(summary.layer.name, _shares(summary)) for summary in layers])
    try:
        path.write_text(picture, encoding="utf-8")
    except OSError as error:
        raise MachineProblem(f"{path}: cannot be written: {error.strerror}") from error
