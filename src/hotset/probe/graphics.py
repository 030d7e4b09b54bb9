"""All graphics devices that any source knows of."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from hotset.core.machine import Gpu
from hotset.probe import amd, intel
from hotset.probe.drm import cards, users
from hotset.probe.nvidia import nvidia_gpus

__all__ = ["Graphics", "graphics"]

_NVIDIA_VENDOR_ID = 0x10DE
_MAKERS = {amd.VENDOR_ID: "AMD", intel.VENDOR_ID: "Intel", _NVIDIA_VENDOR_ID: "NVIDIA"}


@dataclass(frozen=True, slots=True)
class Graphics:
    """Attributes:
    gpus: by PCI address.
    notes: for people: devices that are there and tell nothing, each with its reason.
    """

    gpus: tuple[Gpu, ...]
    notes: tuple[str, ...]


def graphics(
    ram_total_bytes: int,
    ram_available_bytes: int,
    root: Path = Path("/"),
    nvml: Any = None,
    *,
    with_users: bool = False,
) -> Graphics:
    """Every device that states its memory. None of them has a backend yet: that is the engine's
    to say (`core.devices.merge_devices`).

    Args:
        ram_total_bytes, ram_available_bytes: bounds for devices whose memory is RAM.
        root: where /proc, /sys and /usr/share are looked for.
        nvml: a module like `pynvml`; None loads that if there is a driver.
        with_users: also look for the processes that hold their memory, which takes longer.
    """
    nvidia, reason = nvidia_gpus(
        ram_total_bytes, ram_available_bytes, root, nvml, with_users=with_users
    )
    found, notes = list(nvidia), []
    if reason:
        notes.append(f"NVIDIA driver: {reason}")
    present = cards(root)
    # Who uses a card is needed for Intel's free memory, too; nobody else's has to wait for it.
    is_asked = with_users or any(card.vendor_id == intel.VENDOR_ID for card in present)
    held = users(root) if is_asked else {}
    for card in present:
        gpu = None
        if card.vendor_id == amd.VENDOR_ID:
            gpu = amd.amd_gpu(card, ram_available_bytes, root)
        elif card.vendor_id == intel.VENDOR_ID:
            used_by = held.get(card.bus_id, ())
            gpu = intel.intel_gpu(card, ram_total_bytes, ram_available_bytes, used_by, root)
        if gpu is not None:
            found.append(replace(gpu, used_by=held.get(card.bus_id, ()) if with_users else ()))
        elif card.vendor_id in _MAKERS and all(gpu.bus_id != card.bus_id for gpu in found):
            driver = f"its driver {card.driver}" if card.driver else "no driver"
            maker = _MAKERS[card.vendor_id]
            states = "does not state its memory" if card.driver else "states its memory"
            notes.append(f"{maker} card {card.device_id:04x} at {card.bus_id}: {driver} {states}")
    return Graphics(tuple(sorted(found, key=lambda gpu: gpu.bus_id)), tuple(notes))
