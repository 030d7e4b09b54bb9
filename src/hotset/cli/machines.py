"""The machine that a plan is for, and the engine that will run it."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.core.machine import Gpu, Machine
    from hotset.engine.base import Engine, EngineInfo

__all__ = ["engine_called", "machine_now"]


def engine_called(name: str) -> Engine:
    """The engine of that name, or at that path.

    Raises:
        EngineProblem: there is none.
    """
    from hotset.cli.launching import expanded
    from hotset.engine import ENGINE_NAMES, engine_named

    if name not in ENGINE_NAMES:
        name = str(expanded(name))
    return engine_named(name, os.environ.get("PATH", os.defpath))


def machine_now(engine: Engine) -> tuple[Machine, EngineInfo | None]:
    """This machine as it is now, with the devices that `engine` can use.

    Returns:
        Also what the engine says of itself, where it was asked: the embedded one computes on the
        CPU, so that asking it would only take time.
    """
    from hotset.core.machine import Machine
    from hotset.engine.base import scrubbed
    from hotset.engine.llama_server import LlamaServerEngine
    from hotset.probe.cpu import cpu
    from hotset.probe.memory import memory

    ram, processor = memory(), cpu()
    info = None
    devices: tuple[Gpu, ...] = ()
    if isinstance(engine, LlamaServerEngine):
        info = engine.describe(scrubbed(os.environ))
        devices = _devices(info)
    machine = Machine(
        ram_total_bytes=ram.usable_bytes,
        ram_available_bytes=ram.available_bytes,
        num_cores=processor.num_cores,
        num_threads=processor.num_threads,
        devices=devices,
    )
    return machine, info


def _devices(info: EngineInfo) -> tuple[Gpu, ...]:
    """What the engine lists, by its own figures."""
    from hotset.core.machine import Backend, Gpu

    prefixes = {
        "CUDA": Backend.CUDA,
        "ROCm": Backend.ROCM,
        "Vulkan": Backend.VULKAN,
        "Metal": Backend.METAL,
        "SYCL": Backend.SYCL,
    }
    return tuple(
        Gpu(
            name=device.description,
            total_bytes=device.total_bytes,
            free_bytes=device.total_bytes,
            backend=backend,
            engine_name=device.name,
        )
        for device in info.devices
        for prefix, backend in prefixes.items()
        if device.name.startswith(prefix) and device.total_bytes
    )
