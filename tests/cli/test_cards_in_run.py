"""`run` and `serve` with an engine that has graphics cards: what they say, and what it is told."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from clikit import hotset
from hotset.gguf.synth import write_fullscale

_ENGINE = """#!{python} -I
import json, sys
if "--help" in sys.argv:
    print("--load-mode --moe-cache-mib")
elif "--version" in sys.argv:
    print("version: 1 (made up)")
elif "--list-devices" in sys.argv:
    print("Available devices:")
    print({devices!r})
else:
    open({told!r}, "w").write(json.dumps(sys.argv[1:]))
    sys.exit("made up: does not start")
"""
_CARD = "  CUDA0: NVIDIA GeForce RTX 5080 (16303 MiB, 14900 MiB free)"
_SECOND = "  CUDA1: NVIDIA GeForce RTX 3070 (8192 MiB, 8000 MiB free)"


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("model")
    return write_fullscale("olmoe-1b-7b", folder / "olmoe.gguf", mix="Q8_0")


def run_with(folder: Path, model: Path, devices: str, *words: str) -> tuple[str, dict[str, str]]:
    """What `run` says, and the options of the engine with their values."""
    program, told = folder / "made-up-server", folder / "told.json"
    text = _ENGINE.format(python=sys.executable, devices=devices, told=str(told))
    program.write_text(text)
    program.chmod(0o755)
    ended = hotset("run", model, "hello", "--engine", program, *words, home=folder)
    assert ended.code == 5, ended  # it does not start
    options = json.loads(told.read_text())
    pairs = zip(options, [*options[1:], ""], strict=True)
    return ended.err, {word: value for word, value in pairs if word.startswith("--")}


def test_a_card_that_holds_everything_gets_everything(model: Path, tmp_path: Path) -> None:
    said, options = run_with(tmp_path, model, _CARD)
    assert "CUDA0 " in said
    assert (options["--n-gpu-layers"], options["--device"]) == ("17", "CUDA0")
    assert "--n-cpu-moe" not in options
    assert options["--load-mode"] == "mmap"
    assert options["--fit"] == "on"  # it measures first; with layers and context given no more


def test_a_card_that_is_nearly_full_gets_what_fits(model: Path, tmp_path: Path) -> None:
    said, options = run_with(tmp_path, model, _CARD.replace("14900 MiB free", "4000 MiB free"))
    assert options["--n-gpu-layers"] == "17"
    assert 0 < int(options["--n-cpu-moe"]) <= 16
    assert options["--load-mode"] == "none"
    assert "(mapped)" not in said


def test_two_cards_share_the_blocks(model: Path, tmp_path: Path) -> None:
    little = _CARD.replace("14900 MiB free", "4500 MiB free")
    said, options = run_with(tmp_path, model, f"{little}\n{_SECOND}")
    assert "CUDA0 " in said
    assert "CUDA1 " in said
    assert options["--device"] == "CUDA0,CUDA1"
    assert sum(map(int, options["--tensor-split"].split(","))) == 17


def test_without_a_card_the_engine_is_told_to_use_none(model: Path, tmp_path: Path) -> None:
    said, options = run_with(tmp_path, model, "  (none)")
    assert "CUDA" not in said
    assert (options["--n-gpu-layers"], options["--device"]) == ("0", "none")
