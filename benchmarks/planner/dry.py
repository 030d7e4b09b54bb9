"""A start that ends before the engine reads the weights: its own account of what it would take."""

from __future__ import annotations

import json
import re
import sys
import threading
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from hotset.core.errors import EngineProblem
from hotset.core.settings import Settings, validate_settings
from hotset.engine import loadlog
from hotset.engine.base import Engine, Launch
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.process import EngineProcess

__all__ = ["HOST", "Taken", "breakdown", "drafting_breakdowns", "first_breakdown"]

HOST = "Host"
"""The engine's name for RAM in its account."""

_TIMEOUT_S = 120.0
# Engines that say this account for the second context before the main one (b10434).
_SECOND_FIRST = "[spec] estimated memory usage"
_DRAFTING_CHILD = Path(__file__).with_name("drafting_child.py")
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
    """The first account in a log; empty while it is not complete."""
    return next(iter(_breakdowns(lines)), ())


def _breakdowns(lines: list[str]) -> list[tuple[Taken, ...]]:
    """Every complete account in a log.

    RAM comes last among the rows of devices; rows of single buffer types may follow, and are
    counted as RAM, where they lie.
    """
    found: list[tuple[Taken, ...]] = []
    rows: list[Taken] = []
    is_within = False
    for line in lines:
        match = _ROW.search(line) if is_within else None
        if match:
            figures = (int(match[key]) for key in ("model", "context", "compute"))
            rows.append(Taken(match["name"], *figures))
            continue
        if rows:
            found.append(_merged(rows))
            rows, is_within = [], False
        is_within |= _TITLE in line
    return found


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
    return _heard(engine, settings, launch, 1)[0]


def drafting_breakdowns(
    engine: Engine, settings: Settings, environ: Mapping[str, str]
) -> tuple[tuple[Taken, ...], tuple[Taken, ...]]:
    """The same with `engine` drafting by the model's MTP head: its account of the main context,
    and of the one that drafts. Both name all weights.

    Raises:
        HotsetError: as `first_breakdown`; also for an engine that gives the first account alone.
    """
    validate_settings(settings)
    launch = _drafting(engine, _measuring(engine, engine.launch(settings, environ)))
    main, second = _heard(engine, settings, launch, 2)
    return main, second


def _heard(
    engine: Engine, settings: Settings, launch: Launch, num_accounts: int
) -> list[tuple[Taken, ...]]:
    heard: list[str] = []
    is_enough = threading.Event()

    def hear(line: str) -> None:
        heard.append(line)
        if len(_breakdowns(heard)) >= num_accounts:
            is_enough.set()

    process = EngineProcess(launch.argv, launch.env, launch.stdin, hear)
    try:
        for _ in range(int(_TIMEOUT_S / 0.05)):
            if is_enough.wait(0.05) or not process.is_alive():
                break
    finally:
        process.end(grace_s=0)
    found = _breakdowns([*heard, ""])
    if len(found) < num_accounts and process.exit_status:
        raise loadlog.failure(
            heard, model=settings.model.name, engine=engine.build, status=process.exit_status
        )
    if len(found) < num_accounts:
        raise EngineProblem(
            f"{settings.model.name}: the engine {engine.build} gave {len(found)} of {num_accounts}"
            f" accounts of its memory in {_TIMEOUT_S:.0f} s; a newer one may give more"
        )
    is_reversed = any(_SECOND_FIRST in line for line in heard)
    return found[:num_accounts][:: -1 if is_reversed else 1]


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


def _drafting(engine: Engine, launch: Launch) -> Launch:
    """The same start, drafting with the MTP head."""
    if isinstance(engine, EmbeddedEngine):
        worker = launch.argv[-1]
        return replace(launch, argv=(sys.executable, "-I", str(_DRAFTING_CHILD), worker))
    return replace(launch, argv=(*launch.argv, "--spec-type", "draft-mtp"))
