"""NVIDIA cards through a stand-in for the driver's library."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.core.machine import GpuUser, Link
from hotset.core.units import GIB, MIB
from hotset.probe.graphics import graphics
from hotset.probe.nvidia import nvidia_gpus
from nvmlkit import FakeCard, FakeNvml
from sysfskit import NVIDIA, Slot, add_card, write

RAM, FREE = 128 * GIB, 100 * GIB


def test_a_card_that_answers_everything(tmp_path: Path) -> None:
    nvml = FakeNvml([FakeCard()])
    (gpu,), reason = nvidia_gpus(RAM, FREE, tmp_path, nvml)
    assert reason == ""
    assert gpu.name == "NVIDIA GeForce RTX 3060"
    assert (gpu.total_bytes, gpu.free_bytes) == (12 * GIB, 11 * GIB)
    assert (gpu.vendor, gpu.is_integrated, gpu.shares_ram) == ("nvidia", False, False)
    assert gpu.link == Link(4, 16)
    assert gpu.bandwidth_bytes_s == 360 * 10**9
    assert gpu.bus_id == "0000:01:00.0"
    assert nvml.num_open == 0


@pytest.mark.parametrize(
    ("name", "mhz", "bits", "published_gb_s"),
    [
        ("NVIDIA GeForce RTX 3060", 7501, 192, 360),
        ("NVIDIA GeForce GTX 1080", 5005, 256, 320),
        ("NVIDIA GeForce RTX 4090", 10501, 384, 1008),
        ("NVIDIA A100-SXM4-40GB", 1215, 5120, 1555),
    ],
)
def test_clock_and_bus_give_the_published_bandwidth_of_cards_that_no_table_knows(
    tmp_path: Path, name: str, mhz: int, bits: int, published_gb_s: int
) -> None:
    unknown = FakeCard(name="NVIDIA Something New", clock_mhz=mhz, bus_bits=bits)
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([unknown]))
    assert gpu.bandwidth_bytes_s == pytest.approx(published_gb_s * 1e9, rel=0.01), name


@pytest.mark.parametrize(
    "card",
    [FakeCard(name="NVIDIA New", clock_mhz=None), FakeCard(name="NVIDIA New", bus_bits=None)],
)
def test_without_clock_or_bus_the_bandwidth_of_an_unknown_card_is_unknown(
    tmp_path: Path, card: FakeCard
) -> None:
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([card]))
    assert gpu.bandwidth_bytes_s is None


@pytest.mark.parametrize(
    ("card", "expected"),
    [
        (FakeCard(lanes_now=8), Link(4, 8)),
        (FakeCard(lanes_now=None), Link(4, 16)),
        (FakeCard(lanes_now=None, lanes=None), None),
        (FakeCard(lanes_now=255), None),
        (FakeCard(generation=None), None),
        (FakeCard(generation=99), None),
    ],
)
def test_the_lanes_in_use_count(tmp_path: Path, card: FakeCard, expected: Link | None) -> None:
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([card]))
    assert gpu.link == expected


def test_a_device_without_memory_of_its_own_uses_the_ram(tmp_path: Path) -> None:
    card = FakeCard(name="NVIDIA GB10", total=None)
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([card]))
    assert (gpu.total_bytes, gpu.free_bytes) == (RAM, FREE)
    assert (gpu.shares_ram, gpu.is_integrated, gpu.link) == (True, True, None)


def test_processes_that_draw_and_compute_are_counted_once_and_only_if_asked(
    tmp_path: Path,
) -> None:
    write(tmp_path, {"proc/10/comm": "Xorg", "proc/20/comm": "blender"})
    card = FakeCard(drawing=[(10, 300 * MIB), (20, 2 * GIB), (30, None)], computing=[(20, 2 * GIB)])
    nvml = FakeNvml([card])
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, nvml, with_users=True)
    assert gpu.used_by == (
        GpuUser("blender", 2 * GIB, 20),
        GpuUser("Xorg", 300 * MIB, 10),
        GpuUser("?", None, 30),
    )
    (gpu,), _ = nvidia_gpus(RAM, FREE, tmp_path, nvml)
    assert gpu.used_by == ()


def test_a_card_that_answers_nothing_but_its_memory_is_still_a_card(tmp_path: Path) -> None:
    silent = FakeCard(
        name=None,
        bus_id=None,
        generation=None,
        lanes=None,
        lanes_now=None,
        clock_mhz=None,
        drawing=None,
        computing=None,
        free=99 * GIB,
    )
    (gpu,), reason = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([silent]), with_users=True)
    assert reason == ""
    assert (gpu.name, gpu.bus_id, gpu.used_by) == ("NVIDIA card", "", ())
    assert gpu.free_bytes == gpu.total_bytes


def test_two_unequal_cards_and_a_lost_one(tmp_path: Path) -> None:
    old = FakeCard(name=b"Tesla P40", total=24 * GIB, free=24 * GIB, bus_id=b"00000000:0A:00.0")
    found, _ = nvidia_gpus(RAM, FREE, tmp_path, FakeNvml([FakeCard(), None, old]))
    assert [gpu.name for gpu in found] == ["NVIDIA GeForce RTX 3060", "Tesla P40"]
    assert [gpu.bus_id for gpu in found] == ["0000:01:00.0", "0000:0a:00.0"]


def test_a_driver_that_does_not_start_is_noted_with_its_reason(tmp_path: Path) -> None:
    folder = [Slot("0000:01:00.0")]
    add_card(tmp_path, 0, NVIDIA, "nvidia", {"device": "0x2504"}, folder)
    seen = graphics(RAM, FREE, tmp_path, FakeNvml([], starts=False))
    assert seen.gpus == ()
    assert seen.notes[0] == "NVIDIA driver: Driver/library version mismatch"
    assert seen.notes[1].startswith("NVIDIA card 2504 at 0000:01:00.0")


def test_a_card_that_the_driver_knows_is_not_noted_as_silent(tmp_path: Path) -> None:
    add_card(tmp_path, 0, NVIDIA, "nvidia", {"device": "0x2504"}, [Slot("0000:01:00.0")])
    seen = graphics(RAM, FREE, tmp_path, FakeNvml([FakeCard()]))
    assert len(seen.gpus) == 1
    assert seen.notes == ()


def test_the_library_is_asked_only_where_a_driver_has_left_its_mark(tmp_path: Path) -> None:
    assert nvidia_gpus(RAM, FREE, tmp_path) == ([], "")
    write(tmp_path, {"proc/driver/nvidia/version": "NVRM version: ..."})
    gpus, reason = nvidia_gpus(RAM, FREE, tmp_path)
    # With the mark it is asked; here, without a driver, it says why it cannot answer.
    assert bool(gpus) != bool(reason)
