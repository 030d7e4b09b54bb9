"""What a command does not need is not imported: it costs every start of every command."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from clikit import environment
from hotset.gguf.synth.models import write_tiny

_SCRIPT = """
import atexit, json, sys
atexit.register(lambda: print(json.dumps(sorted(sys.modules)), file=sys.stderr))
sys.argv[0] = "hotset"
from hotset.cli.main import main
main()
"""
THIRD_PARTY = {"httpx", "numpy", "psutil", "pydantic", "rich", "xllamacpp"}


def imported(home: Path, *words: str | Path) -> set[str]:
    """Every module that a run of the command has loaded."""
    done = subprocess.run(
        [sys.executable, "-c", _SCRIPT, *words],
        env=environment(home),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        check=True,
    )
    return set(json.loads(done.stderr.splitlines()[-1]))


def rooms(modules: set[str]) -> set[str]:
    return {name.split(".")[1] for name in modules if name.startswith("hotset.")}


@pytest.mark.parametrize("words", [("--help",), ("--version",), ("run", "--help"), ()])
def test_help_and_version_load_the_commands_alone(tmp_path: Path, words: tuple[str, ...]) -> None:
    modules = imported(tmp_path, *words)
    assert not THIRD_PARTY & modules
    assert rooms(modules) == {"cli", "core"}
    assert not {"asyncio", "http.client", "ssl", "urllib.request"} & modules


def test_inspect_reads_a_header_without_anything_of_an_engine(tmp_path: Path) -> None:
    (model,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    modules = imported(tmp_path, "inspect", model)
    assert not THIRD_PARTY & modules
    assert rooms(modules) == {"cli", "core", "gguf"}
    assert "hotset.gguf.synth" not in modules


def test_completion_loads_the_commands_alone(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-X", "importtime", "-m", "hotset"],
        env=environment(
            tmp_path, _HOTSET_COMPLETE="complete_bash", COMP_WORDS="hotset in", COMP_CWORD="1"
        ),
        capture_output=True,
        text=True,
        check=True,
    )
    names = {line.rpartition("|")[2].strip() for line in done.stderr.splitlines()}
    assert done.stdout.split() == ["inspect"]
    assert "hotset.cli.main" in names
    assert not THIRD_PARTY & names
