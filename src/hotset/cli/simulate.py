"""`hotset simulate`: what a cache would have done with recorded routing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import Json
from hotset.core.errors import ConfigProblem, MachineProblem

if TYPE_CHECKING:
    from hotset.lab.matrix import Cell
    from hotset.lab.routing import Routing

__all__ = ["simulate"]

_CAPACITIES = "5%,10%,20%,30%,40%"
_BOUND = "bound"
_SHOWN = f"quota,decayed,lru,{_BOUND}"


def simulate(
    traces: Annotated[
        list[Path],
        typer.Argument(
            metavar="TRACE...",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="Routing traces, or CSV recordings (docs/lab.md).",
        ),
    ],
    policy: Annotated[
        str,
        typer.Option(
            "--policy",
            help="Policies, with commas between: quota (what the store does), decayed, lru,"
            " layer-lru, lfu, layer-lfu, bound (what knowing the future would give).",
        ),
    ] = _SHOWN,
    capacity: Annotated[
        str,
        typer.Option(
            "--capacity",
            help="Shares of the experts, or sizes such as 8GiB, with commas between.",
        ),
    ] = _CAPACITIES,
    vram: Annotated[
        str | None,
        typer.Option(
            "--vram",
            help="A share of the experts in a faster memory before that of --capacity, which then"
            " holds others. Hits are those of the faster one.",
        ),
    ] = None,
    half_life: Annotated[
        float | None,
        typer.Option(
            "--half-life", help="Tokens after which a use counts half, for quota and decayed."
        ),
    ] = None,
    threshold: Annotated[
        float,
        typer.Option(
            "--threshold",
            help="An expert takes another's place only if its uses are more than so many times the"
            " other's, and is used where it lies otherwise.",
        ),
    ] = 0.0,
    model: Annotated[
        str | None,
        typer.Option(
            "--plan",
            metavar="MODEL",
            help="Keep the hit rates for plans of MODEL, which the traces are of: hotset plan, run"
            " and serve then reckon with them.",
        ),
    ] = None,
    with_csv: Annotated[bool, typer.Option("--csv", help="Print CSV, for spreadsheets.")] = False,
    plot: Annotated[
        Path | None,
        typer.Option("--plot", readable=False, help="Write the hit rates as a picture, SVG."),
    ] = None,
    as_json: Json = False,
) -> None:
    """What a cache of experts would have done with recorded routing.

    Shows, for decoding only: hits, in percent of the experts asked for, and what had to be read
    from the disk for each token. Every replay starts with an empty cache, and prompts in a trace
    pass through it as they do in the store.
    """
    from hotset.lab.matrix import Wanted, run_matrix
    from hotset.lab.routing import load_routing

    if with_csv and as_json:
        raise ConfigProblem("--csv and --json: choose one")
    capacities = _words(capacity)
    if not capacities:
        raise ConfigProblem("--capacity is empty; write it like 10%,20% or 8GiB")
    routings = [load_routing(path) for path in traces]
    cells: list[Cell] = []
    for routing in routings:
        wanted = Wanted(
            policies=tuple(_names(policy)),
            shares=tuple(_share(text, routing, "--capacity") for text in capacities),
            vram_share=None if vram is None else _share(vram, routing, "--vram"),
            half_life_tokens=half_life,
            threshold=threshold,
        )
        cells += run_matrix(routing, wanted)
    if plot is not None:
        _write_plot(plot, cells)
    if model is not None:
        from hotset.cli.curves import keep_curve

        keep_curve(model, routings)
    if as_json:
        print(json.dumps([cell.as_row() for cell in cells], indent=1))
    elif with_csv:
        _print_csv(cells)
    else:
        for routing in routings:
            _print_tables(routing, [cell for cell in cells if cell.trace == routing.name])


def _words(text: str) -> list[str]:
    return [word.strip() for word in text.split(",") if word.strip()]


def _names(text: str) -> list[str]:
    from hotset.lab.policies import POLICIES

    names = _words(text)
    known = (*POLICIES, _BOUND)
    for name in names:
        if name not in known:
            raise ConfigProblem(f"--policy is '{name}'; choose among {', '.join(known)}")
    if not names:
        raise ConfigProblem(f"--policy is empty; choose among {', '.join(known)}")
    return names


def _share(text: str, routing: Routing, option: str) -> float:
    """A capacity as a share of all experts."""
    from hotset.core.units import parse_bytes

    if text.endswith("%"):
        try:
            share = float(text[:-1]) / 100
        except ValueError:
            raise ConfigProblem(f"{option} is '{text}'; write it like 10% or 8GiB") from None
    else:
        share = parse_bytes(text, what=option) / routing.all_bytes
    if not 0 < share <= 1:
        raise ConfigProblem(f"{option} is '{text}'; it must be more than 0 and at most 100%")
    return share


def _print_tables(routing: Routing, cells: Sequence[Cell]) -> None:
    from hotset.cli.screen import harmless
    from hotset.core.units import format_bytes

    layers = routing.layers
    experts = {layer.num_experts for layer in layers}
    print(
        harmless(
            f"{routing.name} · {len(layers)} layers with {'/'.join(map(str, sorted(experts)))}"
            f" experts, {format_bytes(routing.all_bytes)} · {routing.num_decode_tokens:,} decoded"
            f" tokens, each touches {routing.cycle_units:.0f} experts"
            f" ({routing.cycle_units / routing.num_units:.1%})"
        )
    )
    shares = list(dict.fromkeys(cell.share for cell in cells))
    policies = list(dict.fromkeys(cell.policy for cell in cells))
    print(_line("capacity", [f"{share:.3g}%" for share in (100 * share for share in shares)]))
    cycle = routing.cycle_units or 1.0
    print(_line("in tokens", [f"{share * routing.num_units / cycle:.1f}" for share in shares]))
    by_key = {(cell.policy, cell.share): cell for cell in cells}
    rows = {policy: [by_key[policy, share] for share in shares] for policy in policies}
    print("hits, %")
    for policy, found in rows.items():
        print(_line(f"  {policy}", [f"{100 * cell.hit_rate:.1f}" for cell in found]))
    print("read from disk, MiB per token")
    for policy, found in rows.items():
        print(_line(f"  {policy}", [f"{cell.disk_mib_per_token:,.1f}" for cell in found]))
    if any(cell.is_selective for cell in cells):
        print("moved into the memory at hand, MiB per token")
        for policy, found in rows.items():
            print(_line(f"  {policy}", [f"{cell.upload_mib_per_token:,.1f}" for cell in found]))
    print()


def _line(name: str, values: Sequence[str]) -> str:
    return f"{name:<14}" + "".join(f"{value:>10}" for value in values)


def _print_csv(cells: Sequence[Cell]) -> None:
    import csv

    rows = [cell.as_row() for cell in cells]
    writer = csv.DictWriter(sys.stdout, list(rows[0]), lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)


def _write_plot(path: Path, cells: Sequence[Cell]) -> None:
    from hotset.lab.matrix import hit_plot

    try:
        path.write_text(hit_plot(cells), encoding="utf-8")
    except OSError as error:
        raise MachineProblem(f"{path}: cannot be written: {error.strerror}") from error
