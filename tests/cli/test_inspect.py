"""`hotset inspect`: the screen, the JSON and the exit code."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner, Result

from ggufkit import F64, Gguf, Tensor, chat_model, number, shard_set, text, write_shards
from hotset.cli.inspect import inspect
from hotset.core.errors import ConfigProblem, FileProblem
from hotset.core.units import format_bytes
from hotset.gguf.synth import write_tiny

app = typer.Typer()
app.command()(inspect)


def run(*arguments: str | Path) -> Result:
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


def screen(path: Path) -> str:
    result = run(path)
    assert result.exit_code == 0, result.output
    return result.output


def facts(path: Path) -> Any:
    result = run(path, "--json")
    assert result.exit_code == 0, result.output
    return json.loads(result.output)


def mixture(path: Path) -> Path:
    return write_tiny("qwen35moe-mtp", path)[0]


def test_the_screen_and_the_json_tell_the_same_figures(tmp_path: Path) -> None:
    path = mixture(tmp_path / "moe.gguf")
    shown, told = screen(path), facts(path)
    assert shown.startswith(f"{told['name']} · {told['architecture']} · {told['kind']} · ")
    assert f"{told['blocks']} and {told['mtp_blocks']} of an MTP head" in shown
    experts = told["experts"]
    assert f"{experts['count']} in {experts['blocks']} blocks, {experts['used']} used" in shown
    assert f"{told['context_tokens']:,} tokens" in shown
    for cache in told["kv_cache"]:
        assert f"{cache['f16_bytes_per_token']:,} bytes per token: {cache['kind']}" in shown
    assert format_bytes(told["recurrent_state_bytes_per_sequence"]) in shown
    for role, n_bytes in told["bytes_by_role"].items():
        words = [*role.split(), *format_bytes(n_bytes).split()]
        assert words in [line.split()[:-1] for line in shown.splitlines()]
    for name, n_bytes in told["bytes_by_type"].items():
        assert f"{name} {format_bytes(n_bytes)}" in shown
    assert f"{told['vocabulary_tokens']:,} tokens, with chat template" in shown


def test_columns_are_aligned(tmp_path: Path) -> None:
    lines = screen(mixture(tmp_path / "moe.gguf")).splitlines()
    table = lines[lines.index("bytes by role") + 1 : lines.index("bytes by block") - 1]
    assert len({line.index("%") for line in table}) == 1


def test_a_window_is_said_to_limit_the_cache(tmp_path: Path) -> None:
    (path,) = write_tiny("gpt-oss", tmp_path / "a.gguf")
    assert "(at most 128 tokens): sliding window, 2 blocks" in screen(path)


def test_a_dense_model_without_context_and_template_says_so(tmp_path: Path) -> None:
    file = chat_model().without_key("llama.context_length").without_key("tokenizer.chat_template")
    shown = screen(file.write(tmp_path / "a.gguf"))
    assert "none (dense)" in shown
    assert "not stated" in shown
    assert "3 tokens, without chat template" in shown
    assert "for all of it" not in shown


def test_a_shard_set_is_shown_once_with_its_number_of_files(tmp_path: Path) -> None:
    paths = write_shards(shard_set(chat_model(), 3), tmp_path)
    shown = screen(paths[1])
    assert "model-00001-of-00003.gguf, 3 shards, " in shown
    assert shown == screen(paths[0])


def test_a_projector_says_its_width_and_a_model_names_its_projector(tmp_path: Path) -> None:
    model = chat_model("gemma3").write(tmp_path / "model.gguf")
    projector = chat_model("clip").with_key("clip.vision.projection_dim", number("u32", 64))
    file = projector.with_key("clip.projector_type", text("gemma3"))
    path = file.without_key("tokenizer.ggml.model").write(tmp_path / "mmproj-F16.gguf")
    assert "projector  mmproj-F16.gguf" in screen(model)
    assert "puts out   64 elements per token" in screen(path)
    assert "tokenizer  none" in screen(path)


def test_a_vocabulary_alone_has_no_tensors(tmp_path: Path) -> None:
    assert "types      no tensors" in screen(chat_model().with_tensors().write(tmp_path / "v.gguf"))


def test_an_unusable_file_is_described_with_its_problem_and_ends_with_code_2(
    tmp_path: Path,
) -> None:
    file = chat_model().with_tensors(*chat_model().tensors, Tensor("blk.0.odd", (8,), F64))
    path = file.write(tmp_path / "a.gguf")
    for result in (run(path), run(path, "--json")):
        assert result.exit_code == 2
        assert "tensor 'blk.0.odd' has type F64, which the engine cannot compute" in result.output
    nameless = chat_model().without_key("general.architecture").write(path)
    assert "· no architecture · none ·" in run(nameless).output


def test_an_unknown_architecture_is_described_with_a_note(tmp_path: Path) -> None:
    shown = screen(chat_model("nextgen9").write(tmp_path / "a.gguf"))
    assert "nextgen9" in shown
    assert "\n  note       " in shown


@pytest.mark.parametrize("name", ["none.gguf", "page.gguf"])
def test_a_file_that_cannot_be_read_is_a_file_problem(tmp_path: Path, name: str) -> None:
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    assert isinstance(run(tmp_path / name).exception, FileProblem)


def test_a_directory_lists_names_sizes_kinds_and_reasons(tmp_path: Path) -> None:
    write_shards(shard_set(chat_model(), 2), tmp_path)
    (tmp_path / "page.gguf").write_bytes(b"<html>")
    lines = screen(tmp_path).splitlines()
    assert [line.split()[0] for line in lines] == ["model-00001-of-00002.gguf", "page.gguf"]
    assert lines[0].endswith("chat model       2 shards")
    assert "none" in lines[1]
    assert "a web page, not a GGUF file" in lines[1]
    assert lines[0].index("chat model") == lines[1].index("none")
    told = facts(tmp_path)
    assert [(entry["kind"], entry["shards"]) for entry in told["files"]] == [
        ("chat model", 2),
        ("none", 0),
    ]
    assert told["files"][0]["file_bytes"] == sum(p.stat().st_size for p in tmp_path.glob("model*"))


def test_a_directory_without_models_is_a_file_problem(tmp_path: Path) -> None:
    problem = run(tmp_path).exception
    assert isinstance(problem, FileProblem)
    assert "no .gguf file in this directory or below it" in problem.message


def many_blocks(kinds: str) -> Gguf:
    """One block per letter; blocks of the same letter are alike."""
    file = chat_model().with_key("llama.block_count", number("u32", len(kinds)))
    tensors = [t for t in file.tensors if not str(t.name).startswith("blk.")]
    for index, letter in enumerate(kinds):
        width = 64 if letter == "a" else 128
        tensors.append(Tensor(f"blk.{index}.ffn_norm.weight", (width,)))
    return file.with_tensors(*tensors)


@pytest.mark.parametrize(
    ("kinds", "expected"),
    [
        ("aaaaa", ["0-4"]),
        ("aaabbb", ["0-2", "3-5"]),
        ("ababab", ["0-4 every 2nd", "1-5 every 2nd"]),
        ("aabaabaab", ["0-1, 3-4, 6-7", "2-8 every 3rd"]),
        ("aaabaaab", ["0-2, 4-6", "3, 7"]),
        ("aaabaaabaaab", ["0-2, 4-6, 8-10", "3-11 every 4th"]),
        ("aabbabbabbabbaba", ["0-1, 4, 7, 10 and 2 more", "2-3, 5-6, 8-9, 11-12 and 1 more"]),
    ],
)
def test_equal_blocks_are_one_line_with_their_numbers_in_short(
    tmp_path: Path, kinds: str, expected: list[str]
) -> None:
    lines = screen(many_blocks(kinds).write(tmp_path / "a.gguf")).splitlines()
    shown = [line.split(": ")[0].split("blk ")[1] for line in lines if line.startswith("  blk ")]
    assert shown == expected


def test_the_demos_model_goes_by_its_name_and_nothing_is_no_name() -> None:
    assert "SmolLM2" in json.loads(run("smollm2", "--json").output)["files"][0]["path"]
    assert isinstance(run("").exception, ConfigProblem)


def test_names_from_the_file_cannot_control_the_terminal(tmp_path: Path) -> None:
    file = chat_model(name="evil\x1b[2J\nname").write(tmp_path / "a\x1bb.gguf")
    (tmp_path / "z.gguf").write_bytes(b"<html>")
    for shown in (screen(file), screen(tmp_path), run(file, "--json").output):
        assert "\x1b" not in shown


def test_bars_are_drawn_on_a_terminal_only(tmp_path: Path) -> None:
    path = mixture(tmp_path / "moe.gguf")
    program = "import sys; from hotset.cli.inspect import inspect as i; i(sys.argv[1])"
    command = [sys.executable, "-c", program, str(path)]
    plain = subprocess.run(command, capture_output=True, check=True, text=True).stdout
    ours, theirs = pty.openpty()
    with open(ours, "rb", buffering=0) as terminal:
        subprocess.run(command, stdout=theirs, check=True)
        os.close(theirs)
        shown = terminal.read(65536).decode()
    assert "█" in shown
    assert "█" not in plain
    assert [line.rstrip(" █\r") for line in shown.splitlines()] == plain.splitlines()
