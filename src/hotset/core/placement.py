"""Where each class of a model's bytes goes, and what that takes of every device and of RAM.

Weights, caches and states are exact. Compute buffers are the estimate of `core/memory.py`, which
is meant to be too much; what a driver takes for itself is an assumption by backend, until a start
on this machine has been compared with its plan.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass
from enum import StrEnum

from hotset.core.compute import batch_tokens, compute_bytes_estimate, input_bytes
from hotset.core.machine import Backend, Gpu
from hotset.core.memory import CacheSettings, context_cells
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import CacheUnits, Parts, Staging
from hotset.core.storecompute import store_compute_bytes
from hotset.core.streaming import Streams, stored_bytes
from hotset.core.units import GIB, MIB

__all__ = [
    "DeviceBytes",
    "Placement",
    "Projector",
    "ProjectorPlace",
    "RamWeights",
    "default_reserve_bytes",
    "device_bytes",
    "device_compute_bytes",
    "host_compute_bytes",
    "overhead_bytes",
    "ram_weights",
]

# Memory that a process of the engine takes on a device beside its own buffers: the driver's
# context, compiled kernels, library workspaces. A bare CUDA context is 0.3 to 0.45 GiB on current
# cards as nvidia-smi shows it, cuBLAS adds some 0.1. Assumptions on the safe side, to be replaced
# by what starts on this machine show.
_OVERHEAD_BYTES = {
    Backend.CUDA: 512 * MIB,
    Backend.ROCM: 512 * MIB,
    Backend.SYCL: 512 * MIB,
    Backend.VULKAN: 256 * MIB,
    Backend.METAL: 128 * MIB,
}
_UNKNOWN_OVERHEAD_BYTES = 512 * MIB
# ggml-cuda's attention (and its ROCm build) turns a quantized cache of one block into f16 first
# (fattn-common.cuh, ggml_cuda_flash_attn_ext_get_f16_extra_data).
_CONVERTING = frozenset({Backend.CUDA, Backend.ROCM, None})
# These compute a batch of so many tokens and more with copies of weights that are in RAM (the
# `offload_op` of ggml-cuda.cu, its ROCm build, and ggml-vulkan.cpp).
_COPYING = frozenset({Backend.CUDA, Backend.ROCM, Backend.VULKAN})
_LEAST_COPY_TOKENS = 32
_F16_BYTES = 2
# With several devices and all weights on them the engine keeps four copies of the inputs of a
# batch (GGML_SCHED_MAX_COPIES in ggml/src/ggml-backend.cpp). The attention mask is the large one.
_INPUT_COPIES = 4
# Filled to the brim, drivers move pages to RAM and speed falls to a tenth; users found 1 to 1.5 GiB
# to be enough beside a desktop.
_RESERVE_BYTES = GIB
_RESERVE_SHARE = 8
_HEADLESS_BYTES = 256 * MIB
_HEADLESS_RESERVE_BYTES = 512 * MIB


class ProjectorPlace(StrEnum):
    """Where pictures are turned into tokens."""

    NONE = "none"
    DEVICE = "device"
    RAM = "RAM"


@dataclass(frozen=True, slots=True)
class Projector:
    """A vision or audio projector file (`mmproj`).

    Attributes:
        n_bytes: its weights.
        compute_bytes: for the largest picture that it takes whole, an upper estimate.
    """

    n_bytes: int
    compute_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.n_bytes + self.compute_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Placement:
    """What is where. Devices are counted in the machine's order.

    Attributes:
        units: for each device, how many units it takes, in order; the first units that no device
            takes stay in RAM. Empty, or all zero: everything is in RAM.
        host_moe_units: units on devices whose routed experts stay in RAM; ascending.
        moe_cache_bytes: of the first device, for the engine's own cache of those experts.
        projector: where the projector is.
    """

    units: tuple[int, ...] = ()
    host_moe_units: tuple[int, ...] = ()
    moe_cache_bytes: int = 0
    projector: ProjectorPlace = ProjectorPlace.NONE

    @property
    def n_offloaded(self) -> int:
        """Units on devices: `--n-gpu-layers`."""
        return sum(self.units)

    def ranges(self, n_units: int) -> tuple[range, ...]:
        """The units of each device."""
        start, found = n_units - self.n_offloaded, []
        for count in self.units:
            found.append(range(start, start + count))
            start += count
        return tuple(found)


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceBytes:
    """What a plan takes of one device, by class.

    Attributes:
        device: its name as the engine calls it, or the product's where no engine was asked.
        trunk_bytes: weights that are no routed experts.
        expert_bytes: routed experts of whole blocks.
        moe_cache_bytes: the engine's cache of experts that are in RAM.
        cache_bytes: KV caches and recurrent states.
        compute_bytes: buffers of a batch; an estimate.
        projector_bytes: the projector and its buffers.
        overhead_bytes: the driver's; an assumption.
        budget_bytes: what the plan may take: what is free, less the reserve.
    """

    device: str
    trunk_bytes: int
    expert_bytes: int
    moe_cache_bytes: int
    cache_bytes: int
    compute_bytes: int
    projector_bytes: int
    overhead_bytes: int
    budget_bytes: int

    @property
    def total_bytes(self) -> int:
        weights = self.trunk_bytes + self.expert_bytes + self.moe_cache_bytes
        buffers = self.cache_bytes + self.compute_bytes + self.projector_bytes
        return weights + buffers + self.overhead_bytes


@dataclass(frozen=True, slots=True)
class RamWeights:
    """Weights that stay in RAM (or on the disk, where RAM is too small)."""

    trunk_bytes: int
    expert_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.trunk_bytes + self.expert_bytes


def default_reserve_bytes(gpu: Gpu) -> int:
    """Memory of a device that a plan leaves alone.

    A device that shares RAM has none of its own: what is left of RAM is counted there.
    """
    if gpu.shares_ram:
        return 0
    has_desktop = gpu.used_bytes > _HEADLESS_BYTES
    reserve = _RESERVE_BYTES if has_desktop else _HEADLESS_RESERVE_BYTES
    return min(reserve, gpu.total_bytes // _RESERVE_SHARE)


def overhead_bytes(gpu: Gpu) -> int:
    """What the engine's process takes of a device before it has a model; an assumption."""
    if gpu.backend is None:
        return _UNKNOWN_OVERHEAD_BYTES
    return _OVERHEAD_BYTES[gpu.backend]


