"""Graphics cards on made-up systems: what is seen, and what odd files do."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.core.machine import GpuUser, Link
from hotset.core.units import GIB, MIB
from hotset.probe.amd import gtt_used_bytes
from hotset.probe.drm import cards, users
from hotset.probe.graphics import graphics
from sysfskit import (
    AMD,
    CARD_BUS_ID,
    INTEL,
    NVIDIA,
    Slot,
    add_card,
    add_metrics,
    add_user,
    amd_files,
    write,
)

RAM, FREE = 32 * GIB, 24 * GIB


def test_without_a_card_there_is_nothing_and_nothing_to_say(tmp_path: Path) -> None:
    assert graphics(RAM, FREE, tmp_path).gpus == ()
    assert graphics(RAM, FREE, tmp_path).notes == ()


def test_an_amd_cards_memory_is_its_own_and_gtt_does_not_count(tmp_path: Path) -> None:
    add_metrics(add_card(tmp_path, 1, AMD, "amdgpu", amd_files(16 * GIB, 1536 * MIB)), 1)
    write(tmp_path, {"usr/share/libdrm/amdgpu.ids": "1.0.0\n7550,\tC0,\tAMD Radeon RX 9070 XT"})
    (gpu,) = graphics(RAM, FREE, tmp_path).gpus
    assert gpu.name == "AMD Radeon RX 9070 XT"
    assert (gpu.total_bytes, gpu.used_bytes) == (16 * GIB, 1536 * MIB)
    assert (gpu.vendor, gpu.is_integrated, gpu.shares_ram) == ("amd", False, False)
    assert gpu.bandwidth_bytes_s == 640 * 10**9
    assert gpu.bus_id == CARD_BUS_ID
    assert gpu.backend is None
    assert gtt_used_bytes(cards(tmp_path)[0]) == 50 * MIB


def test_graphics_in_an_amd_processor_have_both_kinds_of_memory_as_far_as_ram_is_free(
    tmp_path: Path,
) -> None:
    files = amd_files(2 * GIB, GIB, "0x15bf", gtt_total_bytes=15 * GIB, gtt_used_bytes=GIB)
    add_metrics(add_card(tmp_path, 0, AMD, "amdgpu", files, [Slot("0000:c4:00.0")]), 3)
    (gpu,) = graphics(RAM, FREE, tmp_path).gpus
    assert (gpu.total_bytes, gpu.free_bytes) == (17 * GIB, 15 * GIB)
    assert (gpu.is_integrated, gpu.shares_ram, gpu.link) == (True, True, None)
    (busy,) = graphics(RAM, 3 * GIB, tmp_path).gpus
    assert busy.free_bytes == 4 * GIB


def test_without_the_metrics_table_an_amd_devices_name_decides(tmp_path: Path) -> None:
    files = amd_files(2 * GIB, GIB, "0x1681") | {"product_name": "AMD Radeon 680M"}
    add_card(tmp_path, 0, AMD, "amdgpu", files)
    assert graphics(RAM, FREE, tmp_path).gpus[0].is_integrated
    add_card(tmp_path, 1, AMD, "amdgpu", amd_files(8 * GIB, 0), [Slot("0000:0a:00.0")])
    assert not graphics(RAM, FREE, tmp_path).gpus[1].is_integrated


def test_an_arc_card_says_its_memory_through_xe_and_what_processes_hold_is_not_free(
    tmp_path: Path,
) -> None:
    folder = add_card(tmp_path, 0, INTEL, "xe", {"device": "0xe20b", "revision": "0x00"})
    write(folder, {"tile0/physical_vram_size_bytes": str(12 * GIB)})
    write(tmp_path, {"usr/share/misc/pci.ids": PCI_IDS})
    lines = {"drm-driver": "xe", "drm-pdev": CARD_BUS_ID, "drm-client-id": "3"}
    add_user(tmp_path, 812, "kwin_wayland", lines | {"drm-resident-vram0": "524288 KiB"})
    (gpu,) = graphics(RAM, FREE, tmp_path).gpus
    assert gpu.name == "Arc B580"
    assert (gpu.total_bytes, gpu.used_bytes) == (12 * GIB, 512 * MIB)
    assert gpu.bandwidth_bytes_s == 456 * 10**9
    assert gpu.used_by == ()
    (asked,) = graphics(RAM, FREE, tmp_path, with_users=True).gpus
    assert asked.used_by == (GpuUser("kwin_wayland", 512 * MIB, 812),)


PCI_IDS = """\
# comment
1002  Advanced Micro Devices, Inc. [AMD/ATI]
\t7550  Navi 48 [Radeon RX 9070/9070 XT]
\t\t1043 1234  a board of somebody
8086  Intel Corporation
\t4680  AlderLake-S GT1
\te20b  Battlemage G21 [Arc B580]
9999  Somebody else
\te20b  not this one
"""


@pytest.mark.parametrize(
    ("resource", "total"),
    [
        # Resizable regions: the third line is the memory. The end counts.
        ("0x0 0x0 0x0\n0x0 0x0 0x0\n0x4000000000 0x43ffffffff 0x14220c", 16 * GIB),
        ("0x0 0x0 0x0\n0x0 0x0 0x0\n0x4000000000 0x400fffffff 0x14220c", None),
        ("0x0 0x0 0x0", None),
        ("what\nis\nthis", None),
    ],
)
def test_an_arc_card_under_i915_is_as_large_as_its_mapped_region_if_that_is_all_of_it(
    tmp_path: Path, resource: str, total: int | None
) -> None:
    add_card(tmp_path, 0, INTEL, "i915", {"device": "0x56a0", "resource": resource})
    seen = graphics(RAM, FREE, tmp_path)
    assert [gpu.total_bytes for gpu in seen.gpus] == ([total] if total else [])
    assert [note.startswith("Intel card 56a0") for note in seen.notes] == ([] if total else [True])


def test_graphics_in_an_intel_processor_share_the_ram(tmp_path: Path) -> None:
    add_card(tmp_path, 0, INTEL, "i915", {"device": "0x4680"}, [Slot("0000:00:02.0")])
    write(tmp_path, {"usr/share/misc/pci.ids": PCI_IDS})
    (gpu,) = graphics(RAM, FREE, tmp_path).gpus
    assert gpu.name == "AlderLake-S GT1"
    assert (gpu.total_bytes, gpu.free_bytes) == (RAM, FREE)
    assert (gpu.is_integrated, gpu.shares_ram, gpu.link) == (True, True, None)


def test_two_unequal_cards_each_have_their_own_facts_in_the_order_of_their_slots(
    tmp_path: Path,
) -> None:
    small = [Slot("0000:00:01.1"), Slot("0000:0a:00.0", width="4")]
    add_metrics(add_card(tmp_path, 0, AMD, "amdgpu", amd_files(8 * GIB, 0), small), 1)
    large = [Slot("0000:00:01.0"), Slot("0000:03:00.0")]
    add_metrics(add_card(tmp_path, 1, AMD, "amdgpu", amd_files(24 * GIB, GIB), large), 1)
    first, second = graphics(RAM, FREE, tmp_path).gpus
    assert (first.total_bytes, first.link) == (24 * GIB, Link(4, 16))
    assert (second.total_bytes, second.link) == (8 * GIB, Link(4, 4))


# What stands between a card and the processor, outermost first, the card itself last.
PATHS: list[tuple[list[Slot], Link | None]] = [
    ([Slot("0000:03:00.0")], Link(4, 16)),
    # A card with bridges of its own, whose inner links are always wide, in an old slot.
    (
        [
            Slot("0000:00:01.0", speed="8.0 GT/s PCIe", width="8"),
            Slot("0000:01:00.0", width="8"),
            Slot("0000:02:00.0"),
            Slot("0000:03:00.0"),
        ],
        Link(3, 8),
    ),
    # A fast slot, and a card that is not.
    ([Slot("0000:00:01.0", speed="32.0 GT/s PCIe"), Slot("0000:03:00.0")], Link(4, 16)),
    # One end does not say, or says nonsense.
    ([Slot("0000:00:01.0", "Unknown", "0"), Slot("0000:03:00.0", width="8")], Link(4, 8)),
    ([Slot("0000:00:01.0", "Unknown", "255"), Slot("0000:03:00.0", "Unknown", "63")], None),
]


@pytest.mark.parametrize(("path", "expected"), PATHS)
def test_a_cards_link_is_the_narrowest_hop_on_its_way_and_not_the_speed_at_rest(
    tmp_path: Path, path: list[Slot], expected: Link | None
) -> None:
    add_metrics(add_card(tmp_path, 0, AMD, "amdgpu", amd_files(8 * GIB, 0), path), 1)
    (gpu,) = graphics(RAM, FREE, tmp_path).gpus
    assert gpu.link == expected


def test_a_card_that_rests_with_fewer_lanes_counts_with_those_it_works_with(
    tmp_path: Path,
) -> None:
    path = [Slot("0000:00:01.0", width="1", max_width="8"), Slot(CARD_BUS_ID, width="1")]
    folder = add_card(tmp_path, 0, AMD, "amdgpu", amd_files(8 * GIB, 0), path)
    add_metrics(folder, 1)
    assert graphics(RAM, FREE, tmp_path).gpus[0].link == Link(4, 1)
    write(folder, {"pp_dpm_pcie": "0: 2.5GT/s, x1 100Mhz *\n1: 16.0GT/s, x16 619Mhz"})
    assert graphics(RAM, FREE, tmp_path).gpus[0].link == Link(4, 8)


@pytest.mark.parametrize(
    ("total", "used", "free"),
    [
        ("8589934592", "9999999999999", 0),
        ("8589934592", "-5", 8 * GIB),
        ("8589934592", "", 8 * GIB),
        ("0", "0", None),
        ("", "0", None),
        ("lots", "0", None),
        ("99999999999999999999", "0", None),
    ],
)
def test_absurd_memory_of_a_card_is_nothing_free_or_a_note(
    tmp_path: Path, total: str, used: str, free: int | None
) -> None:
    files = amd_files(8 * GIB, 0) | {"mem_info_vram_total": total, "mem_info_vram_used": used}
    add_card(tmp_path, 0, AMD, "amdgpu", files)
    seen = graphics(RAM, FREE, tmp_path)
    if free is None:
        assert seen.gpus == ()
        assert seen.notes == (
            f"AMD card 7550 at {CARD_BUS_ID}: its driver amdgpu does not state its memory",
        )
    else:
        assert [gpu.free_bytes for gpu in seen.gpus] == [free]


def test_a_card_without_its_driver_is_noted_and_other_displays_are_not(tmp_path: Path) -> None:
    folder = add_card(tmp_path, 0, NVIDIA, "nouveau", {"device": "0x2704"})
    (folder / "driver").unlink()
    add_card(tmp_path, 1, "0x1234", "bochs-drm", {"device": "0x1111"}, [Slot("0000:00:03.0")])
    entry = tmp_path / "sys/class/drm/card2"
    entry.mkdir()
    (entry / "device").symlink_to(tmp_path / "sys/devices/platform/display")
    assert graphics(RAM, FREE, tmp_path).notes == (
        f"NVIDIA card 2704 at {CARD_BUS_ID}: no driver states its memory",
    )


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(content=st.binary(max_size=40), name=st.sampled_from(sorted(amd_files(1, 1))))
def test_whatever_a_file_of_a_card_holds_it_is_a_card_within_bounds_or_none(
    tmp_path_factory: pytest.TempPathFactory, content: bytes, name: str
) -> None:
    root = tmp_path_factory.mktemp("root")
    folder = add_card(root, 0, AMD, "amdgpu", amd_files(8 * GIB, GIB))
    for odd in (name, "max_link_speed", "current_link_width", "gpu_metrics", "pp_dpm_pcie"):
        (folder / odd).write_bytes(content)
    for gpu in graphics(RAM, FREE, root).gpus:
        assert 0 <= gpu.free_bytes <= gpu.total_bytes <= 1 << 46


def test_users_are_counted_once_per_client_and_by_the_best_figure_that_a_driver_gives(
    tmp_path: Path,
) -> None:
    amd = {"drm-driver": "amdgpu", "drm-pdev": CARD_BUS_ID, "drm-client-id": "7"}
    add_user(tmp_path, 100, "Xorg", amd | {"drm-memory-vram": "204800 KiB"})
    add_user(tmp_path, 100, "Xorg", amd | {"drm-memory-vram": "204800 KiB"}, fd=6)
    both = {"drm-client-id": "9", "drm-total-vram": "900 MiB", "drm-resident-vram": "300 MiB"}
    add_user(tmp_path, 200, "firefox", amd | both)
    other = {"drm-client-id": "1", "drm-pdev": "0000:0a:00.0", "drm-resident-local0": "5242880"}
    add_user(tmp_path, 300, "game", amd | other)
    add_user(tmp_path, 400, "cpu-only", amd | {"drm-memory-gtt": "99 MiB"})
    add_user(tmp_path, 500, "odd", amd | {"drm-memory-vram": "many KiB"})
    write(tmp_path, {"proc/600/comm": "closed", "proc/uptime": "1"})
    assert users(tmp_path) == {
        CARD_BUS_ID: (GpuUser("firefox", 300 * MIB, 200), GpuUser("Xorg", 200 * MIB, 100)),
        "0000:0a:00.0": (GpuUser("game", 5 * MIB, 300),),
    }
