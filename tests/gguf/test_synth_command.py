"""`python -m hotset.gguf.synth`."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path

import pytest

from hotset.gguf.synth import FAMILIES, REAL_MODELS, write_fullscale, write_tiny
from hotset.gguf.synth.__main__ import main


def test_tiny_writes_the_file_that_the_function_writes(tmp_path: Path) -> None:
    (wanted,) = write_tiny(
        "qwen35moe", tmp_path / "a.gguf", experts_type="Q4_K", down_type="Q6_K", seed=5, fused=True
    )
    out = tmp_path / "b.gguf"
    options = ["--type", "Q4_K", "--down-type", "Q6_K", "--seed", "5", "--fused"]
    assert main(["tiny", "qwen35moe", str(out), *options]) == 0
    assert out.read_bytes() == wanted.read_bytes()


def test_tiny_names_every_shard_with_its_size(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny", "llama", str(tmp_path / "m.gguf"), "--shards", "2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split(": ")[0] for line in lines] == sorted(map(str, tmp_path.iterdir()))
    assert all(line.endswith("on disk") for line in lines)


def test_sized_grows_with_its_options(tmp_path: Path) -> None:
    small = ["--layers", "1", "--width", "256", "--heads", "4", "--kv-heads", "2",
             "--head-dim", "64", "--expert-width", "256", "--used", "2", "--vocabulary", "512",
             "--context", "2048"]  # fmt: skip
    sizes = []
    for experts in (8, 16):
        out = tmp_path / f"{experts}.gguf"
        assert main(["sized", str(out), *small, "--experts", str(experts)]) == 0
        sizes.append(out.stat().st_size)
    # One expert: three matrices of 256 x 256 in Q4_0, and a router row of 256 floats.
    assert sizes[1] - sizes[0] == 8 * (3 * 256 * 256 * 18 // 32 + 256 * 4)


def test_fullscale_writes_the_file_that_the_function_writes(tmp_path: Path) -> None:
    wanted = write_fullscale("granite-3.1-1b-a400m", tmp_path / "a.gguf", mix="Q4_0")
    out = tmp_path / "b.gguf"
    assert main(["fullscale", "granite-3.1-1b-a400m", str(out), "--mix", "Q4_0"]) == 0
    assert out.stat().st_size == wanted.stat().st_size
    with out.open("rb") as one, wanted.open("rb") as other:
        assert one.read(4 << 20) == other.read(4 << 20)


def test_list_names_all_families_and_models(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["list"]) == 0
    words = capsys.readouterr().out.split()
    assert {*FAMILIES, *REAL_MODELS} <= set(words)


def test_a_problem_is_one_line_and_its_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["tiny", "qwen9", str(tmp_path / "m.gguf")]) == 4
    assert main(["tiny", "qwen3", str(tmp_path / "none" / "m.gguf")]) == 3
    lines = capsys.readouterr().err.splitlines()
    assert [line.split(":")[0] for line in lines] == ["synth", "synth"]


def test_it_runs_as_a_module(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(sys, "argv", ["synth", "--help"])
    monkeypatch.delitem(sys.modules, "hotset.gguf.synth.__main__")
    with pytest.raises(SystemExit) as stop:
        runpy.run_module("hotset.gguf.synth", run_name="__main__")
    assert stop.value.code == 0
    assert "fullscale" in capsys.readouterr().out
