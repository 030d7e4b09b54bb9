"""Disks and processors, on a made-up /proc and /sys and on this machine."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from hotset.core.machine import DiskKind
from hotset.probe.cpu import cpu
from hotset.probe.disk import disk_of
from sysfskit import write

MOUNTS = """\
22 1 254:0 / / rw,relatime - ext4 /dev/vda rw
30 22 0:40 / {mount} rw,relatime shared:3 - {kind} {source} {options}
"""


def mounted(
    root: Path, mount: Path, kind: str, source: str = "source", options: str = "rw"
) -> None:
    escaped = str(mount).replace(" ", "\\040")
    text = MOUNTS.format(mount=escaped, kind=kind, source=source, options=options)
    write(root, {"proc/self/mountinfo": text})


@pytest.mark.parametrize(
    ("kind", "options", "version", "expected"),
    [
        ("ext4", "rw", "Linux", DiskKind.UNKNOWN),
        ("nfs4", "rw", "Linux", DiskKind.NETWORK),
        ("fuse.sshfs", "rw", "Linux", DiskKind.NETWORK),
        ("9p", "rw,trans=virtio", "Linux version 6.1", DiskKind.NETWORK),
        ("9p", "rw,aname=drvfs;path=C:", "", DiskKind.WINDOWS),
        ("9p", "rw", "Linux version 5.15-microsoft-standard-WSL2", DiskKind.WINDOWS),
        ("drvfs", "rw", "Linux version 4.4-Microsoft", DiskKind.WINDOWS),
        ("tmpfs", "rw", "Linux", DiskKind.MEMORY),
        ("overlay", "rw,lowerdir=/a,upperdir=/b", "Linux", DiskKind.UNKNOWN),
    ],
)
def test_what_the_file_system_decides(
    tmp_path: Path, kind: str, options: str, version: str, expected: DiskKind
) -> None:
    models = tmp_path / "my models"
    models.mkdir()
    mounted(tmp_path / "root", models, kind, options=options)
    write(tmp_path / "root", {"proc/version": version})
    disk = disk_of(models, tmp_path / "root")
    assert (disk.mount, disk.file_system) == (str(models), kind)
    assert disk.kind is expected
    assert 0 < disk.free_bytes <= disk.total_bytes
    assert disk.identity == f"{kind} on source at {models}"


def test_the_longest_mount_point_that_is_a_parent_counts(tmp_path: Path) -> None:
    (tmp_path / "models-old").mkdir()
    mounted(tmp_path / "root", tmp_path / "models", "nfs")
    assert disk_of(tmp_path / "models-old", tmp_path / "root").mount == "/"


@pytest.mark.parametrize("text", ["", "22 1 254:0", "a b c d / - ", "\x00\xff - - -"])
def test_an_odd_list_of_mounts_is_an_unknown_one(tmp_path: Path, text: str) -> None:
    write(tmp_path / "root", {"proc/self/mountinfo": text})
    disk = disk_of(tmp_path, tmp_path / "root")
    assert (disk.mount, disk.file_system, disk.kind) == ("/", "unknown", DiskKind.UNKNOWN)


def block_device(root: Path, name: str, rotational: str, below: list[Path] | None = None) -> Path:
    """A device as sysfs has it, made of those `below`."""
    disk = root / "sys/devices/virtual" / name
    write(disk, {"queue/rotational": rotational, "size": "1000", "device/model": f"Model {name}"})
    for path in below or []:
        (disk / "slaves").mkdir(exist_ok=True)
        (disk / "slaves" / path.name).symlink_to(path)
    return disk


def numbered(root: Path, path: Path, block: Path) -> None:
    """Make `block` the device of the file system that `path` is on."""
    device = path.stat().st_dev
    links = root / "sys/dev/block"
    links.mkdir(parents=True)
    (links / f"{os.major(device)}:{os.minor(device)}").symlink_to(block)


@pytest.mark.parametrize(
    ("name", "partition", "rotational", "expected"),
    [
        ("sda", "", "1", DiskKind.ROTATING),
        ("sda", "sda1", "1", DiskKind.ROTATING),
        ("sdb", "sdb2", "0", DiskKind.SSD),
        ("nvme0n1", "nvme0n1p2", "0", DiskKind.NVME),
        ("vda", "vda1", "1", DiskKind.VIRTUAL),
        ("loop3", "", "0", DiskKind.UNKNOWN),
        ("sdc", "", "often", DiskKind.UNKNOWN),
    ],
)
def test_the_kind_is_that_of_the_disk_whatever_part_of_it_is_used(
    tmp_path: Path, name: str, partition: str, rotational: str, expected: DiskKind
) -> None:
    root = tmp_path / "root"
    disk = block_device(root, name, rotational)
    if partition:
        write(disk, {f"{partition}/partition": "1"})
    numbered(root, tmp_path, disk / partition)
    seen = disk_of(tmp_path, root)
    assert seen.kind is expected
    assert seen.identity == f"unknown on Model {name} 1000 sectors"


def test_an_encrypted_volume_on_two_disks_is_as_slow_as_the_slower_one(tmp_path: Path) -> None:
    root = tmp_path / "root"
    fast, slow = block_device(root, "nvme0n1", "0"), block_device(root, "sda", "1")
    array = block_device(root, "md0", "0", [fast, slow])
    numbered(root, tmp_path, block_device(root, "dm-0", "0", [array]))
    seen = disk_of(tmp_path, root)
    assert seen.kind is DiskKind.ROTATING
    assert seen.identity == "unknown on Model nvme0n1 1000 sectors + Model sda 1000 sectors"


def test_devices_made_of_each_other_end(tmp_path: Path) -> None:
    root = tmp_path / "root"
    first = block_device(root, "dm-0", "0")
    second = block_device(root, "dm-1", "0", [first])
    (first / "slaves").mkdir()
    (first / "slaves/dm-1").symlink_to(second)
    numbered(root, tmp_path, first)
    assert disk_of(tmp_path, root).kind is DiskKind.SSD


def test_a_file_system_with_a_number_of_its_own_is_on_the_device_that_was_mounted(
    tmp_path: Path,
) -> None:
    root = tmp_path / "root"
    disk = block_device(root, "nvme9n9", "0")
    mounted(root, tmp_path, "btrfs", "/dev/nvme9n9p2")
    write(disk, {"nvme9n9p2/partition": "2"})
    links = root / "sys/class/block"
    links.mkdir(parents=True)
    (links / "nvme9n9p2").symlink_to(disk / "nvme9n9p2")
    assert disk_of(tmp_path, root).kind is DiskKind.NVME


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


def processors(root: Path, siblings: list[str], speeds: list[int] | None = None) -> None:
    """One entry per logical processor: which share its core, and how fast it can run."""
    base = root / "sys/devices/system/cpu"
    for number, text in enumerate(siblings):
        write(base, {f"cpu{number}/topology/core_cpus_list": text})
    for number, khz in enumerate(speeds or []):
        write(base, {f"cpu{number}/cpufreq/cpuinfo_max_freq": str(khz)})


# 4 fast cores with two threads each, then 4 slow ones with one.
HYBRID = ["0-1", "0-1", "2-3", "2-3", "4-5", "4-5", "6-7", "6-7", "8", "9", "10", "11"]
HYBRID_KHZ = [5_200_000] * 4 + [5_400_000] * 4 + [4_000_000] * 4


@pytest.mark.parametrize("tells", ["kinds", "speeds", "capacity", "nothing"])
def test_of_two_kinds_of_cores_the_fast_ones_are_counted_if_anything_tells(
    tmp_path: Path, tells: str
) -> None:
    processors(tmp_path, HYBRID, HYBRID_KHZ if tells == "speeds" else None)
    if tells == "kinds":
        write(tmp_path, {"sys/devices/cpu_core/cpus": "0-7", "sys/devices/cpu_atom/cpus": "8-11"})
    if tells == "capacity":
        for number in range(12):
            capacity = "1024" if number < 8 else "512"
            write(tmp_path, {f"sys/devices/system/cpu/cpu{number}/cpu_capacity": capacity})
    seen = cpu(tmp_path, frozenset(range(12)))
    assert (seen.num_cores, seen.num_threads) == (8, 12)
    assert seen.num_performance_cores == (None if tells == "nothing" else 4)


@pytest.mark.parametrize(
    ("allowed", "expected"),
    [
        (range(8), (4, 8, None)),
        (range(8, 12), (4, 4, None)),
        ((0, 1, 8), (2, 3, 1)),
        ((0, 2, 4), (3, 3, None)),
    ],
)
def test_only_the_processors_that_may_be_used_count(
    tmp_path: Path, allowed: tuple[int, ...], expected: tuple[int, int, int | None]
) -> None:
    processors(tmp_path, HYBRID, HYBRID_KHZ)
    seen = cpu(tmp_path, frozenset(allowed))
    assert (seen.num_cores, seen.num_threads, seen.num_performance_cores) == expected


def test_cores_of_one_kind_with_different_turbo_are_all_the_same(tmp_path: Path) -> None:
    processors(tmp_path, ["0", "1", "2", "3"], [5_700_000, 5_700_000, 5_500_000, 5_200_000])
    assert cpu(tmp_path, frozenset(range(4))).num_performance_cores is None


@pytest.mark.parametrize("text", ["", "0-", "x", "0,,1", "3-1", "0;1"])
def test_an_odd_list_of_processors_leaves_the_count_to_the_system(
    tmp_path: Path, text: str
) -> None:
    processors(tmp_path, [text, text])
    seen = cpu(tmp_path, frozenset({0, 1}))
    assert 1 <= seen.num_cores <= seen.num_threads == 2


def test_a_version_1_quota_counts_at_the_tightest_level(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/cpu"
    write(
        tmp_path,
        {
            "proc/self/cgroup": "3:cpuset:/\nodd line\n2:cpuacct,cpu:/a/b",
            f"{base}/a/cpu.cfs_quota_us": "250000",
            f"{base}/a/cpu.cfs_period_us": "100000",
            f"{base}/a/b/cpu.cfs_quota_us": "-1",
            f"{base}/a/b/cpu.cfs_period_us": "100000",
        },
    )
    assert cpu(tmp_path, frozenset(range(8))).num_threads == 3


@pytest.mark.parametrize(
    ("line", "features"),
    [
        ("flags\t\t: fpu avx avx2 fma sse4_2 avx512f", {"avx", "avx2", "fma", "avx512f"}),
        ("Features\t: fp asimd asimddp sve", {"neon", "dotprod", "sve"}),
        ("flags", set()),
    ],
)
def test_instruction_sets_go_by_one_name_on_every_system(
    tmp_path: Path, line: str, features: set[str]
) -> None:
    write(tmp_path, {"proc/cpuinfo": f"processor\t: 0\nmodel name\t: A CPU\n{line}"})
    seen = cpu(tmp_path)
    assert seen.name == "A CPU"
    assert seen.features == features
