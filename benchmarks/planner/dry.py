"""A start that ends before the engine reads the weights: its own account of what it would take."""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace

from hotset.core.errors import EngineProblem
from hotset.core.settings import Settings, validate_settings
from hotset.engine import loadlog
from hotset.engine.base import Engine, Launch
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.process import EngineProcess

__all__ = ["HOST", "Taken", "breakdown", "first_breakdown"]

HOST = "Host"
"""The engine's name for RAM in its account."""

_TIMEOUT_S = 120.0
_TITLE = "memory breakdown [MiB]"
# `|   - Host  |  1021 =  945 + 12 + 64  |`; a device has its total, free and unaccounted besides.
_ROW = re.compile(
    r"\|\s+- (?P<name>\S+)(?: \(.*\))?\s+\|(?:.*\()?\s*\d+ ="
    r"\s+(?P<model>\d+) \+\s+(?P<context>\d+) \+\s+(?P<compute>\d+)\s*(?:\).*)?\|"
)


@dataclass(frozen=True, slots=True)
class Taken:
    """What the engine takes of one device, whole MiB, rounded down by the engine."""

    device: str
    model_mib: int
    context_mib: int
    compute_mib: int

    @property
    def total_mib(self) -> int:
        return self.model_mib + self.context_mib + self.compute_mib


def breakdown(lines: list[str]) -> tuple[Taken, ...]:
    """The first account in a log; empty while it is not complete.

    RAM comes last among the rows of devices; rows of single buffer types may follow, and are
    counted as RAM, where they lie.
    """
    rows: list[Taken] = []
    is_within = False
    for line in lines:
        if _TITLE in line:
            is_within = True
            continue
        match = _ROW.search(line) if is_within else None
        if match:
            figures = (int(match[key]) for key in ("model", "context", "compute"))
            rows.append(Taken(match["name"], *figures))
        elif rows:
            return _merged(rows)
    return ()


def _merged(rows: list[Taken]) -> tuple[Taken, ...]:
    index = next(i for i, row in enumerate(rows) if row.device == HOST)
    in_ram = rows[index:]
    host = Taken(
        HOST,
        sum(row.model_mib for row in in_ram),
        sum(row.context_mib for row in in_ram),
        sum(row.compute_mib for row in in_ram),
    )
    return (*rows[:index], host)


def first_breakdown(
    engine: Engine, settings: Settings, environ: Mapping[str, str]
) -> tuple[Taken, ...]:
    """Start `engine`, wait for its account, end it.

    Raises:
        HotsetError: as a start, or EngineProblem if it ends or says nothing in time.
    """
    validate_settings(settings)
    launch = _measuring(engine, engine.launch(settings, environ))
    heard: list[str] = []
    is_enough = threading.Event()

    def hear(line: str) -> None:
        heard.append(line)
        if breakdown(heard):
            is_enough.set()

    process = EngineProcess(launch.argv, launch.env, launch.stdin, hear)
    try:
        for _ in range(int(_TIMEOUT_S / 0.05)):
            if is_enough.wait(0.05) or not process.is_alive():
                break
    finally:
        process.end(grace_s=0)
    found = breakdown([*heard, ""])
    if not found and process.exit_status:
        raise loadlog.failure(
            heard, model=settings.model.name, engine=engine.build, status=process.exit_status
        )
    if not found:
        raise EngineProblem(
            f"{settings.model.name}: the engine {engine.build} gave no account of its memory in"
            f" {_TIMEOUT_S:.0f} s; a newer one may"
        )
    return found


def _measuring(engine: Engine, launch: Launch) -> Launch:
    """The engine accounts for its memory before the load only where it may fit settings to it.

    It would change them afterwards; by then it has been ended.
    """
    if isinstance(engine, EmbeddedEngine):
        order = json.loads(launch.stdin)
        order["params"]["fit_params"] = True
        return replace(launch, stdin=json.dumps(order) + "\n")
    argv = list(launch.argv)
    argv[argv.index("--fit") + 1] = "on"
    return replace(launch, argv=tuple(argv))
