"""AMD graphics through the sysfs files of the kernel driver amdgpu.

Files: `mem_info_vram_total`, `mem_info_vram_used`, `mem_info_gtt_total`, `mem_info_gtt_used` in
bytes, `product_name` on cards whose board states one (kernel documentation,
gpu/amdgpu/driver-misc.rst), `pp_dpm_pcie` (gpu/amdgpu/thermal.rst), and `gpu_metrics`, a table
whose third byte is the revision of its form: 1 on cards, 2 and 3 on processors with graphics
(drivers/gpu/drm/amd/include/kgd_pp_interface.h).

GTT is the part of RAM that a device can use as if it were its own. For a card it is where the
driver quietly puts what does not fit, at the speed of the slot; so it does not count as memory of
the card. For graphics in a processor both parts are RAM, and llama.cpp uses both.
"""

from __future__ import annotations

import re
from pathlib import Path

from hotset.core.gpus import known_gpu
from hotset.core.machine import Gpu
from hotset.probe.drm import Card
from hotset.probe.links import link_of
from hotset.probe.names import amd_name, pci_name
from hotset.probe.sysfs import read_int, read_text

__all__ = ["VENDOR_ID", "amd_gpu", "gtt_used_bytes"]

VENDOR_ID = 0x1002
_INTEGRATED_REVISIONS = (2, 3)


def amd_gpu(card: Card, ram_available_bytes: int, root: Path = Path("/")) -> Gpu | None:
    """One device; None where the driver does not state its memory.

    Args:
        ram_available_bytes: bounds what is free of memory that is RAM.
    """
    vram = _pool(card.folder, "vram")
    if vram is None:
        return None
    total, free = vram
    name = _name(card, root)
    is_integrated = _is_integrated(card.folder, name, total)
    if is_integrated:
        gtt_total, gtt_free = _pool(card.folder, "gtt") or (0, 0)
        total, free = total + gtt_total, free + min(gtt_free, ram_available_bytes)
    known = known_gpu(name, total)
    return Gpu(
        name=name,
        total_bytes=total,
        free_bytes=free,
        vendor="amd",
        is_integrated=is_integrated,
        shares_ram=is_integrated,
        bandwidth_bytes_s=known.bandwidth_bytes_s if known else None,
        link=None if is_integrated else link_of(card.folder, _reachable_lanes(card.folder)),
        bus_id=card.bus_id,
    )


def gtt_used_bytes(card: Card) -> int | None:
    """RAM that the device uses as its own; on a card, growth means that something spills."""
    return read_int(card.folder / "mem_info_gtt_used")


def _pool(folder: Path, name: str) -> tuple[int, int] | None:
    """Total and free bytes; None where the driver states no total, or an impossible one."""
    total = read_int(folder / f"mem_info_{name}_total")
    if not total or total > 1 << 45:
        return None
    used = read_int(folder / f"mem_info_{name}_used") or 0
    return total, max(0, total - used)


def _reachable_lanes(folder: Path) -> int:
    """The widest of the states that power management chooses from: ``2: 16.0GT/s, x16 *``."""
    lanes = re.findall(r"GT/s, x(1|2|4|8|16)\b", read_text(folder / "pp_dpm_pcie") or "")
    return max(map(int, lanes), default=0)


def _name(card: Card, root: Path) -> str:
    return (
        read_text(card.folder / "product_name")
        or amd_name(card.device_id, card.revision, root)
        or pci_name(VENDOR_ID, card.device_id, root)
        or f"AMD graphics {card.device_id:04x}"
    )


def _is_integrated(folder: Path, name: str, vram_bytes: int) -> bool:
    try:
        with (folder / "gpu_metrics").open("rb") as file:
            header = file.read(4)
    except OSError:
        header = b""
    if len(header) == 4:
        return header[2] in _INTEGRATED_REVISIONS
    known = known_gpu(name, vram_bytes)
    return known is not None and known.is_integrated
