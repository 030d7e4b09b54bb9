"""This machine as one value, on made-up systems; and a machine from a file."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.core.devices import Device
from hotset.core.errors import ConfigProblem
from hotset.core.machine import Backend, Disk, DiskKind, Machine
from hotset.core.machine_file import machine_yaml
from hotset.core.machine_text import MachineWords, described_machine
from hotset.core.units import GIB, MIB
from hotset.probe.cpu import cpu
from hotset.probe.described import read_machine
from hotset.probe.disk import disk_of
from hotset.probe.measured import (
    CopyFact,
    DiskFact,
    Measured,
    RamFact,
    card_identity,
    ram_identity,
)
from hotset.probe.this_machine import this_machine
from sysfskit import AMD, add_card, add_metrics, amd_files, write

MEMINFO = "MemTotal:  33554432 kB\nMemAvailable:  25165824 kB"


def system(root: Path) -> Path:
    """32 GiB of RAM and a 16 GiB card that drives the desktop."""
    write(root, {"proc/meminfo": MEMINFO})
    add_metrics(add_card(root, 0, AMD, "amdgpu", amd_files(16 * GIB, 1536 * MIB)), 1)
    return root


def test_this_machine_is_what_the_probes_say(tmp_path: Path) -> None:
    seen = this_machine(measured=Measured(), root=system(tmp_path))
    processor = cpu(tmp_path)
    assert (seen.ram_total_bytes, seen.ram_available_bytes) == (32 * GIB, 24 * GIB)
    assert (seen.num_cores, seen.num_threads) == (processor.num_cores, processor.num_threads)
    assert [(gpu.total_bytes, gpu.backend) for gpu in seen.devices] == [(16 * GIB, None)]
    assert (seen.disk, seen.ram_bandwidth_bytes_s) == (None, None)


def test_the_engines_list_decides_which_cards_count(tmp_path: Path) -> None:
    root = system(tmp_path)
    assert this_machine(measured=Measured(), root=root, listed=()).devices == ()
    listed = [Device("Vulkan0", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16 * GIB, 14 * GIB)]
    (gpu,) = this_machine(measured=Measured(), root=root, listed=listed).devices
    assert (gpu.backend, gpu.engine_name) == (Backend.VULKAN, "Vulkan0")
    assert (gpu.free_bytes, gpu.link is None) == (14 * GIB, False)


def test_memory_that_is_ram_has_no_more_free_than_the_ram(tmp_path: Path) -> None:
    listed = [Device("Vulkan0", "llvmpipe (LLVM 15.0.6, 256 bits)", 32 * GIB, 32 * GIB)]
    (gpu,) = this_machine(measured=Measured(), root=system(tmp_path), listed=listed).devices
    assert gpu.shares_ram
    assert gpu.free_bytes == 24 * GIB


def test_only_measurements_of_this_machine_and_this_disk_are_used(tmp_path: Path) -> None:
    root, models = system(tmp_path / "root"), tmp_path / "models"
    models.mkdir()
    identity = ram_identity(cpu(root), 32 * GIB)
    ours = Measured(
        RamFact(60 * 10**9, identity, "2026-11-30"),
        {disk_of(models, root).identity: DiskFact(3 * 10**9, 2 * 10**9, "2026-11-30")},
    )
    seen = this_machine(measured=ours, model=models, root=root)
    assert seen.ram_bandwidth_bytes_s == 60 * 10**9
    assert seen.disk == Disk(DiskKind.UNKNOWN, 3 * 10**9, 2 * 10**9)
    theirs = Measured(
        RamFact(60 * 10**9, identity + "x", "2026-11-30"),
        {"another disk": DiskFact(3 * 10**9, 2 * 10**9, "2026-11-30")},
    )
    seen = this_machine(measured=theirs, model=models, root=root)
    assert seen.ram_bandwidth_bytes_s is None
    assert seen.disk == Disk(DiskKind.UNKNOWN)
    assert this_machine(measured=ours, model=models / "gone", root=root).disk is None


def test_copies_to_a_card_are_those_measured_of_it_in_its_slot(tmp_path: Path) -> None:
    root = system(tmp_path)
    listed = [Device("Vulkan0", "AMD Radeon RX 9070 XT (RADV GFX1201)", 16 * GIB, 14 * GIB)]

    def copies(identity: str) -> int | None:
        kept = Measured(cards={identity: CopyFact(21 * 10**9, 1, "2026-11-30")})
        (gpu,) = this_machine(measured=kept, root=root, listed=listed).devices
        return gpu.copy_bytes_s

    (gpu,) = this_machine(measured=Measured(), root=root, listed=listed).devices
    assert gpu.link is not None
    assert copies(card_identity(gpu)) == 21 * 10**9
    narrow = replace(gpu, link=replace(gpu.link, lanes=4))
    for other in (narrow, replace(gpu, name="Another"), replace(gpu, bus_id="0000:04:00.0")):
        assert copies(card_identity(other)) is None


def test_the_real_machine_makes_sense_and_can_be_written_down_and_read_back(
    tmp_path: Path,
) -> None:
    here = this_machine(measured=Measured(), model=tmp_path)
    assert 0 < here.ram_available_bytes <= here.ram_total_bytes
    assert here.lockable_bytes is not None
    assert here.lockable_bytes <= here.ram_total_bytes
    file = tmp_path / "machine.yaml"
    file.write_text(machine_yaml(here))
    nobody = tuple(replace(gpu, used_by=()) for gpu in here.devices)
    assert read_machine(file) == replace(here, devices=nobody)


def test_a_file_with_comments_and_few_words_is_a_machine(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("# the old one\nram: 32GiB   # four modules\nram_used: 4GiB\ncores: 8\n")
    assert read_machine(file) == described_machine(MachineWords(ram="32GiB"))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("ram: 32GiB\ncores: 8\ngpus:\n  - memory: 8GiB\n    usd: 1GiB\n", ":5: gpus[0].usd: unk"),
        ("ram: 32GiB\ncores: 8\ngpus:\n  - name: x\n", ":4: gpus[0].memory: missing"),
        ("cores: 8\n", ":1: ram: missing"),
        ("ram: 32GiB\ncores: 8\ndisk: fast\n", ":3: disk: 'fast' is no list of keys"),
        ("ram: 32GiB\ncores: 8\nram: 1GiB\n", ":3: no YAML: found duplicate key"),
        ("ram: [\n", ": no YAML: "),
        ("", ":1: machine: 'None' is no list of keys"),
        ("- 1\n", ":1: machine: '[1]' is no list of keys"),
        ("ram: \x00\n", "no YAML"),
        ("ram: &a [*a]\n", ":1: ram: "),
    ],
)
def test_what_a_file_cannot_mean_is_one_line_with_file_and_line(
    tmp_path: Path, text: str, message: str
) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    with pytest.raises(ConfigProblem) as problem:
        read_machine(file)
    assert problem.value.message.startswith(f"{file}:")
    assert message in problem.value.message


def test_what_is_no_readable_text_is_refused_by_name(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_bytes(b"\xff\xfe\x00")
    for path, words in (
        (file, "no text in UTF-8"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
    ):
        with pytest.raises(ConfigProblem, match=words):
            read_machine(path)
    file.write_text("#" * (MIB + 1))
    with pytest.raises(ConfigProblem, match="larger than 1 MiB"):
        read_machine(file)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=80)
@given(st.text(st.sampled_from("ram: 3GiB\n-[]{}&*!|>'\"#%@`cores8"), max_size=40))
def test_any_text_is_a_machine_or_one_refusal(tmp_path: Path, text: str) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text(text)
    try:
        found: Machine | None = read_machine(file)
    except ConfigProblem:
        found = None
    assert found is None or found.ram_total_bytes > 0
