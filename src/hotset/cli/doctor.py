"""`hotset doctor`: what is here, what it can do, and what stands in the way."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset import __version__
from hotset.cli.findings import Finding, Level
from hotset.cli.options import Json
from hotset.core.errors import EngineProblem, HotsetError, MachineProblem

if TYPE_CHECKING:
    from hotset.core.devices import Device
    from hotset.engine.base import Engine
    from hotset.store.probe import StoreCheck

__all__ = ["doctor"]


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            readable=False,  # that is for us to find, and to say among the other findings
            help="Model folders, for the disks behind them.",
        ),
    ] = None,
    measure: Annotated[
        bool,
        typer.Option(
            "--measure",
            help="Measure memory, disks and copies to graphics cards for some seconds, and keep the"
            " figures for plans."
            " Reads model files, writes none.",
        ),
    ] = False,
    as_json: Json = False,
) -> None:
    """Check this machine: engines, memory, graphics cards, disks.

    Each line is ok, warning or problem.

    Ends with status 3 if there is a problem.
    """
    findings = []
    for finding in _findings(paths or [Path()], is_measuring=measure):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    if any(finding.level is Level.PROBLEM for finding in findings):
        raise typer.Exit(MachineProblem.exit_code)


def _show(finding: Finding) -> None:
    from hotset.cli.screen import harmless

    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    print(harmless(f"{finding.level:<8} {finding.subject}: {finding.text}{remedy}"), flush=True)


def _findings(paths: list[Path], *, is_measuring: bool) -> Iterator[Finding]:
    from hotset.cli.doctor_machine import machine_findings

    yield Finding(
        Level.OK,
        "hotset",
        f"{__version__} on Python {platform.python_version()}, {platform.system()}",
        facts={"version": __version__, "python": platform.python_version()},
    )
    yield _native()
    devices: dict[Engine, tuple[Device, ...]] = {}
    yield from _engines(devices)
    yield from machine_findings(paths, devices, is_measuring=is_measuring)


def _native() -> Finding:
    """Whether the native part was built with this installation."""
    from hotset.store.locate import find_native

    try:
        native = find_native()
    except EngineProblem as problem:
        _, _, text = problem.message.partition(": ")
        what, _, remedy = text.partition("; ")
        return Finding(Level.WARNING, "expert store", what, remedy)
    versions = ", ".join(map(str, sorted(native.plugins)))
    return Finding(
        Level.OK,
        "expert store",
        f"built for plugin API {versions}",
        facts={"plugins": {str(api): str(path) for api, path in native.plugins.items()}},
    )


def _engines(devices: dict[Engine, tuple[Device, ...]]) -> Iterator[Finding]:
    """Each engine; its devices are added to `devices`."""
    from hotset.engine.base import scrubbed
    from hotset.engine.embedded import EmbeddedEngine
    from hotset.engine.llama_server import LlamaServerEngine, find_llama_server
    from hotset.store.probe import check_embedded, check_llama_server

    environ = scrubbed(os.environ)
    embedded = partial(check_embedded, environ)
    yield _engine(EmbeddedEngine(), "engine embedded", embedded, devices)
    program = find_llama_server(os.environ.get("PATH", os.defpath))
    if program is None:
        yield Finding(
            Level.OK,
            "engine llama-server",
            "none on the PATH; it is only needed for a graphics card",
        )
    else:
        check = partial(check_llama_server, program, environ)
        yield _engine(LlamaServerEngine(program), f"engine {program}", check, devices)


def _engine(
    engine: Engine,
    subject: str,
    check: Callable[[], StoreCheck],
    found: dict[Engine, tuple[Device, ...]],
) -> Finding:
    try:
        info = engine.describe(os.environ)
    except HotsetError as problem:
        _, _, text = problem.message.partition(": ")
        return Finding(Level.PROBLEM, subject, text or problem.message, _REINSTALL)
    found[engine] = info.devices
    store = check()
    devices = ", ".join(f"{d.name} ({d.description})" for d in info.devices) or "CPU only"
    plugins = f"plugin API {info.backend_api}" if info.backend_api else "takes no plugins"
    cache = "has" if info.has_moe_cache else "no"
    text = f"{info.build} · {devices} · {cache} --moe-cache-mib · {plugins}"
    text += f" · expert store {'loads' if store.works else 'does not load'}"
    if info.cpu:
        text += f" · {_instruction_sets(info.cpu)}"
    facts = asdict(info) | {"store_loads": store.works, "store_reason": store.reason}
    if not store.works:
        return Finding(Level.WARNING, subject, text, store.reason, facts)
    return Finding(Level.OK, subject, text, facts=facts)


_REINSTALL = "install it again, or another build of it"


def _instruction_sets(cpu: str) -> str:
    """`AVX2 FMA ...` out of the engine's `AVX2 = 1 | FMA = 1`."""
    names = [part.split("=")[0].split(":")[-1].strip() for part in cpu.split("|") if "= 1" in part]
    return " ".join(names)
