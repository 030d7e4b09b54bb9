"""A machine as a mapping and back."""

from __future__ import annotations

import contextlib
import io
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from hotset.core.errors import ConfigProblem
from hotset.core.machine import Backend, Disk, DiskKind, Gpu, GpuUser, Link, Machine
from hotset.core.machine_file import machine_from_mapping, machine_to_mapping, machine_yaml
from hotset.core.machine_text import MachineWords, described_machine, numbered
from hotset.core.units import GIB

sizes = st.integers(1, 1 << 45)
rates = st.integers(1, 10**13)
maybe_rates = st.none() | rates
names = st.text(st.characters(codec="utf-8", exclude_categories=["Cc"]), min_size=1, max_size=20)


@st.composite
def gpus(draw: st.DrawFn, ram: int) -> Gpu:
    shares_ram = draw(st.booleans())
    total = draw(st.integers(1, ram)) if shares_ram else draw(sizes)
    return Gpu(
        name=draw(names),
        total_bytes=total,
        free_bytes=draw(st.integers(0, total)),
        vendor=draw(st.sampled_from(["", "nvidia", "amd"])),
        is_integrated=draw(st.booleans()),
        shares_ram=shares_ram,
        bandwidth_bytes_s=draw(rates),
        link=draw(st.none() | st.builds(Link, st.integers(1, 6), st.just(8))),
        copy_bytes_s=draw(maybe_rates),
        backend=draw(st.none() | st.sampled_from(Backend)),
        bus_id=draw(st.sampled_from(["", "0000:03:00.0"])),
    )


@st.composite
def machines(draw: st.DrawFn) -> Machine:
    ram = draw(sizes)
    cores = draw(st.integers(1, 64))
    swap = draw(st.none() | st.integers(0, 1 << 40))
    return Machine(
        ram_total_bytes=ram,
        ram_available_bytes=draw(st.integers(0, ram)),
        num_cores=cores,
        num_threads=draw(st.integers(cores, 128)),
        devices=numbered(draw(st.lists(gpus(ram), max_size=3))),
        disk=draw(st.none() | st.builds(Disk, st.sampled_from(DiskKind), maybe_rates, maybe_rates)),
        ram_bandwidth_bytes_s=draw(maybe_rates),
        num_performance_cores=draw(st.none() | st.integers(1, cores)),
        swap_total_bytes=swap,
        swap_free_bytes=None if swap is None else draw(st.none() | st.integers(0, swap)),
        lockable_bytes=draw(st.none() | st.integers(0, 1 << 45)),
        cpu_name=draw(st.just("") | names),
        cpu_features=draw(st.frozensets(st.sampled_from(["avx2", "fma", "neon"]))),
    )


@given(machines())
def test_a_machine_comes_back_from_its_mapping_to_the_byte(machine: Machine) -> None:
    assert machine_from_mapping(machine_to_mapping(machine)) == machine


@settings(max_examples=40)
@given(machines())
def test_its_yaml_says_what_the_mapping_says(machine: Machine) -> None:
    read = YAML(typ="safe", pure=True).load(io.StringIO(machine_yaml(machine)))
    assert read == machine_to_mapping(machine)


def test_who_uses_a_card_is_not_written_down() -> None:
    card = Gpu("card", 8 * GIB, GIB, used_by=(GpuUser("private-editor", 7 * GIB, 4711),))
    text = machine_yaml(Machine(32 * GIB, 16 * GIB, 8, 8, devices=(card,)))
    assert "private-editor" not in text
    assert "4711" not in text
    assert '"7GiB"' in text


def test_a_short_file_means_what_the_same_words_on_the_command_line_mean() -> None:
    data = {
        "ram": "32GiB",
        "ram_used": "7GiB",
        "cores": 8,
        "gpus": [
            {"name": "RX 9070 XT", "memory": "16GiB", "used": "1.5GiB", "pcie": "4x16"},
            {"memory": "8GiB", "shared": True},
        ],
    }
    words = MachineWords(
        ram="32GiB",
        ram_used="7GiB",
        cores=8,
        gpu=("16GiB,RX 9070 XT", "8GiB,shared"),
        gpu_used=("1.5GiB",),
        pcie=("4x16",),
    )
    assert machine_from_mapping(data) == described_machine(words)


def test_what_a_known_name_tells_need_not_be_said() -> None:
    data = {"ram": "32GiB", "cores": 8, "gpus": [{"name": "Radeon 780M", "memory": "16GiB"}]}
    (device,) = machine_from_mapping(data).devices
    assert (device.shares_ram, device.is_integrated) == (True, True)
    assert device.bandwidth_bytes_s is None
    assert device.vendor == "amd"


def test_a_card_without_an_engine_stays_without_one() -> None:
    data = {"ram": "32GiB", "cores": 8, "gpus": [{"memory": "16GiB", "backend": "none"}]}
    (device,) = machine_from_mapping(data).devices
    assert (device.backend, device.engine_name) == (None, "")


