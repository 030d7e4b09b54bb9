"""The engine that will run a model, and the machine as that engine sees it."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.core.machine import Machine
    from hotset.engine.base import Engine, EngineInfo

__all__ = ["engine_called", "machine_now"]


def engine_called(name: str) -> Engine:
    """The engine of that name, or at that path.

    Raises:
        EngineProblem: there is none.
    """
    from hotset.cli.subjects import expanded
    from hotset.engine import ENGINE_NAMES, engine_named

    if name not in ENGINE_NAMES:
        name = str(expanded(name))
    return engine_named(name, os.environ.get("PATH", os.defpath))


def machine_now(engine: Engine, model: Path | None) -> tuple[Machine, EngineInfo | None]:
    """This machine as it is now, with the devices that `engine` can use.

    Args:
        model: for the disk behind it.

    Returns:
        Also what the engine says of itself, where it was asked: the embedded one computes on the
        CPU, so that asking it would only take time.
    """
    from hotset.cli.machine_options import kept_measurements
    from hotset.engine.llama_server import LlamaServerEngine
    from hotset.probe.this_machine import this_machine

    info = engine.describe(os.environ) if isinstance(engine, LlamaServerEngine) else None
    listed = info.devices if info else ()
    machine = this_machine(measured=kept_measurements(), model=model, listed=listed)
    if info is None:  # its published build is one for AVX2
        known = (name for name in machine.cpu_features if not name.startswith("avx512"))
        machine = replace(machine, cpu_features=frozenset(known))
    return machine, info
