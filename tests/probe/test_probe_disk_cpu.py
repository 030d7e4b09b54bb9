"""Disks and processors, on a made-up /proc and /sys and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotset.probe.cpu import cpu
from hotset.probe.disk import disk_of

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / {mount} rw,relatime shared:3 - {kind} source rw
"""


def mounted(root: Path, mount: str, kind: str) -> None:
    proc = root / "proc/self"
    proc.mkdir(parents=True)
    escaped = mount.replace(" ", "\\040")
    (proc / "mountinfo").write_text(MOUNTS.format(mount=escaped, kind=kind))


@pytest.mark.parametrize(
    ("kind", "is_network", "is_memory"),
    [("ext4", False, False), ("nfs4", True, False), ("9p", True, False), ("tmpfs", False, True)],
)
def test_the_kind_of_file_system_decides_network_and_memory(
    tmp_path: Path, kind: str, is_network: bool, is_memory: bool
) -> None:
    models = tmp_path / "my models"
    models.mkdir()
    mounted(tmp_path / "root", str(models), kind)
    disk = disk_of(models, tmp_path / "root")
    assert (disk.mount, disk.file_system) == (str(models), kind)
    assert (disk.is_network, disk.is_memory) == (is_network, is_memory)
    assert 0 < disk.free_bytes <= disk.total_bytes


def test_the_longest_mount_point_that_is_a_parent_counts(tmp_path: Path) -> None:
    (tmp_path / "models-old").mkdir()
    mounted(tmp_path / "root", str(tmp_path / "models"), "nfs")
    assert disk_of(tmp_path / "models-old", tmp_path / "root").mount == "/"


def block_device(root: Path, path: Path, name: str, rotational: str, partition: str = "") -> None:
    """A device as sysfs has it: the number is a link to the disk or to a partition in it."""
    device = path.stat().st_dev
    disk = root / "sys/devices" / name
    (disk / "queue").mkdir(parents=True)
    (disk / "queue/rotational").write_text(f"{rotational}\n")
    (disk / partition).mkdir(exist_ok=True)
    links = root / "sys/dev/block"
    links.mkdir(parents=True)
    (links / f"{os.major(device)}:{os.minor(device)}").symlink_to(disk / partition)


@pytest.mark.parametrize(
    ("name", "partition", "rotational", "expected"),
    [
        ("sda", "", "1", True),
        ("sda", "sda1", "1", True),
        ("nvme0n1", "nvme0n1p2", "0", False),
        ("vda", "vda1", "1", None),
    ],
)
def test_rotation_is_that_of_the_disk_and_unknown_for_virtual_ones(
    tmp_path: Path, name: str, partition: str, rotational: str, expected: bool | None
) -> None:
    root = tmp_path / "root"
    block_device(root, tmp_path, name, rotational, partition)
    assert disk_of(tmp_path, root).is_rotational is expected


def test_a_path_that_is_not_there_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="No such file"):
        disk_of(tmp_path / "absent")


def test_this_machines_disk_and_processor_make_sense(tmp_path: Path) -> None:
    assert disk_of(tmp_path).mount.startswith("/")
    processor = cpu()
    assert processor.name
    assert 1 <= processor.num_cores <= processor.num_threads


@pytest.mark.parametrize(
    ("quota", "threads"),
    [("100000 100000", 1), ("50000 100000", 1), ("max 100000", None), ("?", None)],
)
def test_a_quota_of_processors_is_kept_and_rounded_up(
    tmp_path: Path, quota: str, threads: int | None
) -> None:
    folder = tmp_path / "sys/fs/cgroup"
    folder.mkdir(parents=True)
    (folder / "cpu.max").write_text(quota)
    (tmp_path / "proc/self").mkdir(parents=True)
    (tmp_path / "proc/self/cgroup").write_text("0::/\n")
    assert cpu(tmp_path).num_threads == (threads or cpu().num_threads)


def test_without_proc_the_processor_still_has_a_name(tmp_path: Path) -> None:
    assert cpu(tmp_path).name
