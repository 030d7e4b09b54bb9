"""A machine in the words of the command line."""

from __future__ import annotations

import contextlib
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.core.machine import Backend, Disk, DiskKind, Gpu, Link, Machine
from hotset.core.machine_text import (
    MachineWords,
    described_machine,
    numbered,
    read_count,
    read_link,
    read_rate,
    read_size,
)
from hotset.core.units import GIB, MIB

BASE = Machine(
    ram_total_bytes=32 * GIB,
    ram_available_bytes=24 * GIB,
    num_cores=8,
    num_threads=16,
    devices=(
        Gpu("RTX 3060", 12 * GIB, 11 * GIB, backend=Backend.CUDA, engine_name="CUDA0"),
        Gpu("Radeon 780M", 16 * GIB, 16 * GIB, is_integrated=True, shares_ram=True),
    ),
    disk=Disk(DiskKind.NVME, 3 * 10**9, 2 * 10**9),
    ram_bandwidth_bytes_s=60 * 10**9,
    num_performance_cores=4,
    lockable_bytes=32 * GIB,
)


def test_the_issue_of_one_card_that_drives_the_desktop_is_read_whole() -> None:
    machine = described_machine(
        MachineWords(
            gpu=("16GiB,RX 9070 XT",),
            gpu_used=("1.5GiB",),
            pcie=("4x16",),
            ram="32GiB",
            ram_used="7GiB",
            ram_bandwidth="60GB/s",
            disk="3GB/s",
            cores=8,
            threads=16,
        )
    )
    assert machine == Machine(
        ram_total_bytes=32 * GIB,
        ram_available_bytes=25 * GIB,
        num_cores=8,
        num_threads=16,
        devices=(
            Gpu(
                name="RX 9070 XT",
                total_bytes=16 * GIB,
                free_bytes=16 * GIB - 1536 * MIB,
                vendor="amd",
                bandwidth_bytes_s=640 * 10**9,
                link=Link(4, 16),
                backend=Backend.VULKAN,
                engine_name="Vulkan0",
            ),
        ),
        disk=Disk(read_bytes_s=3 * 10**9),
        ram_bandwidth_bytes_s=60 * 10**9,
    )


def test_saying_nothing_leaves_the_base_as_it_is() -> None:
    assert described_machine(MachineWords(), BASE) == BASE


def test_what_is_said_replaces_only_itself() -> None:
    said = described_machine(MachineWords(disk="5GB/s", ram_bandwidth="80GB/s"), BASE)
    assert said == replace(
        BASE, disk=Disk(DiskKind.NVME, 5 * 10**9), ram_bandwidth_bytes_s=80 * 10**9
    )


def test_more_ram_in_this_machine_is_all_free_and_less_keeps_what_is_used() -> None:
    for ram, total, available in (("64GiB", 64, 56), ("16GiB", 16, 8), ("4GiB", 4, 0)):
        machine = described_machine(MachineWords(ram=ram), BASE)
        assert machine.ram_total_bytes == total * GIB
        assert machine.ram_available_bytes == available * GIB


def test_a_limit_of_locked_memory_stays_and_no_limit_stays_none() -> None:
    assert described_machine(MachineWords(ram="64GiB"), BASE).lockable_bytes == 64 * GIB
    limited = replace(BASE, lockable_bytes=8 * MIB)
    assert described_machine(MachineWords(ram="64GiB"), limited).lockable_bytes == 8 * MIB
    unknown = replace(BASE, lockable_bytes=None)
    assert described_machine(MachineWords(ram="64GiB"), unknown).lockable_bytes is None


def test_a_device_that_shares_ram_shrinks_with_it() -> None:
    card, shared = described_machine(MachineWords(ram="8GiB"), BASE).devices
    assert card == BASE.devices[0]
    assert (shared.total_bytes, shared.free_bytes) == (8 * GIB, 8 * GIB)


def test_no_card_can_be_said() -> None:
    assert described_machine(MachineWords(gpu=("none",)), BASE).devices == ()


