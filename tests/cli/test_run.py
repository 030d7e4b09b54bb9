"""`hotset run` in pipes and scripts: what is asked, what comes out, what is refused."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from clikit import (
    COMMAND,
    RECORD,
    Ended,
    assert_refused,
    background,
    environment,
    files_below,
    hotset,
)
from enginekit import smollm2
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth.models import write_tiny

ECHO = "{% for m in messages %}{{ m.role }}: {{ m.content }}\n{% endfor %}"


@pytest.fixture(name="tiny", scope="module")
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny("qwen3moe", tmp_path_factory.mktemp("tiny") / "tiny.gguf")[0]


def answered(ended: Ended) -> dict[str, object]:
    """The JSON object that is all of stdout."""
    assert ended.code == 0, ended
    assert ended.out.count("\n") == 1
    answer: dict[str, object] = json.loads(ended.out)
    return answer


def run_json(home: Path, *args: str | Path, stdin: bytes | None = None) -> dict[str, object]:
    words = ("run", "--json", "--threads", "1", "--max-tokens", "6", *args)
    return answered(hotset(*words, home=home, stdin=stdin))


def num_prompt_tokens(answer: dict[str, object]) -> int:
    tokens = answer["prompt_tokens"]
    assert isinstance(tokens, int)
    return tokens


def test_a_question_is_answered_on_stdout_and_all_else_is_on_stderr(tmp_path: Path) -> None:
    asked = hotset(
        *("run", "smollm2", "hello", "--temp", "0", "--max-tokens", "20", "--threads", "1"),
        home=tmp_path,
    )
    assert (asked.code, asked.out) == (0, "Hello! How can I assist you today?\n")
    notes = asked.err_lines
    assert notes[0].startswith("SmolLM2-135M-Instruct")
    assert notes[1].startswith("context 8,192 · KV f16 · 1 slot")
    assert any(line.startswith("ready in ") for line in notes)
    assert " tok/s · prompt " in notes[-1]
    assert files_below(tmp_path) == RECORD


def test_json_is_one_object_with_the_figures_of_the_answer(tmp_path: Path, tiny: Path) -> None:
    answer = run_json(tmp_path, tiny, "hello", "--ctx", "512", "--kv", "q8_0", "--temp", "0")
    assert set(answer) == {
        *("model", "answer", "reasoning", "finish_reason", "prompt_tokens", "answer_tokens"),
        *("prompt_tokens_per_s", "answer_tokens_per_s", "context_tokens", "kv_type", "ready_s"),
        *("resident_bytes", "memory", "remarks"),
    }
    assert answer["model"] == "tiny"
    assert answer["answer"]
    assert (answer["finish_reason"], answer["answer_tokens"]) == ("length", 6)
    assert (answer["context_tokens"], answer["kv_type"]) == (512, "q8_0")
    for figure in ("prompt_tokens", "ready_s", "resident_bytes", "answer_tokens_per_s"):
        value = answer[figure]
        assert isinstance(value, int | float)
        assert value > 0


def test_piped_text_alone_is_the_question_and_after_a_prompt_it_is_added(
    tmp_path: Path, tiny: Path
) -> None:
    """With a prompt, both are one message: the same as if they had been typed together."""
    text = "a longer text that is read from a pipe, ünï ✓"
    together, piped, typed, prompt = (
        run_json(tmp_path, tiny, "--temp", "0", *args, stdin=stdin)
        for args, stdin in (
            (("short question",), f"{text}\n".encode()),
            ((), f"\n{text}\n".encode()),
            ((f"short question\n\n{text}",), None),
            (("short question",), b"  \n"),
        )
    )
    assert together["answer"] == typed["answer"]
    assert together["prompt_tokens"] == typed["prompt_tokens"]
    sizes = [num_prompt_tokens(answer) for answer in (prompt, piped, together)]
    assert sizes == sorted(set(sizes))


def test_the_same_seed_or_temperature_0_gives_the_same_answer_twice(
    tmp_path: Path, tiny: Path
) -> None:
    for options in (("--temp", "0"), ("--temp", "2", "--seed", "7")):
        first, second = (run_json(tmp_path, tiny, "hello", *options) for _ in range(2))
        assert first["answer"] == second["answer"]
    other = run_json(tmp_path, tiny, "hello", "--temp", "2", "--seed", "8")
    assert other["answer"] != first["answer"]


def test_a_system_message_and_a_template_reach_the_model(tmp_path: Path, tiny: Path) -> None:
    template = tmp_path / "echo.jinja"
    template.write_text(ECHO)
    with_system = ("--temp", "0", "--system", "Answer in rhymes.", "--chat-template", template)
    plain = "{{ messages[0].content }}"
    (tmp_path / "plain.jinja").write_text(plain)
    whole = "system: Answer in rhymes.\nuser: hello\n"
    asked = run_json(tmp_path, tiny, "hello", *with_system)
    same = run_json(
        tmp_path, tiny, whole, "--temp", "0", "--chat-template", tmp_path / "plain.jinja"
    )
    assert asked["prompt_tokens"] == same["prompt_tokens"]
    assert asked["answer"] == same["answer"]


def test_a_model_is_named_by_its_folder_too(tmp_path: Path, tiny: Path) -> None:
    assert run_json(tmp_path, tiny.parent, "hello")["model"] == "tiny"


def test_a_conversation_beyond_the_context_is_refused_with_both_numbers(
    tmp_path: Path, tiny: Path
) -> None:
    asked = hotset(
        "run", tiny, "--json", "--ctx", "256", "--threads", "1", home=tmp_path, stdin=b"word " * 999
    )
    assert (asked.code, asked.out) == (1, "")
    assert asked.err_lines[-1].startswith("hotset: the conversation has ")
    assert "the context 256; give a larger --ctx" in asked.err_lines[-1]


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        ((), "nothing to ask"),
        (("--json",), "nothing to ask"),
        (("  ",), "nothing to ask"),
        (("hi", "--ctx", "0"), "--ctx is 0"),
        (("hi", "--ctx", "1"), "--ctx is 1"),
        (("hi", "--ctx", "many"), "--ctx"),
        (("hi", "--temp", "-1"), "--temp is -1"),
        (("hi", "--temp", "nan"), "--temp is nan"),
        (("hi", "--kv", "q9"), "choose one of f32, f16"),
        (("hi", "--max-tokens", "0"), "--max-tokens is 0"),
        (("hi", "--max-tokens", "9999999999"), "--max-tokens is 9999999999"),
        (("hi", "--seed", "-1"), "--seed is -1"),
        (("hi", "--seed", "4294967295"), "--seed is 4294967295"),
        (("hi", "--threads", "0"), "--threads is 0"),
        (("hi", "--threads", "100000"), "--threads is 100000"),
        (("hi", "--bogus"), "--bogus"),
        (("hi", "there"), "unexpected extra argument"),
        ((b"\xff",), "PROMPT is no text in UTF-8"),
        (("hi", "--system", b"\xff"), "--system is no text in UTF-8"),
    ],
    ids=lambda value: " ".join(map(str, value)) if isinstance(value, tuple) else "",
)
def test_what_cannot_be_meant_is_refused_in_one_line(
    tmp_path: Path, words: tuple[str | bytes, ...], reason: str
) -> None:
    assert_refused(hotset("run", "smollm2", *words, home=tmp_path), 4, reason)


@pytest.mark.parametrize("piped", [b"caf\xe9", "über".encode("utf-16"), b"\xed\xb3\xa9"])
@pytest.mark.parametrize("encoding", ["utf-8:strict", "utf-8:surrogateescape", "latin-1"])
def test_piped_bytes_that_are_no_utf_8_are_refused_whatever_the_locale(
    tmp_path: Path, piped: bytes, encoding: str
) -> None:
    env = environment(tmp_path, PYTHONIOENCODING=encoding)
    refused = hotset("run", "smollm2", "sum up", home=tmp_path, stdin=piped, env=env)
    assert_refused(refused, 4, "the piped input is no text in UTF-8")


def test_a_context_that_no_machine_has_room_for_names_the_ways_out(tmp_path: Path) -> None:
    refused = hotset("run", "smollm2", "hi", "--ctx", "2000000000", home=tmp_path)
    assert_refused(refused, 3, "of RAM", "--ctx 8192 fits")


def test_an_answer_goes_on_where_the_terminal_lacks_a_character(tmp_path: Path) -> None:
    template = tmp_path / "repeat.jinja"
    template.write_text("ü ü ü ü ü ü ü ü ü ü ü ü ü ü ü ü")
    env = environment(tmp_path, PYTHONIOENCODING="ascii:strict")
    words = ("run", "smollm2", "-", "--temp", "0", "--max-tokens", "4", "--threads", "1")
    asked = hotset(*words, "--chat-template", template, home=tmp_path, env=env)
    assert asked.code == 0
    assert r"\xfc" in asked.out


@pytest.mark.parametrize(
    ("through", "has_answer", "has_notes"),
    [
        ('exec "$@" <&-', True, True),
        ('exec "$@" >&-', False, True),
        ('exec "$@" 2>&-', True, False),
        ('unset HOME; exec "$@"', True, True),
        ('HOME=/proc/nowhere; cd /; exec "$@"', True, True),
    ],
)
def test_closed_streams_and_homes_that_are_none_do_no_harm(
    tmp_path: Path, tiny: Path, through: str, has_answer: bool, has_notes: bool
) -> None:
    words = ("run", tiny, "hi", "--max-tokens", "3", "--threads", "1", "--temp", "0")
    asked = hotset(*words, home=tmp_path, through=through)
    assert asked.code == 0, asked
    assert bool(asked.out) is has_answer
    assert "synthetic" not in asked.out  # no note strays to stdout
    assert bool(asked.err) is has_notes
    assert "Traceback" not in asked.err


def test_a_reader_that_leaves_early_ends_the_answer_quietly(tmp_path: Path, tiny: Path) -> None:
    with background("run", tiny, "go on", "--ctx", "60000", "--threads", "1", home=tmp_path) as run:
        run.await_out()
        assert run.process.stdout is not None
        os.close(os.dup(run.process.stdout.fileno()))
        run.process.stdout.close()
        assert run.process.wait(60) == 0
        assert run.process.stderr is not None
        rest = run.process.stderr.read().decode()
    assert "Traceback" not in rest
    assert "hotset:" not in rest


def test_a_full_disk_behind_stdout_is_a_machine_problem(tmp_path: Path, tiny: Path) -> None:
    words = ("run", tiny, "hi", "--max-tokens", "3", "--threads", "1")
    for more in ((), ("--json",)):
        asked = hotset(*words, *more, home=tmp_path, through='exec "$@" >/dev/full')
        assert asked.code == 3
        assert asked.err_lines[-1].startswith("hotset: the output cannot be written: No space")


@pytest.mark.parametrize("name", [b"new\nline \x1b[31m.gguf", "日本 語.gguf".encode(), b"--ctx"])
def test_a_model_may_have_any_name_that_is_text(tmp_path: Path, tiny: Path, name: bytes) -> None:
    path = os.fsencode(tmp_path) + b"/" + name
    os.link(tiny, path)
    words = ("run", "--json", "--max-tokens", "2", "--threads", "1", "--", path, "hi")
    asked = hotset(*words, home=tmp_path)
    assert answered(asked)["answer_tokens"] == 2
    assert "\x1b" not in asked.err


def test_a_name_that_is_no_text_is_refused_before_the_engine_sees_it(
    tmp_path: Path, tiny: Path
) -> None:
    path = os.fsencode(tmp_path) + b"/bad\xff.gguf"
    os.link(tiny, path)
    assert_refused(hotset("run", path, "hi", home=tmp_path), 2, "not UTF-8; rename")


def test_a_program_as_engine_is_looked_for_and_checked(tmp_path: Path, tiny: Path) -> None:
    (tmp_path / "plain.txt").touch()
    for engine, reason in (
        ("llama-server", "there is none on the PATH"),
        ("~/nowhere/llama-server", f"{tmp_path}/nowhere/llama-server: there is no such file"),
        ("~nobody-of-that-name/x", "there is no such file"),
        ("~/plain.txt", "not executable"),
    ):
        refused = hotset("run", tiny, "hi", "--engine", engine, home=tmp_path)
        assert (refused.code, refused.out) == (5, "")
        assert refused.err_lines[-1].startswith("hotset: engine ")
        assert reason in refused.err_lines[-1]


def test_a_template_that_cannot_be_used_says_so(tmp_path: Path, tiny: Path) -> None:
    for content, code, reason in (
        (None, 2, "cannot be read: No such file"),
        (b"\xff\xfe", 2, "not a text in UTF-8"),
        (b"{% if %}", 2, "template"),
        (b"", 4, "chat_template is empty"),
        (b"x" * (5 << 20), 2, "larger than 4.0 MiB"),
    ):
        path = tmp_path / "template.jinja"
        path.unlink(missing_ok=True)
        if content is not None:
            path.write_bytes(content)
        refused = hotset("run", tiny, "hi", "--chat-template", path, home=tmp_path)
        assert (refused.code, refused.out) == (code, "")
        assert reason in refused.err_lines[-1]
        assert refused.err_lines[-1].startswith("hotset: ")


def test_a_large_piped_text_is_counted_and_refused(tmp_path: Path, tiny: Path) -> None:
    asked = hotset("run", tiny, "--threads", "1", home=tmp_path, stdin=b"word\0\n" * 200_000)
    assert (asked.code, asked.out) == (1, "")
    assert "the context 2048" in asked.err_lines[-1]


def test_the_demo_model_is_the_one_that_its_name_finds() -> None:
    """From a checkout's own Python, in a folder without a file of that name."""
    done = subprocess.run(
        [*COMMAND, "inspect", "--json", smollm2()], capture_output=True, check=True, cwd="/"
    )
    assert json.loads(done.stdout)["name"] == model_spec(open_model(smollm2())).name
