"""Plans that meet an engine: too large, corrected, and files that are not what they were."""

from __future__ import annotations

import json
import os
import shutil
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from clikit import assert_refused, background, environment, hotset
from enginekit import fake_engine, smollm2
from hotset.cli import proving
from hotset.cli.launching import launch, prepare
from hotset.cli.settings import settings_of
from hotset.core.errors import FileProblem
from hotset.core.machine import GpuUser, Machine
from hotset.core.plan import Wishes
from hotset.core.units import MIB
from hotset.gguf.synth import write_fullscale
from hotset.probe import this_machine

# An engine that keeps what it was told each time and answers with one word.
_ENGINE = """
import json, pathlib
told = pathlib.Path(__file__).with_name("told.json")
if "--list-devices" in sys.argv:
    print("Available devices:")
    print("  {device}")
    sys.exit(0)
starts = json.loads(told.read_text()) if told.exists() else []
starts.append(sys.argv[1:])
told.write_text(json.dumps(starts))
number = len(starts)
def on_post(handler):
    word = {{"choices": [{{"delta": {{"content": "yes"}}, "finish_reason": None}}]}}
    end = {{"choices": [{{"delta": {{}}, "finish_reason": "stop"}}]}}
    text = "".join(f"data: {{json.dumps(event)}}\\n\\n" for event in (word, end))
    handler.answer(200, text.encode(), "text/event-stream")
def table(free, total):
    head = "0.00.2.1 I common_memory_breakdown_print: |"
    card = "  - CUDA0 (RTX 5080) |"
    say(f"{{head}}{{card}} 16303 = {{free}} + ({{total}} = {{total}} + 0 + 0) + 0 |")
    say(f"{{head}}  - Host | 9 = 3 + 3 + 3 |")
{behaviour}
serve()
"""
_RTX = "CUDA0: NVIDIA GeForce RTX 5080 (16303 MiB, 14900 MiB free)"
_LATE = "0.00.9.1 E alloc_tensor_range: failed to allocate CUDA0 buffer of size 2147483648"


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6.9 GiB of it, in a file that is nearly empty."""
    folder = tmp_path_factory.mktemp("model")
    return write_fullscale("olmoe-1b-7b", folder / "olmoe.gguf", mix="Q8_0")


def engine_with_card(folder: Path, behaviour: str) -> Path:
    return fake_engine(folder, _ENGINE.format(behaviour=behaviour, device=_RTX)).program


def engine_without(folder: Path, behaviour: str) -> Path:
    return fake_engine(folder, _ENGINE.format(behaviour=behaviour, device="(none)")).program


def starts(folder: Path) -> list[dict[str, str]]:
    """The options of each start."""
    told = json.loads((folder / "told.json").read_text())
    return [
        {word: value for word, value in zip(words, [*words[1:], ""], strict=True) if word[0] == "-"}
        for words in told
    ]


@pytest.mark.parametrize(
    "behaviour",
    [
        "table(5000 if number == 1 else 14900, 7500)\nif number == 1: time.sleep(600)",
        f"if number == 1:\n    say({_LATE!r}); sys.exit(1)",
    ],
    ids=["seen before the load", "refused while loading"],
)
def test_a_start_without_enough_memory_is_planned_smaller_once_and_says_so(
    model: Path, tmp_path: Path, behaviour: str
) -> None:
    engine = engine_with_card(tmp_path, behaviour)
    ended = hotset("run", model, "hello", "--engine", engine, "--json", home=tmp_path)
    assert ended.code == 0, ended
    first, second = starts(tmp_path)
    assert first["--fit"] == "on"
    said = [line for line in ended.err_lines if "planned smaller, starting again: " in line]
    assert len(said) == 1, ended
    answer = json.loads(ended.out)
    assert answer["answer"] == "yes"
    assert answer["remarks"] == said
    assert answer["context_tokens"] == int(second["--ctx-size"])
    changed = {name for name in first if first[name] != second.get(name)} | (
        second.keys() - first.keys()
    )
    assert changed & {"--ctx-size", "--n-cpu-moe", "--n-gpu-layers", "--cache-type-k"}, changed
    assert changed <= {
        "--ctx-size", "--n-cpu-moe", "--override-tensor", "--n-gpu-layers", "--cache-type-k",
        "--cache-type-v", "--ubatch-size", "--load-mode", "--no-mmap", "--mmap", "--no-repack",
        "--cache-ram", "--device", "--batch-size",
    }, changed  # fmt: skip


def test_an_engine_that_is_killed_while_loading_gets_a_smaller_cache(
    tmp_path: Path,
) -> None:
    engine = engine_without(tmp_path, "if number == 1: os.kill(os.getpid(), 9)")
    words = ("hello", "--engine", engine, "--json")
    ended = hotset("run", smollm2(), *words, home=tmp_path)
    assert ended.code == 0, ended
    first, second = starts(tmp_path)
    assert (first["--ctx-size"], first["--cache-type-k"]) == ("8192", "f16")
    assert (second["--ctx-size"], second["--cache-type-k"]) == ("8192", "q8_0")
    assert "want of memory; planned smaller, starting again: KV q8_0 instead of f16" in ended.err
    assert json.loads(ended.out)["kv_type"] == "q8_0"


def test_a_smaller_plan_is_tried_once_and_then_the_engine_is_believed(
    model: Path, tmp_path: Path
) -> None:
    engine = engine_with_card(tmp_path, f"say({_LATE!r}); sys.exit(1)")
    ended = hotset("run", model, "hello", "--engine", engine, home=tmp_path)
    assert ended.code == 3
    assert len(starts(tmp_path)) == 2
    assert "not enough memory" in ended.err_lines[-1]


def test_explicit_settings_are_law_also_for_a_start_that_is_planned_anew(tmp_path: Path) -> None:
    engine = engine_without(tmp_path, "os.kill(os.getpid(), 9)")
    words = ("--ctx", "8192", "--kv", "f16", "--engine", engine)
    ended = hotset("run", smollm2(), "hello", *words, home=tmp_path)
    assert ended.code == 3, ended
    last = ended.err_lines[-1]
    assert "want of memory" in last
    assert "--kv q8_0" in last or "--ctx" in last


def test_one_model_of_a_gateway_that_got_no_memory_is_served_from_a_smaller_plan(
    model: Path, tmp_path: Path
) -> None:
    import httpx

    engine = engine_with_card(tmp_path, f"if number == 1:\n    say({_LATE!r}); sys.exit(1)")
    folder = tmp_path / "models"
    folder.mkdir()
    (folder / "olmoe.gguf").symlink_to(model)
    words = ("serve", folder, "--engine", engine, "--port", "0")
    with background(*words, home=tmp_path) as server:
        url = server.await_note("/v1 (OpenAI)").split()[0]
        body: dict[str, Any] = {"model": "olmoe", "messages": [{"role": "user", "content": "hi"}]}
        answer = httpx.post(f"{url}/chat/completions", json=body | {"stream": True}, timeout=60)
        assert answer.status_code == 200
        assert "yes" in answer.text
    assert len(starts(tmp_path)) == 2


def test_what_an_engine_took_and_its_driver_held_is_told_kept_and_planned_with(
    model: Path,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    says = "\n".join(
        f"say('0.00.1.1 I {who}:  CUDA0 {what} buffer size = {mib}.00 MiB')"
        for who, what, mib in (
            ("load_tensors", "model", 1000), ("llama_kv_cache", "KV", 300),
            ("sched_reserve", "compute", 700),
        )
    )  # fmt: skip
    engine = str(engine_with_card(tmp_path, says))
    pids: list[int] = []

    def seen_by_the_driver(**given: Any) -> Machine:
        machine = this_machine.this_machine(**given)
        held = (GpuUser("engine", 2110 * MIB, pids[0]), GpuUser("desktop", 900 * MIB, 1))
        return replace(machine, devices=tuple(replace(g, used_by=held) for g in machine.devices))

    ready = prepare(str(model), Wishes(), engine)
    (before,) = ready.plan.footprint.devices
    monkeypatch.setattr(proving, "machine_with_users", seen_by_the_driver)
    with launch(ready, settings_of(ready), lambda _: None, on_pid=pids.append) as running:
        (card, ram) = running.accounts
    assert (card.model, card.context, card.compute) == (1000 * MIB, 300 * MIB, 700 * MIB)
    assert (card.planned_compute, ram.context) == (before.compute_bytes, 0)
    (remark,) = running.remarks
    assert "CUDA0 compute 700.0 MiB, planned" in remark
    assert remark.endswith("the next plan counts with it")
    assert remark in capsys.readouterr().err
    (after,) = prepare(str(model), Wishes(), engine).plan.footprint.devices
    assert (after.compute_bytes, after.overhead_bytes) == (700 * MIB, 110 * MIB)


def test_a_file_that_vanishes_or_changes_between_plan_and_start_is_one_clear_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "model.gguf"
    shutil.copy(smollm2(), model)
    ready = prepare(str(model), Wishes(context_tokens=512), "embedded")
    os.utime(model, ns=(1, 1))
    with pytest.raises(FileProblem, match=r"model\.gguf: the file has changed since the plan"):
        launch(ready, settings_of(ready), lambda _: None)
    model.unlink()
    with pytest.raises(FileProblem, match=r"model\.gguf: the file has gone since the plan"):
        launch(ready, settings_of(ready), lambda _: None)


def test_a_file_that_vanishes_while_the_engine_starts_is_named_as_the_cause(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    model = tmp_path / "model.gguf"
    shutil.copy(smollm2(), model)
    ready = prepare(str(model), Wishes(context_tokens=512), "embedded")
    with pytest.raises(FileProblem, match="has gone since the plan"):
        launch(ready, settings_of(ready), lambda _: None, on_pid=lambda _: model.unlink())


def test_what_starts_and_answers_showed_is_in_the_next_plan_and_a_damaged_record_is_one_note(
    tmp_path: Path,
) -> None:
    """The real engine, as a user has it: plan, two answers, plan."""
    ask = (
        "run",
        "smollm2",
        "Tell a long story.",
        "--max-tokens",
        "40",
        "--seed",
        "1",
        "--ctx",
        "2048",
    )

    def planned() -> Any:
        ended = hotset("plan", "smollm2", "--ctx", "2048", "--json", home=tmp_path)
        assert (ended.code, ended.err) == (0, ""), ended
        return facts(ended.out)

    def facts(text: str) -> Any:
        found = json.loads(text)
        del found["ram_available_bytes"]  # others use memory, too
        return found

    before = planned()
    first = json.loads(hotset(*ask, "--json", home=tmp_path).out)
    (ram,) = first["memory"]
    assert ram["device"] == "RAM"
    assert ram["context"] == ram["planned_context"] == before["footprint"]["cache_bytes"]
    assert hotset(*ask, home=tmp_path).code == 0
    after = planned()
    assert (before["from_answers"], after["from_answers"]) == (0, 2)
    assert after["footprint"]["compute_bytes"] == ram["compute"]
    old, new = before["decode_tokens_per_s"], after["decode_tokens_per_s"]
    assert new["high"] / new["likely"] < old["high"] / old["likely"]
    assert "from 2 runs on this machine" in hotset("plan", "smollm2", home=tmp_path).out
    elsewhere = hotset("plan", "smollm2", "--ram", "8GiB", "--json", home=tmp_path)
    assert json.loads(elsewhere.out)["from_answers"] == 0

    record = tmp_path / ".cache" / "hotset" / "starts.json"
    record.write_text("{ damaged")
    ended = hotset("plan", "smollm2", "--ctx", "2048", "--json", home=tmp_path)
    assert ended.code == 0
    assert len(ended.err_lines) == 1
    assert "starts.json: no record of starts and answers" in ended.err
    assert facts(ended.out) == before


def test_a_home_that_cannot_be_written_to_only_means_that_nothing_is_kept(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    env = environment(tmp_path, XDG_CACHE_HOME=str(tmp_path / "file"))
    words = ("run", "smollm2", "hello", "--max-tokens", "40", "--ctx", "512")
    ended = hotset(*words, home=tmp_path, env=env)
    assert ended.code == 0, ended
    assert "Traceback" not in ended.err


def test_a_model_that_is_gone_before_it_is_planned_is_refused_as_ever(tmp_path: Path) -> None:
    assert_refused(hotset("run", tmp_path / "no.gguf", "hello", home=tmp_path), 2, "no.gguf")
