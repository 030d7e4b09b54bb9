"""The disk behind a path: what kind it is, how much room it has, and which one it is.

Sources: /proc/self/mountinfo (proc_pid_mountinfo(5)) for the file system; /sys/dev/block and
/sys/class/block for the device, its queue and the devices that it is made of (kernel documentation,
ABI/stable/sysfs-block).
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from hotset.core.machine import DiskKind
from hotset.probe.sysfs import read_int, read_text

__all__ = ["MountedDisk", "disk_of"]

_NETWORK = frozenset(
    {"nfs", "nfs4", "cifs", "smb3", "smbfs", "sshfs", "9p", "afs", "ceph", "glusterfs", "lustre"}
    | {"fuse.sshfs", "fuse.rclone", "fuse.s3fs", "fuse.gcsfuse", "fuse.glusterfs", "virtiofs"}
    | {"beegfs", "davfs", "fuse.davfs2"}
)
_MEMORY = frozenset({"tmpfs", "ramfs"})
_WINDOWS = frozenset({"9p", "drvfs"})

_VIRTUAL = ("vd", "xvd")
# Layers of devices on devices are few: encryption on a volume on an array.
_MOST_LAYERS = 6


@dataclass(frozen=True, slots=True)
class MountedDisk:
    """Attributes:
    kind: what is behind it; of several devices the slowest.
    mount: where it is mounted.
    file_system: its type as the kernel names it (`ext4`, `9p` for a Windows drive in WSL).
    free_bytes, total_bytes: room on it.
    identity: tells this disk from another one, across restarts; for stored measurements.
    """

    kind: DiskKind
    mount: str
    file_system: str
    free_bytes: int
    total_bytes: int
    identity: str


@dataclass(frozen=True, slots=True)
class _Mount:
    point: str
    file_system: str
    source: str
    options: str


# From the slowest to the fastest, as far as a kind tells.
_SLOWEST_FIRST = (
    DiskKind.ROTATING,
    DiskKind.UNKNOWN,
    DiskKind.VIRTUAL,
    DiskKind.SSD,
    DiskKind.NVME,
)


def disk_of(path: Path, root: Path = Path("/")) -> MountedDisk:
    """The disk that holds `path`, which must exist. `root` is where /proc and /sys are looked for.

    Raises:
        OSError: the path cannot be read.
    """
    usage = shutil.disk_usage(path)
    mount = _mount_of(path.resolve(), root)
    blocks = list(_blocks(path.stat().st_dev, mount, root))
    kind = _kind_of_file_system(mount, root) or min(
        (_kind(block) for block in blocks), key=_SLOWEST_FIRST.index, default=DiskKind.UNKNOWN
    )
    names = [_identity(block) for block in blocks] or [f"{mount.source} at {mount.point}"]
    return MountedDisk(
        kind=kind,
        mount=mount.point,
        file_system=mount.file_system,
        free_bytes=usage.free,
        total_bytes=usage.total,
        identity=f"{mount.file_system} on {' + '.join(sorted(names))}",
    )


def _mount_of(path: Path, root: Path) -> _Mount:
    """The longest mount point that is a parent. Last one wins."""
    best = _Mount("/", "unknown", "", "")
    for line in (read_text(root / "proc/self/mountinfo") or "").splitlines():
        left, _, right = line.partition(" - ")
        before, after = left.split(), right.split()
        if len(before) < 5 or len(after) < 2:
            continue
        point = _plain(before[4])
        if path.is_relative_to(point) and len(point) >= len(best.point):
            best = _Mount(point, after[0], _plain(after[1]), " ".join(after[2:]))
    return best


def _plain(text: str) -> str:
    """The kernel writes blanks and the like as octal escapes."""
    return text.encode().decode("unicode_escape")


def _kind_of_file_system(mount: _Mount, root: Path) -> DiskKind | None:
    """What the file system alone decides. In WSL the kernel names Microsoft in its version."""
    if mount.file_system == "drvfs" or "aname=drvfs" in mount.options:
        return DiskKind.WINDOWS
    if mount.file_system in _WINDOWS:
        version = (read_text(root / "proc/version") or "").lower()
        return DiskKind.WINDOWS if "microsoft" in version else DiskKind.NETWORK
    if mount.file_system in _NETWORK:
        return DiskKind.NETWORK
    return DiskKind.MEMORY if mount.file_system in _MEMORY else None


def _blocks(device: int, mount: _Mount, root: Path) -> Iterator[Path]:
    """The disks behind a device number: through partitions, encryption, volumes and arrays.

    File systems that span devices (btrfs, bcachefs) give their files a number of their own; then
    the device that was mounted has to do.
    """
    link = root / f"sys/dev/block/{os.major(device)}:{os.minor(device)}"
    if not link.exists() and mount.source.startswith("/dev/"):
        name = Path(mount.source).resolve().name
        link = root / "sys/class/block" / name
    if link.exists():
        yield from _lowest(link.resolve(), _MOST_LAYERS)


def _lowest(block: Path, layers: int) -> Iterator[Path]:
    if (block / "partition").exists():
        block = block.parent
    try:
        slaves = sorted((block / "slaves").iterdir())
    except OSError:
        slaves = []
    if not slaves or layers == 0:
        yield block
    for slave in slaves if layers else ():
        yield from _lowest(slave.resolve(), layers - 1)


def _kind(block: Path) -> DiskKind:
    if block.name.startswith("nvme"):
        return DiskKind.NVME
    if block.name.startswith(_VIRTUAL):
        # It says "rotating" whatever lies behind it.
        return DiskKind.VIRTUAL
    rotational = read_int(block / "queue/rotational")
    if rotational is None or block.name.startswith("loop"):
        return DiskKind.UNKNOWN
    return DiskKind.ROTATING if rotational else DiskKind.SSD


def _identity(block: Path) -> str:
    """Model and size, and the device's own identifier where it may be read."""
    parts = [
        read_text(block / "device/model") or block.name,
        read_text(block / "wwid") or read_text(block / "device/wwid") or "",
        f"{read_int(block / 'size') or 0} sectors",
    ]
    return " ".join(part for part in parts if part)