def test_the_nth_value_belongs_to_the_nth_card() -> None:
    words = MachineWords(
        gpu=("24GiB,RTX 3090", "12GiB,RTX 3060"),
        gpu_used=("1GiB", "0"),
        pcie=("4x16", "3x4"),
        gpu_bandwidth=("900GB/s",),
        ram="64GiB",
    )
    first, second = described_machine(words).devices
    assert (first.used_bytes, second.used_bytes) == (GIB, 0)
    assert (first.link, second.link) == (Link(4, 16), Link(3, 4))
    assert (first.bandwidth_bytes_s, second.bandwidth_bytes_s) == (900 * 10**9, 360 * 10**9)
    assert (first.engine_name, second.engine_name) == ("CUDA0", "CUDA1")


def test_values_without_cards_belong_to_the_bases() -> None:
    first, second = described_machine(MachineWords(gpu_used=("3GiB",)), BASE).devices
    assert first.free_bytes == 9 * GIB
    assert second == BASE.devices[1]


@pytest.mark.parametrize(
    ("text", "name", "shares_ram"),
    [
        ("8GiB", "graphics card", False),
        ("8GiB,shared", "graphics card", True),
        ("8GiB, Radeon 780M", "Radeon 780M", True),
        ("8GiB, Some Card, shared", "Some Card", True),
        ("8GiB,RTX 4060", "RTX 4060", False),
    ],
)
def test_a_card_shares_ram_if_that_is_said_or_its_name_is_known_for_it(
    text: str, name: str, shares_ram: bool
) -> None:
    (card,) = described_machine(MachineWords(gpu=(text,), ram="32GiB")).devices
    assert (card.name, card.shares_ram, card.is_integrated) == (name, shares_ram, shares_ram)


def test_a_machine_of_which_only_the_ram_is_said_uses_some_of_it_itself() -> None:
    small, large = (described_machine(MachineWords(ram=ram)) for ram in ("8GiB", "256GiB"))
    assert small.ram_available_bytes == 7 * GIB
    assert large.ram_available_bytes == 252 * GIB
    assert small.num_cores == large.num_cores == large.num_threads


@pytest.mark.parametrize(
    ("cores", "threads", "expected"),
    [(4, None, (4, 8)), (None, 4, (4, 4)), (None, 32, (8, 32)), (6, 6, (6, 6))],
)
def test_threads_follow_the_cores_as_on_the_base_unless_said(
    cores: int | None, threads: int | None, expected: tuple[int, int]
) -> None:
    machine = described_machine(MachineWords(cores=cores, threads=threads), BASE)
    assert (machine.num_cores, machine.num_threads) == expected
    assert machine.num_performance_cores is None


def test_devices_of_two_backends_are_counted_apart_and_given_names_stay() -> None:
    def card(backend: Backend | None, engine_name: str = "") -> Gpu:
        return Gpu("card", GIB, GIB, backend=backend, engine_name=engine_name)

    devices = numbered(
        [
            card(Backend.VULKAN),
            card(Backend.CUDA),
            card(None),
            card(Backend.VULKAN, "Vulkan0"),
            card(Backend.VULKAN),
        ]
    )
    assert [gpu.engine_name for gpu in devices] == ["Vulkan1", "CUDA0", "", "Vulkan0", "Vulkan2"]


