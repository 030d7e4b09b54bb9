"""What starts and answers have shown, kept in a file that several processes write."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.core.experience import RAM, Experience
from hotset.probe.starts import (
    Answers,
    StartKey,
    experience_of,
    keep_answer,
    keep_spill,
    keep_start,
    load_kept,
)

KEY = StartKey("engine 1", "model", "CUDA0")
_OF_ANSWERS = (
    b'{"version": 1, "starts": [], "answers": [{"engine": "e", "model": "m", "machine": "x",'
    b' "setup": %s, "prefill": []}]}'
)
_OF_STARTS = (
    b'{"version": 1, "answers": [], "starts": [{"engine": "e", "model": "m", "device": "d",'
    b' "compute": {"s": %s}, "overhead_bytes": null}]}'
)
ABOUT = Answers("engine 1", "model", "machine", "CPU, RAM, 2 threads")


@pytest.fixture(name="file")
def _file(tmp_path: Path) -> Path:
    return tmp_path / "hotset" / "starts.json"


def experience(file: Path, engine: str = "engine 1", model: str = "model") -> Experience:
    kept, complaint = load_kept(file)
    assert complaint == ""
    return experience_of(kept, engine, model, "machine")


def test_nothing_is_known_before_the_first_start(file: Path) -> None:
    assert experience(file) == Experience()
    assert not file.exists()


def test_what_a_start_showed_is_there_for_the_same_engine_and_model_only(file: Path) -> None:
    assert keep_start(file, KEY, {"shape": (200, 300)}, 77) == ""
    found = experience(file)
    assert found.compute_bytes == {("CUDA0", "shape"): 300}
    assert found.compute_factors == {"CUDA0": 1.5}
    assert found.overhead_bytes == {"CUDA0": 77}
    assert experience(file, engine="engine 2") == Experience()
    other = experience(file, model="other")
    assert (other.compute_bytes, other.overhead_bytes) == ({}, {"CUDA0": 77})


def test_a_plan_that_was_corrected_does_not_make_the_engine_forget_how_wrong_the_estimate_was(
    file: Path,
) -> None:
    keep_start(file, KEY, {"shape": (200, 300)})
    keep_start(file, KEY, {"shape": (300, 300)})
    keep_start(file, KEY, {"another": (100, 50)})
    found = experience(file)
    assert found.compute_factors == {"CUDA0": 1.5}
    assert found.compute_bytes == {("CUDA0", "shape"): 300, ("CUDA0", "another"): 50}
    keep_start(file, KEY, {"shape": (300, 250)})
    assert experience(file).compute_bytes["CUDA0", "shape"] == 300


def test_what_a_driver_moved_away_adds_up_and_stays_with_its_engine_and_model(file: Path) -> None:
    assert keep_spill(file, KEY, 300) == ""
    keep_start(file, KEY, {"shape": (200, 300)}, 77)
    keep_spill(file, KEY, 200)
    found = experience(file)
    assert (found.spilled("CUDA0"), found.spilled("CUDA1")) == (500, 0)
    assert (found.compute_bytes, found.overhead_bytes) == ({("CUDA0", "shape"): 300}, {"CUDA0": 77})
    assert experience(file, model="other").spilled("CUDA0") == 0
    record = json.loads(file.read_text())
    del record["starts"][0]["spilled_bytes"]  # as earlier versions wrote it
    file.write_text(json.dumps(record))
    assert experience(file).compute_bytes == found.compute_bytes


def test_the_last_answers_count_and_absurd_ones_do_not(file: Path) -> None:
    for n in range(40):
        assert keep_answer(file, ABOUT, decode=1.0 if n < 20 else 0.5, prefill=1e9) == ""
    keep_answer(file, ABOUT, decode=0.0)
    paces = experience(file).own[ABOUT.setup]
    assert paces.decode is not None
    assert (paces.decode.ratio, paces.decode.num_samples) == (0.5, 15)
    assert paces.prefill is None


def test_other_models_are_known_by_their_medians_so_that_one_used_much_does_not_outvote_them(
    file: Path,
) -> None:
    for _ in range(9):
        keep_answer(file, ABOUT, decode=2.0)
    for model, ratio in (("b", 0.5), ("c", 0.6)):
        about = Answers(ABOUT.engine, model, ABOUT.machine, ABOUT.setup)
        keep_answer(file, about, decode=ratio, prefill=ratio)
    found = experience(file, model="never ran")
    assert found.own == {}
    pace = found.others[ABOUT.setup].decode
    assert pace is not None
    assert (pace.ratio, pace.num_samples) == (0.6, 3)


@pytest.mark.parametrize(
    "damage",
    [
        b"", b"{", b"\xff\xfe", b"[]", b'"x"', b'{"version": 1}', b"[" * 100_000,
        b'{"version": 1, "starts": [1], "answers": []}',
        _OF_ANSWERS % b'"s", "decode": [NaN]',
        _OF_ANSWERS % b'7, "decode": []',
        _OF_STARTS % b"[1, -5]",
    ],
)  # fmt: skip
def test_a_damaged_file_is_one_line_and_the_next_start_begins_anew(
    file: Path, damage: bytes
) -> None:
    file.parent.mkdir()
    file.write_bytes(damage)
    kept, complaint = load_kept(file)
    assert not kept.starts
    assert not kept.answers
    assert str(file) in complaint
    assert len(complaint) < 400
    assert "\n" not in complaint
    assert keep_start(file, KEY, {"shape": (1, 2)}) == ""
    assert experience(file).compute_bytes == {("CUDA0", "shape"): 2}


def test_a_file_of_another_version_is_neither_used_nor_overwritten(file: Path) -> None:
    file.parent.mkdir()
    file.write_text('{"version": 99, "more": "than we know"}')
    kept, complaint = load_kept(file)
    assert not kept.starts
    assert "version 99" in complaint
    assert keep_start(file, KEY, {"shape": (1, 2)}) == complaint
    assert json.loads(file.read_text()) == {"version": 99, "more": "than we know"}


def test_where_nothing_can_be_written_that_is_said_and_nothing_is_left(tmp_path: Path) -> None:
    (tmp_path / "hotset").write_text("a file where the folder should be")
    reason = keep_answer(tmp_path / "hotset" / "starts.json", ABOUT, decode=1.0)
    assert "cannot be written" in reason
    assert load_kept(tmp_path / "hotset" / "starts.json")[1] == ""  # there is just nothing
    folder = tmp_path / "full"
    (folder / "starts.json").mkdir(parents=True)
    (folder / "starts.json" / "in the way").touch()
    assert "cannot be written" in keep_answer(folder / "starts.json", ABOUT, decode=1.0)
    assert sorted(os.listdir(folder)) == [".starts.json.lock", "starts.json"]


_WRITER = """
import sys
from pathlib import Path
from hotset.probe.starts import Answers, StartKey, keep_answer, keep_start
file, name = Path(sys.argv[1]), sys.argv[2]
for n in range(40):
    assert keep_start(file, StartKey("e", name, f"device {n}"), {"shape": (n, n)}) == ""
    assert keep_answer(file, Answers("e", f"{name} {n}", "m", "s"), decode=1.0) == ""
