"""Memory and control groups, on a made-up /proc and /sys."""

from __future__ import annotations

from pathlib import Path

import psutil
import pytest

from hotset.core.units import GIB, MIB
from hotset.probe.memory import memory
from sysfskit import write


def version_2(path: str, limit: int | str, current: int = 0, inactive: int = 0) -> dict[str, str]:
    base = f"sys/fs/cgroup/{path}".rstrip("/")
    return {
        f"{base}/memory.max": f"{limit}\n",
        f"{base}/memory.current": f"{current}\n",
        f"{base}/memory.stat": f"anon 5\ninactive_file {inactive}\nactive_file 7\n",
    }


def version_1(path: str, limit: int, usage: int = 0, inactive: int = 0) -> dict[str, str]:
    base = f"sys/fs/cgroup/memory/{path}".rstrip("/")
    return {
        f"{base}/memory.limit_in_bytes": f"{limit}\n",
        f"{base}/memory.usage_in_bytes": f"{usage}\n",
        f"{base}/memory.stat": f"cache 5\ninactive_file 1\ntotal_inactive_file {inactive}\n",
    }


def test_without_control_groups_it_is_the_machines_own_memory(tmp_path: Path) -> None:
    seen = memory(tmp_path)
    assert seen.limit_bytes is None
    assert seen.usable_bytes == seen.total_bytes == psutil.virtual_memory().total
    assert 0 < seen.available_bytes <= seen.total_bytes


def test_a_version_2_limit_bounds_what_is_available_and_counts_reclaimable_pages_as_free(
    tmp_path: Path,
) -> None:
    files = version_2("a/b", 512 * MIB, 300 * MIB, 100 * MIB)
    seen = memory(write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files}))
    assert seen.limit_bytes == seen.usable_bytes == 512 * MIB
    assert seen.available_bytes == (512 - 300 + 100) * MIB


def test_a_version_1_limit_does_the_same(tmp_path: Path) -> None:
    files = version_1("a/b", 512 * MIB, 300 * MIB, 100 * MIB)
    lines = "9:name=systemd:/\n4:memory:/a/b\n1:cpu:/\n"
    seen = memory(write(tmp_path, {"proc/self/cgroup": lines, **files}))
    assert seen.limit_bytes == 512 * MIB
    assert seen.available_bytes == (512 - 300 + 100) * MIB


def test_the_tightest_limit_on_the_way_up_counts(tmp_path: Path) -> None:
    files = version_2("a/b", 900 * MIB, 10 * MIB) | version_2("a", 600 * MIB, 500 * MIB)
    files |= version_2("", "max")
    seen = memory(write(tmp_path, {"proc/self/cgroup": "0::/a/b\n", **files}))
    assert seen.limit_bytes == 600 * MIB
    assert seen.available_bytes == 100 * MIB


def test_in_a_container_the_path_is_the_hosts_and_the_mounted_root_is_read(tmp_path: Path) -> None:
    files = version_1("", 700 * MIB, 200 * MIB)
    root = write(tmp_path, {"proc/self/cgroup": "4:memory:/docker/0123\n", **files})
    assert memory(root).limit_bytes == 700 * MIB


@pytest.mark.parametrize("limit", ["max", str((1 << 63) - 4096), "garbage"])
def test_no_limit_and_an_unreadable_one_are_no_limit(tmp_path: Path, limit: str) -> None:
    files = version_2("", limit)
    assert memory(write(tmp_path, {"proc/self/cgroup": "0::/\n", **files})).limit_bytes is None


def test_a_limit_beyond_the_machine_is_none(tmp_path: Path) -> None:
    files = version_2("", 1 << 50, 5 * GIB)
    seen = memory(write(tmp_path, {"proc/self/cgroup": "0::/\n", **files}))
    assert seen.limit_bytes is None
    assert seen.usable_bytes == seen.total_bytes


def test_a_group_that_is_over_its_limit_leaves_nothing_not_less(tmp_path: Path) -> None:
    files = version_2("", 100 * MIB, 200 * MIB)
    assert memory(write(tmp_path, {"proc/self/cgroup": "0::/\n", **files})).available_bytes == 0


MEMINFO = """\
MemTotal:       33554432 kB
MemFree:         1000000 kB
MemAvailable:   25165824 kB
SwapTotal:       8388608 kB
SwapFree:        4194304 kB
HugePages_Total:       0"""


def test_the_kernels_own_figures_are_taken(tmp_path: Path) -> None:
    seen = memory(write(tmp_path, {"proc/meminfo": MEMINFO}))
    assert (seen.total_bytes, seen.available_bytes) == (32 * GIB, 24 * GIB)
    assert (seen.swap_total_bytes, seen.swap_free_bytes) == (8 * GIB, 4 * GIB)


@pytest.mark.parametrize("text", ["", "MemTotal: lots", "MemTotal:  0 kB\nMemAvailable:  5 kB"])
def test_without_the_kernels_figures_the_system_is_asked(tmp_path: Path, text: str) -> None:
    seen = memory(write(tmp_path, {"proc/meminfo": text}))
    assert seen.total_bytes == psutil.virtual_memory().total


def test_version_2_limits_swap_by_itself(tmp_path: Path) -> None:
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "0::/a",
        "sys/fs/cgroup/a/memory.swap.max": str(GIB),
        "sys/fs/cgroup/a/memory.swap.current": str(256 * MIB),
    }
    seen = memory(write(tmp_path, files))
    assert (seen.swap_total_bytes, seen.swap_free_bytes) == (GIB, 768 * MIB)
    assert seen.available_bytes == 24 * GIB


def test_version_1_limits_ram_and_swap_together(tmp_path: Path) -> None:
    base = "sys/fs/cgroup/memory/a"
    files = {
        "proc/meminfo": MEMINFO,
        "proc/self/cgroup": "4:memory:/a",
        f"{base}/memory.memsw.limit_in_bytes": str(5 * GIB),
        f"{base}/memory.memsw.usage_in_bytes": str(4 * GIB),
    }
    without_ram = memory(write(tmp_path, files))
    assert without_ram.swap_total_bytes == 8 * GIB
    seen = memory(write(tmp_path, version_1("a", 3 * GIB, GIB)))
    assert (seen.swap_total_bytes, seen.swap_free_bytes) == (2 * GIB, GIB)


def test_pressure_is_the_highest_of_the_machine_and_its_groups(tmp_path: Path) -> None:
    line = "some avg10={} avg60=0.00 avg300=0.00 total=1\nfull avg10=99.00 avg60=0.00 total=1"
    assert memory(tmp_path).pressure_percent is None
    write(tmp_path, {"proc/pressure/memory": line.format("1.50"), "proc/self/cgroup": "0::/a"})
    assert memory(tmp_path).pressure_percent == 1.5
    write(tmp_path, {"sys/fs/cgroup/a/memory.pressure": line.format("12.25")})
    assert memory(tmp_path).pressure_percent == 12.25
    write(tmp_path, {"proc/pressure/memory": "nothing", "sys/fs/cgroup/a/memory.pressure": "?"})
    assert memory(tmp_path).pressure_percent is None