def device_compute_bytes(
    spec: ModelSpec,
    settings: CacheSettings,
    backend: Backend | None,
    *,
    staging: Staging,
    is_pipelined: bool,
    n_blocks_in_ram: int = 0,
    streams: Streams | None = None,
) -> int:
    """Buffers of one batch on a device; an upper estimate.

    Args:
        staging: what is copied there for large batches; nothing where no weights stay in RAM.
        is_pipelined: several devices hold all the weights.
        n_blocks_in_ram: whole blocks that stay in RAM, counted from the first.
        streams: of this model; given by who asks often.
    """
    if n_blocks_in_ram and batch_tokens(settings) >= _LEAST_COPY_TOKENS:
        streams = streams or Streams(spec)
        total = streams.compute_bytes(settings, n_blocks_in_ram, staging.total_bytes)
    elif spec.experts:
        total = compute_bytes_estimate(spec, settings, copied_bytes=staging.total_bytes)
    else:
        total = compute_bytes_estimate(spec, settings) + staging.total_bytes
    n_cells = context_cells(settings)
    if backend in _CONVERTING:
        widest = max(
            (
                layer.k_elements * (settings.type_k.block_elements > 1)
                + layer.v_elements * (settings.type_v.block_elements > 1)
                for layer in spec.layers
            ),
            default=0,
        )
        total += widest * n_cells * settings.n_streams * _F16_BYTES
    if is_pipelined:
        total += (_INPUT_COPIES - 1) * settings.ubatch_tokens * n_cells * _F16_BYTES
    return total


def host_compute_bytes(
    spec: ModelSpec,
    settings: CacheSettings,
    backends: Collection[Backend | None],
    n_blocks_in_ram: int = 0,
    *,
    has_store: bool = False,
) -> int:
    """Buffers of one batch in RAM, beside devices of these backends; none for an engine without.

    A device that takes copies of weights computes every large batch, even of blocks in RAM; what
    comes in, and what goes into their caches, is all that RAM holds of it then.

    Args:
        has_store: the expert store computes the experts; its buffers are counted, too.
    """
    stored = store_compute_bytes(spec, settings, is_beside_card=bool(backends)) if has_store else 0
    return stored + _processor_bytes(
        spec, settings, backends, n_blocks_in_ram, has_experts=not has_store
    )


def _processor_bytes(
    spec: ModelSpec,
    settings: CacheSettings,
    backends: Collection[Backend | None],
    n_blocks_in_ram: int,
    *,
    has_experts: bool,
) -> int:
    """Of those, the CPU's."""
    if backends and _COPYING.issuperset(backends) and batch_tokens(settings) >= _LEAST_COPY_TOKENS:
        stored = stored_bytes(spec, settings, n_blocks_in_ram) if n_blocks_in_ram else 0
        return input_bytes(spec, settings, stored_bytes=stored)
    return compute_bytes_estimate(spec, settings, has_experts=has_experts)


def device_bytes(
    parts: Parts,
    caches: CacheUnits,
    placement: Placement,
    index: int,
    gpu: Gpu,
    *,
    compute_bytes: int,
    projector: Projector | None,
    budget_bytes: int,
) -> DeviceBytes:
    """What a placement takes of device `index`. All zero where it takes nothing of it.

    Args:
        compute_bytes: of `device_compute_bytes`.
        projector: the file; counted where the placement says so, on the first device.
    """
    units = placement.ranges(parts.n_units)[index]
    has_projector = placement.projector is ProjectorPlace.DEVICE and index == 0
    host = frozenset(placement.host_moe_units)
    is_used = bool(units) or has_projector
    copy = parts.output_copy_bytes if parts.output_unit in units else 0
    return DeviceBytes(
        device=gpu.engine_name or gpu.name,
        trunk_bytes=sum(parts.trunk_bytes[unit] for unit in units) + copy,
        expert_bytes=sum(parts.expert_bytes[unit] for unit in units if unit not in host),
        moe_cache_bytes=placement.moe_cache_bytes if index == 0 else 0,
        cache_bytes=sum(caches.n_bytes[unit] for unit in units),
        compute_bytes=compute_bytes if units else 0,
        projector_bytes=projector.total_bytes if has_projector and projector else 0,
        overhead_bytes=overhead_bytes(gpu) if is_used else 0,
        budget_bytes=budget_bytes,
    )


def ram_weights(parts: Parts, placement: Placement) -> RamWeights:
    """Weights that no device holds."""
    first = parts.n_units - placement.n_offloaded
    host = sum(parts.expert_bytes[unit] for unit in placement.host_moe_units)
    return RamWeights(
        trunk_bytes=parts.ram_bytes + sum(parts.trunk_bytes[:first]),
        expert_bytes=sum(parts.expert_bytes[:first]) + host,
    )
