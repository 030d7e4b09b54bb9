"""`hotset doctor`: what it finds, in words and as JSON, and how a fault shows."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest

from clikit import Ended, environment, hotset
from enginekit import can_run_llama_server, llama_server
from hotset import __version__
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine

LEVELS = {"ok", "warning", "problem"}


def with_program(folder: Path, script: str) -> dict[str, str]:
    """An environment whose PATH begins with a `llama-server` of this content."""
    programs = folder / "bin"
    programs.mkdir()
    (programs / "llama-server").write_text(script)
    (programs / "llama-server").chmod(0o755)
    return environment(folder, PATH=f"{programs}:/usr/bin:/bin")


def findings(ended: Ended) -> list[tuple[str, str, str]]:
    """Level, subject and text of each line."""
    found = []
    for line in ended.out.splitlines():
        level, _, rest = line.partition(" ")
        assert level in LEVELS, line
        subject, colon, text = rest.strip().partition(": ")
        assert colon, line
        found.append((level, subject, text))
    return found


def test_each_line_has_a_level_and_whatever_is_not_ok_a_remedy(tmp_path: Path) -> None:
    ended = hotset("doctor", home=tmp_path)
    lines = findings(ended)
    assert (ended.code, ended.err) == (0, "")
    assert lines[0][:2] == ("ok", "hotset")
    assert lines[0][2].startswith(__version__)
    subjects = [subject for _, subject, _ in lines]
    assert {"expert store", "engine embedded", "processor", "memory"} < set(subjects)
    assert f"disk of {tmp_path}" in subjects
    texts = {subject: text for _, subject, text in lines}
    build = EmbeddedEngine().build
    assert texts["engine embedded"].startswith(f"{build} · ")
    assert "has --moe-cache-mib · plugin API 3" in texts["engine embedded"]
    assert "none on the PATH" in texts["engine llama-server"]
    assert all((" -> " in text) == (level != "ok") for level, _, text in lines)


def test_json_tells_the_same_findings_with_their_facts(tmp_path: Path) -> None:
    told = findings(hotset("doctor", tmp_path, home=tmp_path))
    ended = hotset("doctor", "--json", tmp_path, home=tmp_path)
    facts = json.loads(ended.out)
    assert (ended.code, ended.err) == (0, "")
    assert [(f["level"], f["subject"]) for f in facts] == [told_[:2] for told_ in told]
    by_subject = {f["subject"]: f["facts"] for f in facts}
    assert by_subject["memory"]["total_bytes"] >= by_subject["memory"]["available_bytes"] > 0
    assert by_subject["engine embedded"]["has_moe_cache"] is True
    assert by_subject[f"disk of {tmp_path}"]["total_bytes"] > 0


@pytest.mark.skipif(not can_run_llama_server(), reason="this build needs AVX-512")
def test_a_llama_server_on_the_path_is_asked_what_it_can_do(tmp_path: Path) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    (programs / "llama-server").symlink_to(llama_server())
    env = environment(tmp_path, PATH=f"{programs}:/usr/bin:/bin")
    lines = findings(hotset("doctor", home=tmp_path, env=env))
    level, _, text = next(line for line in lines if line[1] == f"engine {programs}/llama-server")
    assert level == "ok"
    assert text.startswith(LlamaServerEngine(llama_server()).build)
    assert "no --moe-cache-mib · plugin API 2" in text


@pytest.mark.parametrize(
    ("script", "reason"),
    [
        ("#!/bin/sh\necho 'error while loading \x1b[31mlibfoo.so' >&2\nexit 127\n", "libfoo.so"),
        ("#!/bin/sh\nkill -11 $$\n", "status -11"),
        ("not a program at all", "Exec format error"),
        ("#!/nowhere/interpreter\n", "No such file"),
    ],
)
def test_a_llama_server_that_does_not_run_is_a_problem_with_its_reason(
    tmp_path: Path, script: str, reason: str
) -> None:
    ended = hotset("doctor", home=tmp_path, env=with_program(tmp_path, script))
    (problem,) = (line for line in findings(ended) if line[0] == "problem")
    assert ended.code == 3
    assert problem[1] == f"engine {tmp_path}/bin/llama-server"
    assert reason in problem[2]
    assert " -> " in problem[2]
    assert "\x1b" not in ended.out


def test_a_folder_that_is_not_there_is_a_problem_among_the_other_findings(tmp_path: Path) -> None:
    missing = tmp_path / "missing"
    ended = hotset("doctor", tmp_path, missing, home=tmp_path)
    lines = findings(ended)
    assert ended.code == 3
    assert [line[0] for line in lines if line[1] == f"disk of {tmp_path}"] != ["problem"]
    assert [line[:2] for line in lines if line[0] == "problem"] == [
        ("problem", f"disk of {missing}")
    ]
    as_json = hotset("doctor", "--json", missing, home=tmp_path)
    assert as_json.code == 3
    assert json.loads(as_json.out)[-1]["level"] == "problem"


def test_a_folder_of_any_name_is_looked_at(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/new\nline \x1b[31m\xff"
    os.mkdir(name)
    ended = hotset("doctor", name, home=tmp_path)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert "Traceback" not in ended.err


def test_whatever_reads_only_the_first_line_is_no_failure(tmp_path: Path) -> None:
    for option in ("", "--json"):
        through = f'"$@" {option} | head -n 1; exec true'
        ended = hotset("doctor", home=tmp_path, through=through)
        assert ended.out.count("\n") == 1
        assert ended.err == ""
