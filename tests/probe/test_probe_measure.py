"""Measurements: what they read, what they refuse, and how the figures are kept."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.core.units import GIB, MIB
from hotset.probe.cpu import Cpu
from hotset.probe.measure import LEAST_FILE_BYTES, measure_disk, measure_ram
from hotset.probe.measured import (
    CopyFact,
    DiskFact,
    Measured,
    RamFact,
    load_measured,
    ram_identity,
    save_measured,
)
from sysfskit import write


def file_of(path: Path, n_bytes: int) -> Path:
    """Real bytes: a hole would not be on the disk."""
    with path.open("wb") as file:
        for _ in range(n_bytes // MIB):
            file.write(os.urandom(MIB))
    return path


def test_a_disk_is_read_within_bounds_and_the_file_stays_as_it_is(tmp_path: Path) -> None:
    file = file_of(tmp_path / "model.gguf", LEAST_FILE_BYTES)
    before = (file.stat().st_size, file.stat().st_mtime_ns)
    speed = measure_disk(file)
    if isinstance(speed, str):
        assert "page cache" in speed  # a file system without such reads
    else:
        assert 0 < speed.num_bytes <= 2 * LEAST_FILE_BYTES
        assert speed.read_bytes_s > 0
        assert speed.random_read_bytes_s > 0
    assert (file.stat().st_size, file.stat().st_mtime_ns) == before


def test_what_would_give_a_false_figure_gives_none(tmp_path: Path) -> None:
    sparse = tmp_path / "sparse.gguf"
    with sparse.open("wb") as file:
        file.truncate(GIB)
    assert measure_disk(sparse) == "sparse.gguf is sparse: most of it is not on the disk"
    small = file_of(tmp_path / "small.gguf", MIB)
    assert measure_disk(small) == "small.gguf is smaller than 64 MiB"
    assert "No such file" in str(measure_disk(tmp_path / "none.gguf"))
    for kind in ("zfs", "fuse.sshfs"):
        assert measure_disk(small, kind) == f"{kind} reads through a cache of its own"


def test_a_refusal_to_read_past_the_cache_is_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    file = file_of(tmp_path / "model.gguf", LEAST_FILE_BYTES)

    def refuse(*_: object) -> int:
        raise OSError(22, "Invalid argument")

    with monkeypatch.context() as patch:
        patch.setattr("os.preadv", refuse)
        assert measure_disk(file) == "reading model.gguf failed (Invalid argument)"
    with monkeypatch.context() as patch:
        patch.setattr("os.open", refuse)
        assert "past the page cache (Invalid argument)" in str(measure_disk(file))
    with monkeypatch.context() as patch:
        patch.delattr("os.O_DIRECT")
        assert measure_disk(file) == "this system has no reads past its cache"


def test_memory_is_read_by_all_threads_and_a_cache_of_that_size_is_told(tmp_path: Path) -> None:
    speed = measure_ram(2, 4 * GIB, tmp_path, least_share=0.0)
    assert not isinstance(speed, str)
    assert speed.read_bytes_s > 0
    assert (speed.num_bytes, speed.num_threads) == (256 * MIB, 2)
    assert speed.is_beyond_cache
    write(tmp_path / "sys/devices/system/cpu/cpu0/cache", {"index3/size": "393216K"})
    cached = measure_ram(1, 4 * GIB, tmp_path, least_share=0.0)
    assert not isinstance(cached, str)
    assert not cached.is_beyond_cache


def test_a_figure_that_is_other_programs_doing_is_none(tmp_path: Path) -> None:
    # More than all of the time nobody gets.
    assert measure_ram(1, 4 * GIB, tmp_path, least_share=1.5) == (
        "other programs kept the processor busy"
    )


def test_memory_is_not_measured_where_little_is_free(tmp_path: Path) -> None:
    assert measure_ram(2, GIB, tmp_path) == "too little memory is free"


SOME = Measured(
    RamFact(60 * 10**9, "A CPU, 8 cores, 32 GiB", "2026-11-30"),
    {"ext4 on Disk 1": DiskFact(3 * 10**9, 2 * 10**9, "2026-11-29")},
    {"0000:03:00.0, A card": CopyFact(24 * 10**9, 20 * 10**9, "2026-11-28")},
)


def test_what_is_kept_comes_back(tmp_path: Path) -> None:
    file = tmp_path / "deep/below/machine.json"
    for measured in (SOME, Measured()):
        assert save_measured(file, measured) == ""
        assert load_measured(file) == (measured, "")
    assert list(file.parent.iterdir()) == [file]


def test_a_file_from_before_cards_were_measured_is_as_good_as_ever(tmp_path: Path) -> None:
    file = tmp_path / "machine.json"
    save_measured(file, SOME)
    data = json.loads(file.read_text())
    del data["cards"]
    file.write_text(json.dumps(data))
    assert load_measured(file) == (replace(SOME, cards={}), "")


def test_nothing_kept_is_nothing_to_speak_of(tmp_path: Path) -> None:
    assert load_measured(tmp_path / "machine.json") == (Measured(), "")


DAMAGED = [
    "",
    "{",
    "[]",
    "null",
    '{"version": 2}',
    '{"version": 1}',
    '{"version": 1, "ram": 5, "disks": {}}',
    '{"version": 1, "ram": null, "disks": 5}',
    '{"version": 1, "ram": null, "disks": {"x": {}}}',
    '{"version": 1, "ram": null, "disks": {}, "cards": {"x": {"to_bytes_s": 1}}}',
    json.dumps({"version": 1, "ram": {"read_bytes_s": -1, "identity": "", "day": ""}, "disks": {}}),
    json.dumps({"version": 1, "ram": {"read_bytes_s": 1, "identity": 5, "day": ""}, "disks": {}}),
    json.dumps({"version": 1, "ram": {"read_bytes_s": 10**15}, "disks": {}}),
    "[" * 100_000,
]


@pytest.mark.parametrize("text", DAMAGED, ids=range(len(DAMAGED)))
def test_a_damaged_file_is_ignored_with_one_line_and_can_be_written_again(
    tmp_path: Path, text: str
) -> None:
    file = tmp_path / "machine.json"
    file.write_text(text)
    measured, complaint = load_measured(file)
    assert measured == Measured()
    assert complaint.startswith(f"{file}: no measurements of hotset (")
    assert "--measure" in complaint
    assert len(complaint.splitlines()) == 1
    assert save_measured(file, SOME) == ""
    assert load_measured(file) == (SOME, "")


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=60)
@given(st.binary(max_size=200))
def test_any_bytes_are_ignored(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "machine.json"
    file.write_bytes(content)
    assert load_measured(file)[0] == Measured()


@pytest.mark.parametrize("obstacle", ["a file is the folder", "a folder is the file"])
def test_what_cannot_be_kept_has_a_reason_and_leaves_nothing_behind(
    tmp_path: Path, obstacle: str
) -> None:
    if obstacle == "a file is the folder":
        (tmp_path / "hotset").write_text("in the way")
        file = tmp_path / "hotset/machine.json"
    else:
        file = tmp_path / "machine.json"
        file.mkdir()
    before = sorted(tmp_path.rglob("*"))
    assert save_measured(file, SOME).startswith(f"{file} cannot be written (")
    assert sorted(tmp_path.rglob("*")) == before


def test_the_identity_of_memory_survives_a_new_kernel_and_tells_more_memory_apart() -> None:
    cpu = Cpu("A CPU", 8, 16)
    assert ram_identity(cpu, 32 * GIB) == ram_identity(cpu, 32 * GIB - 200 * MIB)
    assert ram_identity(cpu, 32 * GIB) != ram_identity(cpu, 64 * GIB)
