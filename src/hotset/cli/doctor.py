"""`hotset doctor`: what is here, what it can do, and what stands in the way."""

from __future__ import annotations

import json
import os
import platform
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, field
from enum import StrEnum
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset import __version__
from hotset.cli.options import Json
from hotset.core.errors import EngineProblem, HotsetError, MachineProblem
from hotset.core.units import GIB, MIB, format_bytes

if TYPE_CHECKING:
    from hotset.engine.base import Engine
    from hotset.store.probe import StoreCheck

__all__ = ["doctor"]

_LITTLE_RAM_BYTES = 4 * GIB
_LITTLE_DISK_BYTES = 5 * GIB


class _Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class _Finding:
    """One line. `remedy` is there for whatever is not ok; `facts` is for scripts."""

    level: _Level
    subject: str
    text: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)


def doctor(
    paths: Annotated[
        list[Path] | None,
        typer.Argument(
            metavar="[PATH]...",
            readable=False,  # that is for us to find, and to say among the other findings
            help="Model folders, for the disks behind them.",
        ),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check this machine: Python, engines, memory, disks. Each line is ok, warning or problem.

    Ends with status 3 if there is a problem.
    """
    findings = []
    for finding in _findings(paths or [Path()]):
        findings.append(finding)
        if not as_json:
            _show(finding)
    if as_json:
        print(json.dumps([asdict(finding) for finding in findings], indent=1))
    if any(finding.level is _Level.PROBLEM for finding in findings):
        raise typer.Exit(MachineProblem.exit_code)


def _show(finding: _Finding) -> None:
    from hotset.cli.screen import harmless

    remedy = f" -> {finding.remedy}" if finding.remedy else ""
    print(harmless(f"{finding.level:<8} {finding.subject}: {finding.text}{remedy}"), flush=True)


def _findings(paths: list[Path]) -> Iterator[_Finding]:
    yield _Finding(
        _Level.OK,
        "hotset",
        f"{__version__} on Python {platform.python_version()}, {platform.system()}",
        facts={"version": __version__, "python": platform.python_version()},
    )
    yield _native()
    yield from _engines()
    yield from _memory()
    for path in paths:
        yield _disk(path)


def _native() -> _Finding:
    """Whether the native part was built with this installation."""
    from hotset.store.locate import find_native

    try:
        native = find_native()
    except EngineProblem as problem:
        _, _, text = problem.message.partition(": ")
        what, _, remedy = text.partition("; ")
        return _Finding(_Level.WARNING, "expert store", what, remedy)
    versions = ", ".join(map(str, sorted(native.plugins)))
    return _Finding(
        _Level.OK,
        "expert store",
        f"built for plugin API {versions}",
        facts={"plugins": {str(api): str(path) for api, path in native.plugins.items()}},
    )


def _engines() -> Iterator[_Finding]:
    from hotset.engine.base import scrubbed
    from hotset.engine.embedded import EmbeddedEngine
    from hotset.engine.llama_server import LlamaServerEngine, find_llama_server
    from hotset.store.probe import check_embedded, check_llama_server

    environ = scrubbed(os.environ)
    yield _engine(EmbeddedEngine(), "engine embedded", partial(check_embedded, environ))
    program = find_llama_server(os.environ.get("PATH", os.defpath))
    if program is None:
        yield _Finding(
            _Level.OK,
            "engine llama-server",
            "none on the PATH; it is only needed for a graphics card",
        )
    else:
        check = partial(check_llama_server, program, environ)
        yield _engine(LlamaServerEngine(program), f"engine {program}", check)


def _engine(engine: Engine, subject: str, check: Callable[[], StoreCheck]) -> _Finding:
    try:
        info = engine.describe(os.environ)
    except HotsetError as problem:
        _, _, text = problem.message.partition(": ")
        return _Finding(_Level.PROBLEM, subject, text or problem.message, _REINSTALL)
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
        return _Finding(_Level.WARNING, subject, text, store.reason, facts)
    return _Finding(_Level.OK, subject, text, facts=facts)


_REINSTALL = "install it again, or another build of it"


def _instruction_sets(cpu: str) -> str:
    """`AVX2 FMA ...` out of the engine's `AVX2 = 1 | FMA = 1`."""
    names = [part.split("=")[0].split(":")[-1].strip() for part in cpu.split("|") if "= 1" in part]
    return " ".join(names)


def _memory() -> Iterator[_Finding]:
    from hotset.probe.cpu import cpu
    from hotset.probe.memory import memory

    processor = cpu()
    yield _Finding(
        _Level.OK,
        "processor",
        f"{processor.name}, {processor.num_cores} cores, {processor.num_threads} threads",
        facts=asdict(processor),
    )
    ram = memory()
    text = f"{format_bytes(ram.available_bytes)} of {format_bytes(ram.total_bytes)} available"
    if ram.limit_bytes is not None:
        text += f", limited to {format_bytes(ram.limit_bytes)} by a control group"
    is_little = ram.available_bytes < _LITTLE_RAM_BYTES
    yield _Finding(
        _Level.WARNING if is_little else _Level.OK,
        "memory",
        text,
        "close other programs, or raise the limit, before loading a large model"
        if is_little
        else "",
        asdict(ram),
    )
    if ram.lockable_bytes is not None and ram.lockable_bytes < ram.usable_bytes:
        yield _Finding(
            _Level.WARNING,
            "locked memory",
            f"limit {ram.lockable_bytes // MIB} MiB: weights cannot be locked into RAM",
            'only if you want that: `ulimit -l unlimited`, or "LimitMEMLOCK=infinity" in the unit',
        )


def _disk(path: Path) -> _Finding:
    from hotset.probe.disk import disk_of

    subject = f"disk of {path.absolute()}"
    try:
        disk = disk_of(path)
    except OSError as error:
        return _Finding(
            _Level.PROBLEM, subject, f"cannot be read: {error.strerror}", "name another folder"
        )
    text = f"{disk.file_system} on {disk.mount}, {format_bytes(disk.free_bytes)} free"
    facts = asdict(disk)
    if disk.is_network:
        return _Finding(
            _Level.WARNING,
            subject,
            f"{text}; reads go over a network or another system",
            "keep large models on a local SSD",
            facts,
        )
    if disk.is_rotational:
        return _Finding(
            _Level.WARNING,
            subject,
            f"{text}; a rotating disk: a 17 GiB model takes about 2 minutes to load",
            "keep large models on an SSD",
            facts,
        )
    if disk.free_bytes < _LITTLE_DISK_BYTES:
        return _Finding(_Level.WARNING, subject, text, "make room", facts)
    return _Finding(_Level.OK, subject, text, facts=facts)