CARD = MachineWords(gpu=("16GiB",), ram="32GiB")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (MachineWords(), "--ram: how much RAM the machine has is missing"),
        (replace(CARD, ram="0GiB"), "--ram: '0GiB' is nothing"),
        (replace(CARD, ram="32"), "--ram: '32' has no unit; write it like 32GiB"),
        (replace(CARD, ram="-32GiB"), "--ram: '-32GiB' is negative"),
        (replace(CARD, ram="32 gigs"), "--ram: '32 gigs' is no size"),
        (replace(CARD, ram="32000TiB"), "--ram: '32000TiB' is more than any computer has"),
        (replace(CARD, ram="9" * 400 + "GiB"), "is no size"),
        (replace(CARD, ram_used="33GiB"), "--ram-used: 33.0 GiB cannot be in use of 32.0 GiB"),
        (replace(CARD, gpu_used=("17GiB",)), "--gpu-used: 17.0 GiB cannot be in use of 16.0 GiB"),
        (replace(CARD, gpu_used=("-1GiB",)), "--gpu-used: '-1GiB' is negative"),
        (replace(CARD, gpu_used=("1",)), "--gpu-used: '1' has no unit"),
        (
            replace(CARD, gpu_used=("1GiB", "2GiB")),
            "--gpu-used: given 2 times, once per card; there is one",
        ),
        (
            replace(CARD, gpu=("none",), pcie=("4x16",)),
            "--pcie: given 1 times, once per card; there is none",
        ),
        (replace(CARD, gpu=("16GiB", "none")), "--gpu: 'none' beside other cards"),
        (replace(CARD, gpu=("8GiB,780M,shred",)), "--gpu: 'shred' is no property of a card"),
        (
            replace(CARD, gpu=("8GiB", "8GiB"), pcie=("4x16",) * 3),
            "--pcie: given 3 times, once per card; there are 2",
        ),
        (replace(CARD, gpu=("big",)), "--gpu: 'big' is no size"),
        (replace(CARD, gpu=("0GiB",)), "--gpu: '0GiB' is nothing"),
        (replace(CARD, gpu=("33GiB,shared",)), "--gpu: 33.0 GiB shared with 32.0 GiB of RAM"),
        (replace(CARD, pcie=("16",)), "--pcie: '16' is no slot"),
        (replace(CARD, pcie=("9x16",)), "--pcie: '9x16': there is no PCIe 9.0"),
        (replace(CARD, pcie=("4x3",)), "--pcie: '4x3': a slot has 1, 2, 4, 8 or 16 lanes, not 3"),
        (replace(CARD, ram_bandwidth="60"), "--ram-bw: '60' is no rate; write it like 60GB/s"),
        (replace(CARD, ram_bandwidth="60GB"), "--ram-bw: '60GB' is no rate"),
        (replace(CARD, gpu_bandwidth=("0GB/s",)), "--gpu-bw: '0GB/s' is nothing"),
        (replace(CARD, disk="-3GB/s"), "--disk: '-3GB/s' is negative"),
        (replace(CARD, disk="5000TB/s"), "--disk: '5000TB/s' is more than any computer has"),
        (replace(CARD, cores=0), "--cores: 0 is out of range"),
        (replace(CARD, threads=-1), "--threads: -1 is out of range"),
        (replace(CARD, cores=8, threads=4), "--threads: 4 for 8 cores"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line(words: MachineWords, message: str) -> None:
    with pytest.raises(ConfigProblem) as problem:
        described_machine(words)
    assert message in problem.value.message


@pytest.mark.parametrize(
    ("text", "rate"),
    [
        ("60GB/s", 60 * 10**9),
        ("3.1 GB/s", 3_100_000_000),
        ("500MB/s", 500 * 10**6),
        ("2GiB/s", 2 * GIB),
        ("0.5tb/s", 5 * 10**11),
        ("7 kb / sec", 7000),
    ],
)
def test_rates_are_decimal_unless_written_binary(text: str, rate: int) -> None:
    assert read_rate(text, "x") == rate


@pytest.mark.parametrize("text", ["4x16", "4.0x16", "4 x 16", "PCIe 4.0 x16", "gen4x16", "4X16"])
def test_a_slot_may_be_written_in_the_usual_ways(text: str) -> None:
    assert read_link(text, "x") == Link(4, 16)


@given(st.text(max_size=12))
def test_any_text_is_a_value_in_range_or_one_clear_refusal(text: str) -> None:
    for read in (read_size, read_rate):
        with contextlib.suppress(ConfigProblem):  # anything else would be a crash
            assert 0 < read(text, "the option") <= 1 << 50


@given(st.integers(1, 1 << 20), st.sampled_from(["KiB", "MiB", "GiB"]))
def test_a_size_in_whole_units_is_exact(number: int, unit: str) -> None:
    factor = {"KiB": 1 << 10, "MiB": 1 << 20, "GiB": 1 << 30}[unit]
    assert read_size(f"{number}{unit}", "x") == number * factor


def test_zero_is_a_size_only_where_nothing_can_be_meant() -> None:
    assert read_size("0", "x", may_be_zero=True) == read_size("0GiB", "x", may_be_zero=True) == 0
    with pytest.raises(ConfigProblem, match="no unit"):
        read_size("0", "x")
    with pytest.raises(ConfigProblem, match="no unit"):
        read_size("1", "x", may_be_zero=True)
    assert read_count(4096, "x") == 4096
