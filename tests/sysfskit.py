"""Made-up /sys and /proc trees: cards, slots, processors, as the kernel's drivers lay them out."""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

from hotset.core.units import GIB, MIB

AMD, INTEL, NVIDIA = "0x1002", "0x8086", "0x10de"
CARD_BUS_ID = "0000:03:00.0"


def write(root: Path, files: dict[str, str]) -> Path:
    """Files by path below `root`, each with its line end."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


@dataclass(frozen=True)
class Slot:
    """A PCI device on the way to a card: what it can do, and what was agreed on."""

    bus_id: str
    speed: str = "16.0 GT/s PCIe"
    width: str = "16"
    max_width: str = "16"

    @property
    def files(self) -> dict[str, str]:
        return {
            "max_link_speed": self.speed,
            "current_link_speed": "2.5 GT/s PCIe",  # at rest
            "current_link_width": self.width,
            "max_link_width": self.max_width,
        }


def add_card(
    root: Path,
    number: int,
    vendor: str,
    driver: str,
    files: dict[str, str],
    path: list[Slot] | None = None,
) -> Path:
    """A card behind the slots of `path`, the last of which is itself; returns its folder."""
    path = path or [Slot(CARD_BUS_ID)]
    folder = root / "sys/devices/pci0000:00"
    for slot in path:
        folder /= slot.bus_id
        folder.mkdir(parents=True, exist_ok=True)
        write(folder, slot.files)
    write(folder, {"vendor": vendor, **files})
    drivers = root / "sys/bus/pci/drivers" / driver
    drivers.mkdir(parents=True, exist_ok=True)
    (folder / "driver").symlink_to(drivers)
    entry = root / f"sys/class/drm/card{number}"
    entry.mkdir(parents=True)
    (entry / "device").symlink_to(folder)
    (root / f"sys/class/drm/card{number}-DP-1").mkdir()
    return folder


def amd_files(
    total_bytes: int,
    used_bytes: int,
    device: str = "0x7550",
    gtt_total_bytes: int = 16 * GIB,
    gtt_used_bytes: int = 50 * MIB,
) -> dict[str, str]:
    return {
        "device": device,
        "revision": "0xc0",
        "mem_info_vram_total": str(total_bytes),
        "mem_info_vram_used": str(used_bytes),
        "mem_info_gtt_total": str(gtt_total_bytes),
        "mem_info_gtt_used": str(gtt_used_bytes),
    }


def add_metrics(folder: Path, revision: int) -> None:
    """The beginning of amdgpu's table: its size, the revision of its form and of its content."""
    (folder / "gpu_metrics").write_bytes(struct.pack("<HBB", 120, revision, 3) + bytes(116))


def add_user(root: Path, pid: int, name: str, lines: dict[str, str], fd: int = 5) -> None:
    """A process with a card's device file open."""
    write(root, {f"proc/{pid}/comm": name})
    links = root / f"proc/{pid}/fd"
    links.mkdir(exist_ok=True)
    (links / str(fd)).symlink_to("/dev/dri/renderD128")
    text = "\n".join(f"{key}:\t{value}" for key, value in lines.items())
    write(root, {f"proc/{pid}/fdinfo/{fd}": text})
