"""The engine's devices and the drivers' cards become one list."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.devices import Device, merge_devices
from hotset.core.machine import Backend, Gpu, GpuUser, Link
from hotset.core.units import GIB, MIB

RX = Gpu(
    name="AMD Radeon RX 9070 XT",
    total_bytes=16 * GIB,
    free_bytes=14 * GIB,
    vendor="amd",
    bandwidth_bytes_s=640 * 10**9,
    link=Link(4, 16),
    bus_id="0000:03:00.0",
    used_by=(GpuUser("kwin_wayland", GIB, 812),),
)
RTX = Gpu("NVIDIA GeForce RTX 3060", 12 * GIB, 12 * GIB, "nvidia", bus_id="0000:01:00.0")
APU = Gpu("AMD Radeon Graphics", 17 * GIB, 15 * GIB, "amd", is_integrated=True, shares_ram=True)
RX_LISTED = Device("Vulkan0", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16 * GIB - 50 * MIB)


def test_a_listed_card_keeps_what_its_driver_knows_and_gets_the_engines_name_and_total() -> None:
    assert merge_devices([RX], [RX_LISTED]) == (
        replace(
            RX,
            total_bytes=16 * GIB - 50 * MIB,
            free_bytes=14 * GIB - 50 * MIB,
            backend=Backend.VULKAN,
            engine_name="Vulkan0",
        ),
    )


@pytest.mark.parametrize(("free", "expected"), [(13 * GIB, 13 * GIB), (15 * GIB, 14 * GIB)])
def test_of_what_is_free_the_smaller_figure_counts(free: int, expected: int) -> None:
    (gpu,) = merge_devices([RX], [replace(RX_LISTED, total_bytes=16 * GIB, free_bytes=free)])
    assert gpu.free_bytes == expected


def test_what_the_engine_does_not_list_is_not_there_and_the_processor_is_no_device() -> None:
    others = [Device(name, "x", GIB) for name in ("CPU", "BLAS", "HOTSET", "RPC[10.0.0.1:50052]")]
    assert merge_devices([RX, RTX], []) == ()
    assert merge_devices([RX, RTX], others) == ()


@pytest.mark.parametrize("listed_first", [True, False])
def test_two_unequal_cards_are_told_apart_whatever_the_order(listed_first: bool) -> None:
    listed = [RX_LISTED, Device("Vulkan1", "NVIDIA GeForce RTX 3060", 12 * GIB)]
    if not listed_first:
        listed.reverse()
    merged = merge_devices([RTX, RX], listed)
    assert [gpu.engine_name for gpu in merged] == [device.name for device in listed]
    by_name = {gpu.engine_name: gpu.bus_id for gpu in merged}
    assert by_name == {"Vulkan0": RX.bus_id, "Vulkan1": RTX.bus_id}


def test_two_equal_cards_are_two() -> None:
    other = replace(RTX, bus_id="0000:02:00.0", free_bytes=5 * GIB)
    listed = [Device(f"CUDA{n}", "NVIDIA GeForce RTX 3060", 12 * GIB) for n in range(2)]
    merged = merge_devices([RTX, other], listed)
    assert [gpu.bus_id for gpu in merged] == [RTX.bus_id, other.bus_id]


@pytest.mark.parametrize("probed", [[RTX, RX], []])
def test_a_card_that_two_backends_list_is_taken_once(probed: list[Gpu]) -> None:
    listed = [
        Device("CUDA0", "NVIDIA GeForce RTX 3060", 12 * GIB),
        Device("Vulkan0", "NVIDIA GeForce RTX 3060", 12 * GIB + 300 * MIB),
        replace(RX_LISTED, name="Vulkan1"),
    ]
    assert [gpu.engine_name for gpu in merge_devices(probed, listed)] == ["CUDA0", "Vulkan1"]


def test_graphics_in_the_processor_are_not_taken_for_the_card_beside_it() -> None:
    listed = [
        Device("ROCm0", "AMD Radeon RX 9070 XT", 16 * GIB),
        RX_LISTED,
        Device("Vulkan1", "AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", 12 * GIB),
    ]
    card, graphics = merge_devices([APU, RX], listed)
    assert (card.engine_name, card.link, card.shares_ram) == ("ROCm0", RX.link, False)
    assert (graphics.engine_name, graphics.shares_ram) == ("Vulkan1", True)
    assert graphics.total_bytes == 12 * GIB


def test_graphics_in_a_processor_go_by_many_names_but_never_by_that_of_a_card() -> None:
    chip = Gpu("AlderLake-S GT1", 32 * GIB, 20 * GIB, "intel", True, True, bus_id="0000:00:02.0")
    listed = [
        Device("Vulkan0", "Intel(R) Arc(tm) A770 Graphics (DG2)", 16 * GIB),
        Device("Vulkan1", "Intel(R) UHD Graphics 770 (ADL-S GT1)", 24 * GIB),
    ]
    card, graphics = merge_devices([chip], listed)
    assert (card.bus_id, card.shares_ram) == ("", False)
    assert (graphics.bus_id, graphics.shares_ram) == (chip.bus_id, True)
    unknown = Device("Vulkan0", "Intel(R) Something New", 24 * GIB)
    assert merge_devices([chip], [unknown])[0].bus_id == ""


def test_a_card_whose_driver_has_no_name_for_it_is_found_by_its_size() -> None:
    nameless = replace(RX, name="AMD graphics 7550", bandwidth_bytes_s=None)
    (gpu,) = merge_devices([RTX, nameless], [RX_LISTED])
    assert gpu.bus_id == RX.bus_id
    assert gpu.bandwidth_bytes_s == 640 * 10**9


def test_a_card_that_no_driver_knows_is_what_its_name_says() -> None:
    (gpu,) = merge_devices([RTX], [replace(RX_LISTED, free_bytes=15 * GIB)])
    assert (gpu.vendor, gpu.bandwidth_bytes_s, gpu.bus_id) == ("amd", 640 * 10**9, "")
    assert gpu.free_bytes == 15 * GIB
    assert not gpu.shares_ram


@pytest.mark.parametrize(
    "description", ["AMD Radeon 780M (RADV PHOENIX)", "llvmpipe (LLVM 15.0.6, 256 bits)"]
)
def test_graphics_in_a_processor_and_software_share_the_ram(description: str) -> None:
    (gpu,) = merge_devices([], [Device("Vulkan0", description, 8 * GIB)])
    assert gpu.shares_ram
    assert gpu.is_integrated


def test_a_device_of_unknown_size_takes_that_of_its_driver_or_is_left_out() -> None:
    silent = Device("SYCL0", "AMD Radeon RX 9070 XT", 0)
    similar = Device("SYCL0", "AMD Radeon RX 9070 XT 16 GB", 0)
    assert [gpu.bus_id for gpu in merge_devices([RX], [similar])] == [RX.bus_id]
    assert [gpu.total_bytes for gpu in merge_devices([RX], [silent])] == [16 * GIB]
    assert merge_devices([], [silent]) == ()


devices = st.builds(
    Device,
    st.sampled_from(["CUDA0", "CUDA1", "Vulkan0", "Vulkan1", "MTL0", "CPU", ""]),
    st.sampled_from([RX.name, RTX.name, APU.name, "llvmpipe", ""]),
    st.integers(0, 32 * GIB),
    st.none() | st.integers(0, 64 * GIB),
)


@given(st.lists(st.sampled_from([RX, RTX, APU]), max_size=3), st.lists(devices, max_size=5))
def test_nothing_is_counted_twice_nor_more_free_than_there_is(
    probed: list[Gpu], listed: list[Device]
) -> None:
    merged = merge_devices(probed, listed)
    assert len(merged) <= len(listed)
    for gpu in merged:
        assert 0 <= gpu.free_bytes <= gpu.total_bytes
        assert gpu.backend is not None
    for card in {gpu.bus_id for gpu in merged if gpu.bus_id}:
        used = sum(gpu.bus_id == card for gpu in merged)
        assert used <= sum(gpu.bus_id == card for gpu in probed)
