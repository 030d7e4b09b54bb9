"""Intel graphics through the sysfs files of the kernel drivers xe and i915.

Graphics in an Intel processor is always PCI device 00:02.0; everything else is a card. A card's
memory: `tile*/physical_vram_size_bytes` where xe states it (drivers/gpu/drm/xe/xe_tile_sysfs.c),
else the size of PCI region 2, which maps all of it when the firmware has resizable regions
switched on (file `resource`, kernel documentation, ABI/testing/sysfs-bus-pci). Neither driver says
how much is free; what the visible processes hold is subtracted, and the engine knows better.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from pathlib import Path

from hotset.core.gpus import known_gpu
from hotset.core.machine import Gpu, GpuUser
from hotset.core.units import GIB
from hotset.probe.drm import Card
from hotset.probe.links import link_of
from hotset.probe.names import pci_name
from hotset.probe.sysfs import read_int, read_text

__all__ = ["VENDOR_ID", "intel_gpu"]

VENDOR_ID = 0x8086
_INTEGRATED_BUS_ID = "0000:00:02.0"
_VRAM_REGION = 2


def intel_gpu(
    card: Card,
    ram_total_bytes: int,
    ram_available_bytes: int,
    used_by: Sequence[GpuUser] = (),
    root: Path = Path("/"),
) -> Gpu | None:
    """One device; None for a card that does not state its memory.

    Args:
        ram_total_bytes, ram_available_bytes: what integrated graphics can use; a driver may allow
            itself less, which only the engine learns.
        used_by: who holds memory of the card.
    """
    name = pci_name(VENDOR_ID, card.device_id, root) or f"Intel graphics {card.device_id:04x}"
    is_integrated = card.bus_id == _INTEGRATED_BUS_ID
    total = ram_total_bytes if is_integrated else _vram_bytes(card.folder)
    if not total:
        return None
    free = ram_available_bytes
    if not is_integrated:
        free = max(0, total - sum(user.used_bytes or 0 for user in used_by))
    known = known_gpu(name, total)
    return Gpu(
        name=name,
        total_bytes=total,
        free_bytes=min(free, total),
        vendor="intel",
        is_integrated=is_integrated,
        shares_ram=is_integrated,
        bandwidth_bytes_s=known.bandwidth_bytes_s if known else None,
        link=None if is_integrated else link_of(card.folder),
        bus_id=card.bus_id,
    )


def _vram_bytes(folder: Path) -> int:
    tiles = sum(read_int(path) or 0 for path in folder.glob("tile*/physical_vram_size_bytes"))
    if 0 < tiles <= 1 << 45:
        return tiles
    lines = (read_text(folder / "resource") or "").splitlines()
    if len(lines) <= _VRAM_REGION:
        return 0
    match = re.match(r"0x([0-9a-f]{1,16}) 0x([0-9a-f]{1,16}) ", lines[_VRAM_REGION])
    size = int(match[2], 16) - int(match[1], 16) + 1 if match else 0
    # A window of 256 MiB is the fixed one of old firmware, not the card's memory.
    return size if GIB <= size <= 1 << 45 else 0
