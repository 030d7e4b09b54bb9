"""The disk behind a path: what kind it is, and how much room it has."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path

__all__ = ["Disk", "disk_of"]

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "sshfs", "fuse.sshfs", "9p", "afs"})
_MEMORY = frozenset({"tmpfs", "ramfs"})

_VIRTUAL = ("vd", "xvd")


@dataclass(frozen=True, slots=True)
class Disk:
    """Attributes:
    mount: where it is mounted.
    file_system: its type as the kernel names it (`ext4`, `9p` for a Windows drive in WSL).
    is_rotational: a spinning disk; None where the kernel does not say.
    is_network: reads go over a network, or to another operating system.
    is_memory: the files are in RAM already.
    free_bytes, total_bytes: room on it.
    """

    mount: str
    file_system: str
    is_rotational: bool | None
    is_network: bool
    is_memory: bool
    free_bytes: int
    total_bytes: int


def disk_of(path: Path, root: Path = Path("/")) -> Disk:
    """The disk that holds `path`, which must exist. `root` is where /proc and /sys are looked for.

    Raises:
        OSError: the path cannot be read.
    """
    usage = shutil.disk_usage(path)
    mount, file_system = _mount_of(path.resolve(), root)
    return Disk(
        mount=mount,
        file_system=file_system,
        is_rotational=_is_rotational(path.stat().st_dev, root),
        is_network=file_system in _NETWORK,
        is_memory=file_system in _MEMORY,
        free_bytes=usage.free,
        total_bytes=usage.total,
    )


def _mount_of(path: Path, root: Path) -> tuple[str, str]:
    """Mount point and file system: the longest mount point that is a parent. Last one wins."""
    try:
        lines = (root / "proc/self/mountinfo").read_text().splitlines()
    except OSError:
        return "/", "unknown"
    best = ("/", "unknown")
    for line in lines:
        left, _, right = line.partition(" - ")
        # proc(5): field 5 is the mount point, with blanks and the like as octal escapes.
        mount = left.split()[4].encode().decode("unicode_escape")
        if path.is_relative_to(mount) and len(mount) >= len(best[0]):
            best = (mount, right.split()[0])
    return best


def _is_rotational(device: int, root: Path) -> bool | None:
    """From the block device's queue, or its parent's for a partition.

    None for what is no block device, and for a virtual machine's disk, which says "rotating"
    whatever lies behind it.
    """
    block = (root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve()
    for folder in (block, block.parent):
        if folder.name.startswith(_VIRTUAL):
            return None
        try:
            return (folder / "queue/rotational").read_text().strip() == "1"
        except OSError:
            continue
    return None
