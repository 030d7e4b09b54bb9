"""What was measured of this machine, kept in one JSON file in the user's cache directory.

Every figure carries what it was measured on and when. One that belongs to another disk, processor
or card is not used. The file can be deleted at any time; a damaged one is ignored.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path

from hotset.core.machine import Gpu
from hotset.core.units import GIB
from hotset.probe.cpu import Cpu
from hotset.probe.keeping import write_whole
from hotset.probe.sysfs import read_text

__all__ = [
    "CopyFact",
    "DiskFact",
    "Measured",
    "RamFact",
    "card_identity",
    "load_measured",
    "ram_identity",
    "save_measured",
]

_VERSION = 1
# Beyond these it is no measurement but damage.
_MOST_BYTES_S = 10**14


@dataclass(frozen=True, slots=True)
class DiskFact:
    """Bytes per second as in `probe.measure.DiskSpeed`, and the day as ``2026-11-30``."""

    read_bytes_s: int
    random_read_bytes_s: int
    day: str


@dataclass(frozen=True, slots=True)
class RamFact:
    """Bytes per second as in `probe.measure.RamSpeed`; `identity` as `ram_identity` gives it."""

    read_bytes_s: int
    identity: str
    day: str


@dataclass(frozen=True, slots=True)
class CopyFact:
    """Bytes per second of large copies between pinned RAM and a card, in both directions."""

    to_bytes_s: int
    from_bytes_s: int
    day: str


@dataclass(frozen=True, slots=True)
class Measured:
    """Everything that is kept. `disks` is by `MountedDisk.identity`, `cards` by `card_identity`."""

    ram: RamFact | None = None
    disks: Mapping[str, DiskFact] = field(default_factory=dict)
    cards: Mapping[str, CopyFact] = field(default_factory=dict)


def ram_identity(cpu: Cpu, ram_total_bytes: int) -> str:
    """Tells one machine's memory from another's, across restarts and new kernels."""
    return f"{cpu.name}, {cpu.num_cores} cores, {round(ram_total_bytes / GIB)} GiB"


def card_identity(gpu: Gpu) -> str:
    """Tells cards apart, and one from another in its place: where it is, what it is, its slot."""
    slot = f", PCIe {gpu.link.pcie_generation}x{gpu.link.lanes}" if gpu.link else ""
    return f"{gpu.bus_id or gpu.engine_name}, {gpu.name}{slot}"


def load_measured(file: Path) -> tuple[Measured, str]:
    """What was kept, and "" or one line about a file that cannot be used.

    A file that is not there is nothing to speak of.
    """
    if not file.exists():
        return Measured(), ""
    text = read_text(file)
    try:
        if text is None:
            raise ValueError("it cannot be read, or is empty")
        return _measured(json.loads(text)), ""
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        reason = " ".join(str(error).split())[:120]
        return Measured(), (
            f"{file}: no measurements of hotset ({reason}); ignored until"
            " `hotset doctor --measure` writes it again"
        )


def _measured(data: object) -> Measured:
    if not isinstance(data, dict) or data.get("version") != _VERSION:
        raise ValueError(f"its version is not {_VERSION}")
    ram = data["ram"]
    return Measured(
        ram=None
        if ram is None
        else RamFact(_rate(ram["read_bytes_s"]), _text(ram["identity"]), _text(ram["day"])),
        disks={
            name: DiskFact(
                _rate(disk["read_bytes_s"]), _rate(disk["random_read_bytes_s"]), _text(disk["day"])
            )
            for name, disk in dict(data["disks"]).items()
        },
        cards={  # files of earlier versions have none
            name: CopyFact(
                _rate(card["to_bytes_s"]), _rate(card["from_bytes_s"]), _text(card["day"])
            )
            for name, card in dict(data.get("cards", {})).items()
        },
    )


def _rate(value: object) -> int:
    if not isinstance(value, int) or not 0 < value <= _MOST_BYTES_S:
        raise ValueError(f"a rate is {value!r}")
    return value


def _text(value: object) -> str:
    if not isinstance(value, str):
        raise ValueError(f"a text is {value!r}")
    return value


def save_measured(file: Path, measured: Measured) -> str:
    """Write the file as a whole or not at all. Returns "" or the reason why it cannot be kept."""
    data = {
        "version": _VERSION,
        "ram": asdict(measured.ram) if measured.ram else None,
        "disks": {name: asdict(disk) for name, disk in measured.disks.items()},
        "cards": {name: asdict(card) for name, card in measured.cards.items()},
    }
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        write_whole(file, json.dumps(data, indent=1) + "\n")
    except OSError as error:
        return f"{file} cannot be written ({error.strerror})"
    return ""