def test_threads_stand_for_cores_where_only_they_are_known() -> None:
    machine = machine_from_mapping({"ram": "32GiB", "threads": 12})
    assert (machine.num_cores, machine.num_threads) == (12, 12)


OK: dict[str, Any] = {"ram": "32GiB", "cores": 8}


def card(**words: Any) -> dict[str, Any]:
    return OK | {"gpus": [{"memory": "16GiB"}, {"memory": "16GiB"} | words]}


@pytest.mark.parametrize(
    ("data", "message"),
    [
        ({}, "ram: missing; state it like ram: 16GiB"),
        ({"ram": "32GiB"}, "cores: missing"),
        (None, "machine: 'None' is no list of keys and values"),
        (["ram"], "machine: '['ram']' is no list of keys and values"),
        (OK | {"ram": 32}, "ram: '32' has no unit"),
        (OK | {"ram": "0GiB"}, "ram: '0GiB' is nothing"),
        (OK | {"ram_used": "40GiB"}, "ram_used: 40.0 GiB cannot be in use of 32.0 GiB"),
        (OK | {"ram_bandwith": "60GB/s"}, "ram_bandwith: unknown key (did you mean 'ram_bandw"),
        (OK | {"qqq": 1}, "qqq: unknown key (known are ram, ram_used"),
        (OK | {3: 1}, "3: unknown key"),
        (OK | {"swap": "1GiB", "swap_used": "2GiB"}, "swap_used: 2.0 GiB cannot be in use of 1.0"),
        (OK | {"cores": "8"}, "cores: '8' is no whole number"),
        (OK | {"cores": True}, "cores: 'True' is no whole number"),
        (OK | {"cores": -8}, "cores: -8 is out of range"),
        (OK | {"threads": 4}, "threads: 8 cores cannot be among 4"),
        (OK | {"performance_cores": 9}, "performance_cores: 9 cores cannot be among 8"),
        (OK | {"cpu": 5}, "cpu: '5' is no text"),
        (OK | {"cpu_features": "avx2"}, "cpu_features: 'avx2' is no list of words"),
        (OK | {"cpu_features": [2]}, "cpu_features: '[2]' is no list of words"),
        (OK | {"disk": "fast"}, "disk: 'fast' is no list of keys and values"),
        (OK | {"disk": {"kind": "floppy"}}, "disk.kind: 'floppy' is none of nvme, ssd, rotating"),
        (OK | {"disk": {"kind": ["nvme"]}}, "disk.kind: '['nvme']' is none of nvme"),
        (
            OK | {"disk": {"speed": 1}},
            "disk.speed: unknown key (known are kind, read, ran",
        ),
        (OK | {"gpus": {"memory": "16GiB"}}, "gpus: '{'memory': '16GiB'}' is no list"),
        (OK | {"gpus": ["16GiB"]}, "gpus[0]: '16GiB' is no list of keys and values"),
        (OK | {"gpus": [{"name": "x"}]}, "gpus[0].memory: missing"),
        (card(used="17GiB"), "gpus[1].used: 17.0 GiB cannot be in use of 16.0 GiB"),
        (card(memory="-1GiB"), "gpus[1].memory: '-1GiB' is negative"),
        (card(memory="40GiB", shared=True), "gpus[1].memory: 40.0 GiB shared with 32.0 GiB"),
        (card(shared="yes"), "gpus[1].shared: 'yes' is neither true nor false"),
        (card(bandwidth="fast"), "gpus[1].bandwidth: 'fast' is no rate"),
        (card(pcie="x16"), "gpus[1].pcie: 'x16' is no slot"),
        (card(link_bandwidth="fast"), "gpus[1].link_bandwidth: 'fast' is no rate"),
        (card(backend="opengl"), "gpus[1].backend: 'opengl' is none of cuda, rocm, vulkan"),
        (card(user="me"), "gpus[1].user: unknown key (did you mean 'used'?)"),
        (OK | {"cpu": ["x" * 100]}, "cpu: '['xxxxx"),
    ],
)
def test_what_cannot_be_meant_is_one_clear_line_with_its_place(data: object, message: str) -> None:
    with pytest.raises(ConfigProblem) as problem:
        machine_from_mapping(data)
    assert message in problem.value.message
    assert len(problem.value.message) < 300


def test_the_place_can_be_named_by_whoever_read_the_file() -> None:
    with pytest.raises(ConfigProblem) as problem:
        machine_from_mapping(card(used="x"), lambda path: f"m.yaml:7 {len(path)}")
    assert problem.value.message.startswith("m.yaml:7 3: 'x' is no size")


json_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner),
    max_leaves=8,
)


@given(
    st.dictionaries(
        st.sampled_from(["ram", "ram_used", "cores", "gpus", "disk", "cpu", "swap", "threads"]),
        json_values,
    )
)
def test_any_content_is_a_machine_or_one_clear_refusal(data: dict[str, Any]) -> None:
    for content in (data, OK | data):
        with contextlib.suppress(ConfigProblem):  # anything else would be a crash
            assert machine_from_mapping(content).ram_total_bytes > 0
