"""How fast an engine copies between RAM and its devices, measured with its own library."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from hotset.engine import copychild
from hotset.engine.base import scrubbed

__all__ = ["CopySpeed", "measure_copies"]

_TIMEOUT_S = 60.0
_MOST_REASON = 160


@dataclass(frozen=True, slots=True)
class CopySpeed:
    """Bytes per second of large copies, the best of some.

    Attributes:
        to_bytes_s: from pinned RAM to the device.
        from_bytes_s: and back.
    """

    to_bytes_s: int
    from_bytes_s: int


def measure_copies(
    library: Path | None, names: Sequence[str], environ: Mapping[str, str]
) -> dict[str, CopySpeed | str]:
    """By device's name its speed, or the reason why there is none.

    Takes a third of a second for each device, and what its driver needs to start. Copies 64 MiB at
    a time, or less where less than sixteen times as much is free.

    Args:
        library: the engine's (`Engine.library`); None where it has none.
        names: of devices, as the engine lists them.
        environ: the environment to take the child's from.
    """
    if library is None:
        return dict.fromkeys(names, "this build of the engine has no library that could be asked")
    command = [sys.executable, "-I", "-S", str(Path(copychild.__file__)), str(library), *names]
    try:
        done = subprocess.run(
            command,
            env=scrubbed(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except subprocess.TimeoutExpired:
        return dict.fromkeys(names, f"no result within {_TIMEOUT_S:.0f} s")
    lines = done.stdout.splitlines()
    try:
        found = json.loads(lines[-1])
        return {name: _speed(found[name]) for name in names}
    except (IndexError, KeyError, TypeError, ValueError):
        said = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        last = said[-1] if said else f"it ended with status {done.returncode}"
        return dict.fromkeys(names, f"{library.name}: {last[:_MOST_REASON]}")


def _speed(found: Any) -> CopySpeed | str:
    if "problem" in found:
        return str(found["problem"])
    if not found["is_pinned"]:
        return "the engine got no pinned memory for it"
    return CopySpeed(int(found["to"]), int(found["from"]))
