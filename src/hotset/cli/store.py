"""`hotset store`: where the expert store works."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

import typer

from hotset.cli.options import Json
from hotset.core.errors import EngineProblem

if TYPE_CHECKING:
    from hotset.store.probe import StoreCheck

__all__ = ["store"]

store = typer.Typer(
    name="store",
    rich_markup_mode=None,
)


@store.callback(invoke_without_command=True)
def commands(context: typer.Context) -> None:
    """The expert store: where it works."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@store.command()
def status(as_json: Json = False) -> None:
    """Is the native part built, and which plugin does each engine load?

    Ends with status 5 if none does.
    """
    from hotset.cli.screen import harmless
    from hotset.store.locate import find_native

    try:
        native = find_native()
    except EngineProblem as problem:
        if as_json:
            print(json.dumps({"native": None, "reason": problem.message, "engines": []}, indent=1))
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
    if as_json:
        report = {
            "native": {
                "plugins": {str(version): str(path) for version, path in native.plugins.items()},
                "preload": str(native.preload),
            },
            "reason": "",
            "engines": [_as_json(check) for check in checks],
        }
        print(json.dumps(report, indent=1))
    if not any(check.works for check in checks):
        raise typer.Exit(EngineProblem.exit_code)


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
