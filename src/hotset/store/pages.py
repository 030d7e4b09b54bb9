"""The counters of all engines that run now, found without asking anybody."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import EngineProblem
from hotset.store.counters import Counters, read_counters
from hotset.store.page import NAME_PREFIX, NAME_SUFFIX

__all__ = ["RunningStore", "running_stores"]


@dataclass(frozen=True, slots=True)
class RunningStore:
    """The expert store of an engine that runs.

    Attributes:
        pid: of the hotset that started the engine.
        command: its command line.
        counters: None where they cannot be read; then `reason` says why.
    """

    pid: int
    command: str
    counters: Counters | None
    reason: str = ""


def running_stores(processes: Path = Path("/proc")) -> list[RunningStore]:
    """Of every hotset of this user that has an engine with the store, by process id.

    A page of counters has no name, but the hotset that made it holds it open.
    """
    found = []
    for process in sorted(processes.glob("[0-9]*"), key=lambda each: int(each.name)):
        for page in _pages(process):
            # It may end at any moment.
            with suppress(OSError):
                words = (process / "cmdline").read_bytes().split(b"\0")
                command = b" ".join(words).decode(errors="replace").strip()
                counters, reason = None, ""
                try:
                    counters = read_counters(page)
                except EngineProblem as problem:
                    reason = problem.message
                found.append(RunningStore(int(process.name), command, counters, reason))
    return found


def _pages(process: Path) -> Iterator[Path]:
    with suppress(OSError):  # another user's, or gone
        for descriptor in (process / "fd").iterdir():
            with suppress(OSError):
                name = os.path.basename(os.readlink(descriptor)).removesuffix(" (deleted)")
                if name.startswith(NAME_PREFIX) and name.endswith(NAME_SUFFIX):
                    yield descriptor