"""


def test_processes_that_write_at_once_lose_nothing(file: Path) -> None:
    writers = [
        subprocess.Popen([sys.executable, "-c", _WRITER, str(file), name]) for name in ("a", "b")
    ]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    kept, complaint = load_kept(file)
    assert complaint == ""
    assert (len(kept.starts), len(kept.answers)) == (80, 80)
    assert sorted(os.listdir(file.parent)) == [".starts.json.lock", "starts.json"]


def test_the_file_does_not_grow_without_end_and_the_latest_stay(file: Path) -> None:
    keep_start(file, KEY, {f"shape {n}": (1, n) for n in range(1, 200)})
    found = experience(file).compute_bytes
    assert len(found) == 24
    assert ("CUDA0", "shape 199") in found
    data = json.loads(file.read_text())
    data["answers"] = [
        {"engine": "e", "model": str(n), "machine": "m", "setup": "s", "decode": [], "prefill": []}
        for n in range(1000)
    ]
    file.write_text(json.dumps(data))
    keep_answer(file, ABOUT, decode=1.0)
    kept, _ = load_kept(file)
    assert len(kept.answers) == 400
    assert [*kept.answers][-1] == ABOUT.key


def test_a_device_named_like_the_ram_is_the_ram(file: Path) -> None:
    keep_start(file, StartKey(KEY.engine, KEY.model, RAM), {"shape": (10, 20)})
    assert experience(file).compute(RAM, "other", 10) == 20
