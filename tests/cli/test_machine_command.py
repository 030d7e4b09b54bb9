"""`hotset machine` and `hotset doctor --measure`, as a user runs them."""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

import pytest

from clikit import assert_refused, environment, hotset
from enginekit import can_run_llama_server, llama_server
from hotset.engine.llama_server import LlamaServerEngine
from hotset.gguf.synth import write_fullscale
from hotset.probe.cpu import cpu
from hotset.probe.disk import disk_of
from hotset.probe.measure import LEAST_FILE_BYTES
from hotset.probe.measured import DiskFact, Measured, RamFact, ram_identity, save_measured
from hotset.probe.memory import memory
from store.softwarecard import environment_with_software_card

DESCRIBED = (
    *("--gpu", "16GiB,RX 9070 XT", "--gpu-used", "1.5GiB", "--pcie", "4x16"),
    *("--ram", "32GiB", "--ram-bw", "60GB/s", "--disk", "3GB/s", "--cores", "8"),
)


def test_this_machine_in_a_few_lines(tmp_path: Path) -> None:
    ended = hotset("machine", "show", home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert "cores" in lines[0]
    assert lines[1].startswith("RAM ")
    assert lines[-1].startswith("disk: ")


def test_a_described_machine_is_shown_as_said(tmp_path: Path) -> None:
    out = hotset("machine", "show", *DESCRIBED, home=tmp_path).out
    assert "8 cores" in out
    assert "RAM 32.0 GiB" in out
    assert "RX 9070 XT · 16.0 GiB (1.5 GiB in use) · 640 GB/s · PCIe 4.0 x16 · as Vulkan0\n" in out
    assert "reads 3.0 GB/s" in out


def test_json_has_bytes_and_null_for_what_is_not_known(tmp_path: Path) -> None:
    facts = json.loads(hotset("machine", "show", "--json", *DESCRIBED, home=tmp_path).out)
    assert facts["ram_total_bytes"] == 32 << 30
    assert facts["num_cores"] == 8
    assert facts["num_performance_cores"] is None
    (gpu,) = facts["devices"]
    assert gpu["free_bytes"] == (16 << 30) - (3 << 29)
    assert gpu["link"] == {"pcie_generation": 4, "lanes": 16}
    assert gpu["copy_bytes_s"] is None


def test_a_saved_machine_is_the_same_machine_and_is_not_written_over(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    saved = hotset("machine", "save", file, home=tmp_path)
    assert (saved.code, saved.out, saved.err) == (0, "", "")
    here = json.loads(hotset("machine", "show", "--json", home=tmp_path).out)
    there = json.loads(hotset("machine", "show", "--json", "--machine", file, home=tmp_path).out)
    # It was written a moment before, so what is free has changed.
    for facts in (here, there):
        facts.pop("ram_available_bytes")
        for gpu in facts["devices"]:
            gpu |= {"free_bytes": 0, "used_by": []}
    assert there == here
    before = file.read_text()
    again = hotset("machine", "save", file, home=tmp_path)
    assert_refused(again, 4, str(file), "there is such a file already")
    assert file.read_text() == before
    assert hotset("machine", "save", "-", home=tmp_path).out.startswith("ram: ")


def test_what_the_options_say_changes_what_the_file_says(tmp_path: Path) -> None:
    file = tmp_path / "machine.yaml"
    file.write_text("ram: 32GiB\ncores: 8\ngpus:\n  - name: RTX 3060\n    memory: 12GiB\n")
    out = hotset("machine", "show", "--machine", file, "--ram", "64GiB", home=tmp_path).out
    assert "RAM 64.0 GiB" in out
    assert "RTX 3060 · 12.0 GiB · 360 GB/s · as CUDA0" in out
    none = hotset("machine", "show", "--machine", file, "--gpu", "none", home=tmp_path).out
    assert "no graphics card" in none


@pytest.mark.parametrize(
    ("args", "code", "words"),
    [
        (("show", "--ram", "32"), 4, "--ram: '32' has no unit"),
        (("show", "--ram", "0GiB"), 4, "--ram: '0GiB' is nothing"),
        (("show", "--ram", "-1GiB"), 4, "--ram: '-1GiB' is negative"),
        (("show", "--gpu", "8GiB", "--gpu-used", "9GiB"), 4, "--gpu-used: 9.0 GiB cannot be"),
        (("show", "--machine", "none.yaml"), 4, "none.yaml: the machine's file cannot be read"),
        (("show", "--cores", "0"), 4, "--cores: 0 is out of range"),
        (("show", "--model", "none.gguf"), 2, "none.gguf: there is no such file"),
        (("show", "--engine", "/nowhere"), 5, "/nowhere"),
        (("save", "no/such/folder/machine.yaml"), 3, "cannot be written"),
    ],
)
def test_what_cannot_be_meant_is_one_line(
    tmp_path: Path, args: tuple[str, ...], code: int, words: str
) -> None:
    assert_refused(hotset("machine", *args, home=tmp_path), code, words)


@pytest.mark.skipif(not can_run_llama_server(), reason="this build needs AVX-512")
def test_a_llama_server_on_the_path_is_the_engine_that_is_asked(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "llama-server").symlink_to(llama_server())
    env = environment(tmp_path, PATH=f"{programs}:/usr/bin:/bin")
    ended = hotset("machine", "show", home=tmp_path, env=env)
    assert (ended.code, ended.err) == (0, "")
    asked = hotset("machine", "show", "--engine", "llama-server", home=tmp_path, env=env)
    assert asked.out.splitlines()[2:] == ended.out.splitlines()[2:]


def model_in(folder: Path) -> Path:
    folder.mkdir()
    (folder / "model.gguf").write_bytes(os.urandom(LEAST_FILE_BYTES))
    return folder


def test_a_file_that_could_not_be_written_whole_is_not_left(tmp_path: Path) -> None:
    ended = hotset("machine", "save", "m.yaml", home=tmp_path, through='ulimit -f 0; exec "$@"')
    assert_refused(ended, 3, "m.yaml: cannot be written (File too large)")
    assert hotset("machine", "save", "m.yaml", home=tmp_path).code == 0


def test_what_was_measured_is_kept_and_used(tmp_path: Path) -> None:
    models = model_in(tmp_path / "models")
    ended = hotset("doctor", "--measure", models, home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    kept = json.loads((tmp_path / ".cache/hotset/machine.json").read_text())
    # Beside other programs' work there is no figure of memory, but the reason.
    assert (kept["ram"] is None) == ("speed of memory: not measured" in ended.out)
    assert (kept["disks"] == {}) == (f"disk of {models}: not measured" in ended.out)
    shown = json.loads(hotset("machine", "show", "--json", "--model", models, home=tmp_path).out)
    rates = [disk["read_bytes_s"] for disk in kept["disks"].values()] or [None]
    assert [shown["disk"]["read_bytes_s"]] == rates
    ram = kept["ram"] or {"read_bytes_s": None}
    assert shown["ram_bandwidth_bytes_s"] == ram["read_bytes_s"]


@pytest.mark.skipif(not can_run_llama_server(), reason="the prebuilt engine needs AVX-512")
def test_copies_to_a_card_are_measured_with_its_engine_and_planned_with(tmp_path: Path) -> None:
    card = environment_with_software_card(LlamaServerEngine(llama_server()))
    card = {name: card[name] for name in ("VK_DRIVER_FILES", "GGML_VK_VISIBLE_DEVICES")}
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "llama-server").symlink_to(llama_server())
    env = environment(tmp_path, PATH=f"{programs}:/usr/bin:/bin", **card)
    ended = hotset("doctor", "--measure", tmp_path, home=tmp_path, env=env)
    assert (ended.code, ended.err) == (0, "")
    (kept,) = json.loads((tmp_path / ".cache/hotset/machine.json").read_text())["cards"].values()
    day = kept["day"]
    assert re.search(rf"llvmpipe.* copies to it .* from it .* \(measured {day}\)", ended.out)
    shown = hotset("machine", "show", "--json", "--engine", "llama-server", home=tmp_path, env=env)
    (gpu,) = json.loads(shown.out)["devices"]
    assert gpu["copy_bytes_s"] == kept["to_bytes_s"]


def test_a_plan_says_where_its_rate_of_copies_comes_from(tmp_path: Path) -> None:
    model = write_fullscale("qwen3-30b-a3b", tmp_path / "model.gguf", mix="Q4_K_M")
    file = tmp_path / "machine.yaml"
    text = "ram: 64GiB\ncores: 8\nram_bandwidth: 60GB/s\ngpus:\n  - {memory: 8GiB, pcie: 3x8%s}\n"
    asked = ("plan", model, "--machine", file)
    for more, source in (("", "80% of PCIe 3.0 x8"), (", link_bandwidth: 5GB/s", "measured")):
        file.write_text(text % more)
        sums = hotset(*asked, "--explain", home=tmp_path).out.splitlines()
        (line,) = [line for line in sums if "copies to the device" in line]
        assert line.endswith(f"GB/s ({source})")
        screen = hotset(*asked, home=tmp_path).out
        assert ("Copies to the card are counted at 80% of PCIe 3.0 x8;" in screen) == (not more)


def test_kept_figures_are_shown_with_their_day_and_damaged_ones_are_ignored(
    tmp_path: Path,
) -> None:
    kept = tmp_path / ".cache/hotset/machine.json"
    identity = ram_identity(cpu(), memory().total_bytes)
    ram = RamFact(41 * 10**9, identity, "2026-01-02")
    disks = {disk_of(tmp_path).identity: DiskFact(3_100_000_000, 1_900_000_000, "2026-01-03")}
    assert save_measured(kept, Measured(ram, disks)) == ""
    out = hotset("doctor", tmp_path, home=tmp_path).out
    assert "all cores read 41 GB/s (measured 2026-01-02)" in out
    assert "reads 3.1 GB/s, in 512 KiB reads 1.9 GB/s (measured 2026-01-03)" in out
    kept.write_text("{")
    damaged = hotset("machine", "show", home=tmp_path)
    assert damaged.code == 0
    assert len(damaged.err_lines) == 1
    assert str(kept) in damaged.err


def test_a_home_that_cannot_be_written_stops_no_command(tmp_path: Path) -> None:
    models = model_in(tmp_path / "models")
    (tmp_path / "in-the-way").write_text("a file")
    env = environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "in-the-way"))
    ended = hotset("doctor", "--measure", models, home=tmp_path, env=env)
    assert ended.code == 0
    assert "warning  measured speeds: not kept: " in ended.out
    assert hotset("machine", "show", home=tmp_path, env=env).code == 0


def test_a_folder_without_a_model_is_not_measured_and_says_so(tmp_path: Path) -> None:
    ended = hotset("doctor", "--measure", tmp_path, home=tmp_path)
    assert ended.code == 0
    assert f"speed of the disk of {tmp_path}: not measured: there is no model file" in ended.out
