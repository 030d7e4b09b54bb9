"""`hotset store`: where the expert store works, what it does, and what its traces tell."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset.cli.options import Json
from hotset.core.errors import EngineProblem

if TYPE_CHECKING:
    from hotset.store.pages import RunningStore
    from hotset.store.probe import StoreCheck
    from hotset.store.trace import LayerSummary

__all__ = ["store"]

store = typer.Typer(
    name="store",
    rich_markup_mode=None,
)


@store.callback(invoke_without_command=True)
def commands(context: typer.Context) -> None:
    """The expert store: where it works, what it does, and what its traces tell."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@store.command()
def status(
    layers: Annotated[
        bool, typer.Option("--layers", help="What each layer of a running engine has counted.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Is the native part built, which plugin does each engine load, what do running ones do?

    Ends with status 5 if no engine loads one. Per layer: ASKED is how often an expert was asked
    for, HITS how many of them were in RAM or on their way, WAITED how long the engine stood still
    for reads, OUT how often an expert made room for another.
    """
    from hotset.cli.running_stores import running_lines
    from hotset.cli.screen import harmless
    from hotset.store.locate import find_native
    from hotset.store.pages import running_stores

    try:
        native = find_native()
    except EngineProblem as problem:
        if as_json:
            report: dict[str, Any] = {
                "native": None,
                "reason": problem.message,
                "engines": [],
                "running": [],
            }
            print(json.dumps(report, indent=1))
            raise typer.Exit(problem.exit_code) from None
        raise
    checks = []
    if not as_json:
        for version, plugin in native.newest_first():
            print(harmless(f"plugin for ggml backend interface {version}: {plugin}"))
        print(harmless(f"preload library: {native.preload}"), flush=True)
    for check in _checks():
        checks.append(check)
        if not as_json:
            print(harmless(f"engine {check.engine}: {_verdict(check)}"), flush=True)
    stores = running_stores()
    if not as_json:
        for line in running_lines(stores, with_layers=layers):
            print(harmless(line))
    if as_json:
        report = {
            "native": {
                "plugins": {str(version): str(path) for version, path in native.plugins.items()},
                "preload": str(native.preload),
            },
            "reason": "",
            "engines": [_as_json(check) for check in checks],
            "running": [_running_as_json(each) for each in stores],
        }
        print(json.dumps(report, indent=1))
    if not any(check.works for check in checks):
        raise typer.Exit(EngineProblem.exit_code)


def _running_as_json(store: RunningStore) -> dict[str, Any]:
    told = asdict(store)
    if store.counters:
        told["counters"]["state"] = store.counters.state.name.lower()
    return told


def _checks() -> Iterator[StoreCheck]:
    """Each engine that this machine has, tried when it is asked for."""
    from hotset.engine.base import scrubbed
    from hotset.engine.llama_server import find_llama_server
    from hotset.store.probe import check_embedded, check_llama_server

    environ = scrubbed(os.environ)
    yield check_embedded(environ)
    if program := find_llama_server(os.environ.get("PATH", os.defpath)):
        yield check_llama_server(program, environ)


def _verdict(check: StoreCheck) -> str:
    if check.works:
        return f"loads the plugin for interface {check.api_version}"
    return f"works without the store: {check.reason}"


def _as_json(check: StoreCheck) -> dict[str, Any]:
    return {
        "engine": check.engine,
        "works": check.works,
        "api_version": check.api_version,
        "plugin": str(check.plugin) if check.plugin else None,
        "reason": check.reason,
    }


@store.command()
def trace(
    file: Annotated[
        Path,
        typer.Argument(
            metavar="FILE",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="A routing trace that `hotset run --trace FILE` has written.",
        ),
    ],
    as_json: Json = False,
) -> None:
    """What a routing trace tells of each layer.

    Steps are batches of up to 8 tokens, the rest is prompt. DISTINCT: different experts chosen.
    TOP 10 %: share of the choices that fell on the tenth of the experts that was chosen most.
    REUSE: share of a step's experts that the step before it used as well.
    """
    from hotset.store.trace import read_trace, summarize

    layers = summarize(read_trace(file))
    if as_json:
        print(json.dumps([asdict(layer) for layer in layers], indent=1))
        return
    for line in _table(layers):
        print(line)


_COLUMNS = "{:<10} {:>8} {:>8} {:>8} {:>9} {:>13} {:>9} {:>7}"


def _table(layers: list[LayerSummary]) -> Iterator[str]:
    from hotset.cli.screen import harmless
    from hotset.core.units import format_bytes

    yield _COLUMNS.format(
        *("LAYER", "EXPERT", "BATCHES", "STEPS", "TOKENS", "DISTINCT", "TOP 10 %", "REUSE")
    )
    for summary in layers:
        layer = summary.layer
        yield harmless(
            _COLUMNS.format(
                layer.name,
                format_bytes(layer.expert_bytes),
                f"{summary.num_batches:,}",
                f"{summary.num_decode_batches:,}",
                f"{summary.num_tokens:,}",
                f"{summary.num_distinct:,} of {layer.num_experts:,}",
                f"{summary.top_share:.0%}",
                "-" if summary.overlap is None else f"{summary.overlap:.0%}",
            )
        )
