"""The engine's own list of devices is the judge of what can be used; drivers fill in the rest."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

from hotset.core.gpus import known_gpu, vendor_of, words_of
from hotset.core.machine import Backend, Gpu

__all__ = ["Device", "merge_devices"]

# How llama.cpp's backends begin the names of their devices (ggml-cuda.h, ggml-vulkan.h,
# ggml-sycl.h, ggml-metal-device.m). "CPU", "BLAS", plugins and remote machines are none of these.
_BACKENDS = {
    "CUDA": Backend.CUDA,
    "ROCm": Backend.ROCM,
    "Vulkan": Backend.VULKAN,
    "SYCL": Backend.SYCL,
    "Metal": Backend.METAL,
    "MTL": Backend.METAL,
}
# A driver and a backend differ by what they keep for themselves.
_SAME_SIZE = 0.1
# Vulkan on the processor: its memory is RAM. The name of Mesa's software renderer.
_SOFTWARE = "llvmpipe"


@dataclass(frozen=True, slots=True)
class Device:
    """A compute device as the engine lists it.

    Attributes:
        name: "CUDA0", "Vulkan1".
        description: usually the product's name.
        total_bytes: 0 where the engine does not say.
        free_bytes: when it was asked; None where it does not say, or where that was long ago.
    """

    name: str
    description: str
    total_bytes: int
    free_bytes: int | None = None


def merge_devices(probed: Sequence[Gpu], listed: Sequence[Device]) -> tuple[Gpu, ...]:
    """The devices that an engine can use, in its order and by its names.

    A listed device takes from a probed one what the engine does not say: who uses it, its link and
    bandwidth, whether it shares RAM. The engine's total counts. Of what is free the smaller figure
    counts, since either may miss something. A card that an engine lists twice (by two backends) is
    taken once, by the backend that it names first. A probed device that the engine does not list
    is left out.
    """
    devices: list[Gpu] = []
    remaining = list(probed)
    taken: list[tuple[Backend, list[str], int]] = []
    for device in listed:
        backend = _backend(device.name)
        if backend is None:
            continue
        if _is_repeated(device, backend, taken):
            continue
        match = max(remaining, key=partial(_likeness, device), default=None)
        if match is not None and _likeness(device, match) > 0:
            remaining.remove(match)
        else:
            match = None
        taken.append((backend, words_of(device.description), device.total_bytes))
        merged = _merged(match, device, backend)
        if merged.total_bytes:
            devices.append(merged)
    return tuple(devices)


def _backend(name: str) -> Backend | None:
    match = re.fullmatch(r"([A-Za-z]+)\d*", name)
    return _BACKENDS.get(match[1]) if match else None


def _likeness(device: Device, gpu: Gpu) -> float:
    """0 for another device; more for more words of the name in common and for the same size."""
    vendor = vendor_of(device.description)
    if vendor and gpu.vendor and vendor != gpu.vendor:
        return 0.0
    theirs, ours = set(words_of(device.description)), set(words_of(gpu.name))
    share = len(theirs & ours) / max(1, len(theirs | ours))
    is_same_size = bool(device.total_bytes) and (
        abs(device.total_bytes - gpu.total_bytes) <= _SAME_SIZE * device.total_bytes
    )
    if share == 1.0:
        return 2.0 + is_same_size
    if not gpu.shares_ram:
        return 1.0 + share if is_same_size else share * (not device.total_bytes)
    # How much RAM it may use is the backend's own idea, and each calls it by another name.
    known = known_gpu(device.description, device.total_bytes)
    if known is None:
        return share
    return 1.0 + share if known.is_integrated and vendor == gpu.vendor else 0.0


def _is_repeated(
    device: Device, backend: Backend, taken: Sequence[tuple[Backend, list[str], int]]
) -> bool:
    """Whether another backend may have listed the same card before.

    In doubt it has: a card that is not used is a smaller harm than one that is filled twice.
    """
    words, total = words_of(device.description), device.total_bytes
    return any(
        other != backend
        and (
            words == seen
            or (bool(set(words) & set(seen)) and abs(total - size) <= _SAME_SIZE * total)
        )
        for other, seen, size in taken
    )


def _merged(probed: Gpu | None, device: Device, backend: Backend) -> Gpu:
    if probed is None:
        total = device.total_bytes
        known = known_gpu(device.description, total)
        is_software = _SOFTWARE in device.description.lower()
        shares_ram = is_software or (known is not None and known.is_integrated)
        probed = Gpu(
            name=device.description,
            total_bytes=total,
            free_bytes=total,
            vendor=vendor_of(device.description),
            is_integrated=shares_ram,
            shares_ram=shares_ram,
            bandwidth_bytes_s=known.bandwidth_bytes_s if known else None,
        )
    total = device.total_bytes or probed.total_bytes
    # What others hold by the driver's account is held of the engine's total, too.
    free = max(0, total - probed.used_bytes)
    if device.free_bytes is not None:
        free = min(free, device.free_bytes)
    bandwidth = probed.bandwidth_bytes_s
    if bandwidth is None and (known := known_gpu(device.description, total)):
        bandwidth = known.bandwidth_bytes_s
    return replace(
        probed,
        total_bytes=total,
        free_bytes=free,
        bandwidth_bytes_s=bandwidth,
        backend=backend,
        engine_name=device.name,
    )
