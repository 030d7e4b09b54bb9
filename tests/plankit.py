"""Machines and full-size models, as numbers, for tests of the planner."""

from __future__ import annotations

from functools import cache

from hotset.core.machine import Backend, Disk, DiskKind, Gpu, Link, Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import Projector
from hotset.core.units import GIB, MIB
from hotset.gguf.synth.fullscale import fullscale_spec

# The projector of Qwen3.6-35B-A3B in f16 has 0.84 GiB; its largest picture needs some 0.4 GiB.
PROJECTOR = Projector(n_bytes=860 * MIB, compute_bytes=400 * MIB)


@cache
def real_model(name: str, mix: str = "Q4_K_M") -> ModelSpec:
    """A published model at full size."""
    return fullscale_spec(name, mix=mix)


def card(
    gib: float,
    *,
    used_gib: float = 1.5,
    bandwidth_gb_s: float = 640,
    lanes: int = 16,
    backend: Backend | None = Backend.CUDA,
    name: str = "CUDA0",
) -> Gpu:
    """A discrete card that also drives the desktop."""
    return Gpu(
        name=f"{gib:g} GiB card",
        total_bytes=int(gib * GIB),
        free_bytes=int((gib - used_gib) * GIB),
        bandwidth_bytes_s=int(bandwidth_gb_s * 1e9),
        link=Link(4, lanes),
        backend=backend,
        engine_name=name,
    )


def integrated(gib: float) -> Gpu:
    """A graphics unit within the processor."""
    return Gpu(
        name="integrated graphics",
        total_bytes=int(gib * GIB),
        free_bytes=int(gib * GIB),
        is_integrated=True,
        shares_ram=True,
        backend=Backend.VULKAN,
        engine_name="Vulkan0",
    )


def computer(
    *devices: Gpu,
    ram_gib: float = 32,
    used_gib: float = 4,
    bandwidth_gb_s: float = 60,
    disk_gb_s: float = 3,
    cores: int = 8,
) -> Machine:
    """An ordinary PC with two channels of DDR5."""
    rate = int(disk_gb_s * 1e9)
    return Machine(
        ram_total_bytes=int(ram_gib * GIB),
        ram_available_bytes=int((ram_gib - used_gib) * GIB),
        num_cores=cores,
        num_threads=2 * cores,
        devices=devices,
        disk=Disk(DiskKind.NVME, rate, rate),
        ram_bandwidth_bytes_s=int(bandwidth_gb_s * 1e9),
    )
