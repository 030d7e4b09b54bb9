"""What is in use of each card with memory of its own, and of RAM through it: to see what spills.

AMD's driver says both for the whole device (`mem_info_vram_used`, `mem_info_gtt_used`), Intel's
only by process (`probe.drm.held_by_group`). NVIDIA's driver for Linux refuses what does not fit,
so there is nothing to look for; but in WSL it is the driver of Windows that manages the memory, and
that one moves it ("CUDA - Sysmem Fallback Policy" in its settings). There only what is in use of
the card can be seen.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

from hotset.core.spill import CardMemory
from hotset.probe import amd
from hotset.probe.drm import cards
from hotset.probe.graphics import graphics
from hotset.probe.memory import memory

__all__ = ["card_memories"]

_WSL_SIGN = "usr/lib/wsl/lib"


def card_memories(root: Path = Path("/"), nvml: Any = None) -> dict[str, CardMemory]:
    """By PCI address each card whose driver may move what does not fit, and shows something of it.

    Takes some milliseconds. Devices that share RAM are left out: their memory is where it belongs.

    Args:
        root: where /proc, /sys and /usr are looked for.
        nvml: a module like `pynvml`; None loads that if there is a driver.
    """
    ram = memory(root)
    found = graphics(ram.usable_bytes, ram.available_bytes, root, nvml).gpus
    hosted = {
        card.bus_id: amd.gtt_used_bytes(card)
        for card in cards(root)
        if card.vendor_id == amd.VENDOR_ID
    }
    is_wsl = (root / _WSL_SIGN).is_dir()
    return {
        gpu.bus_id: CardMemory(gpu.used_bytes, gpu.free_bytes, hosted.get(gpu.bus_id))
        for gpu in found
        if gpu.bus_id and not gpu.shares_ram and (gpu.vendor != "nvidia" or is_wsl)
    }
