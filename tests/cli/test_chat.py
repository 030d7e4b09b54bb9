"""A conversation on a terminal, its keys, and the signals that end the command."""

from __future__ import annotations

import signal
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clikit import background, environment, terminal
from hotset.cli.screen import harmless
from hotset.gguf.synth.models import write_tiny

# The tiny model never says that it is done: an answer lasts as long as the context, a minute.
ENDLESS = ("--ctx", "60000", "--threads", "1")
SHORT = ("--max-tokens", "4", "--threads", "1", "--temp", "0")


@pytest.fixture(name="tiny", scope="module")
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny("qwen3moe", tmp_path_factory.mktemp("tiny") / "tiny.gguf")[0]


def test_a_conversation_remembers_forgets_and_leaves_with_bye(tmp_path: Path, tiny: Path) -> None:
    """The template makes the answer depend on the number of messages, and on nothing else."""
    template = tmp_path / "count.jinja"
    template.write_text("{{ messages | length }}")
    answers = []
    with terminal("run", tiny, *SHORT, "--chat-template", template, home=tmp_path) as screen:
        screen.await_text("/bye leaves")
        for line in ("hello", "hello", "/clear", "", "hello"):
            screen.await_text("\n> ")
            screen.type(f"{line}\n")
            if line == "hello":
                answers.append(screen.await_text("[cut off"))
            elif line:
                screen.await_text("starting anew")
        screen.await_text("\n> ")
        screen.type("/frobnicate now\n")
        screen.await_text("unknown command /frobnicate; there are /clear and /bye")
        screen.type("/bye\n")
        assert screen.await_end() == 0
    first, second, after_clear = answers
    assert first == after_clear != second


@pytest.mark.parametrize("errors", ["strict", "surrogateescape"])
def test_keys_that_are_no_text_cost_a_line_and_not_the_conversation(
    tmp_path: Path, tiny: Path, errors: str
) -> None:
    env = environment(tmp_path, PYTHONIOENCODING=f"utf-8:{errors}")
    with terminal("run", tiny, *SHORT, home=tmp_path, env=env) as screen:
        screen.await_text("\n> ")
        screen.type(b"\xff\xfe\n")
        screen.await_text("this line is no text in UTF-8")
        screen.await_text("\n> ")
        screen.type("ünï\n")
        screen.await_text(" tok/s")
        screen.await_text("\n> ")
        screen.type(b"\x04")
        assert screen.await_end() == 0


def test_a_question_that_is_too_long_costs_a_line_and_not_the_conversation(
    tmp_path: Path, tiny: Path
) -> None:
    with terminal("run", tiny, *SHORT, "--ctx", "256", home=tmp_path) as screen:
        for _ in range(2):
            screen.await_text("\n> ")
            screen.type("word " * 600 + "\n")
            screen.await_text("tokens, the context 256; give a larger --ctx")
        screen.await_text("\n> ")
        screen.type("hi\n")
        screen.await_text(" tok/s")
        screen.type("/bye\n")
        assert screen.await_end() == 0


def test_ctrl_c_stops_the_answer_first_and_the_program_second(tmp_path: Path, tiny: Path) -> None:
    with terminal("run", tiny, *ENDLESS, home=tmp_path) as screen:
        for _ in range(2):
            screen.await_text("\n> ")
            screen.type("go on\n")
            screen.await_text("go on\r\n")
            screen.await_more()
            screen.type(b"\x03")
            screen.await_text("[stopped · ")
        screen.await_text("\n> ")
        assert screen.await_end(b"\x03") == 0


def test_ctrl_c_in_a_single_answer_ends_the_program_with_130(tmp_path: Path, tiny: Path) -> None:
    with terminal("run", tiny, "go on", *ENDLESS, home=tmp_path) as screen:
        screen.await_text("ready in ")
        screen.await_text("\n")
        screen.await_more()
        screen.type(b"\x03")
        assert screen.await_end() == 130
        assert "[stopped · " in screen.text
        assert "Traceback" not in screen.text


@pytest.mark.parametrize("_attempt", range(3))
def test_ctrl_c_while_the_engine_starts_gives_the_terminal_back(
    tmp_path: Path, tiny: Path, _attempt: int
) -> None:
    with terminal("run", tiny, home=tmp_path) as screen:
        screen.await_text("\x1b[?25l")  # the progress line hides the cursor
        screen.type(b"\x03")
        assert screen.await_end() == 130
        assert "Traceback" not in screen.text
        assert screen.text.rindex("\x1b[?25h") > screen.text.rindex("\x1b[?25l")


def test_the_loss_of_the_engine_ends_the_conversation_as_an_engine_problem(
    tmp_path: Path, tiny: Path
) -> None:
    import psutil

    with terminal("run", tiny, *ENDLESS, home=tmp_path) as screen:
        screen.await_text("\n> ")
        screen.type("go on\n")
        screen.await_text("go on\r\n")
        screen.await_more()
        (guard,) = psutil.Process(screen.process.pid).children()
        (engine,) = guard.children()
        engine.kill()
        assert screen.await_end() == 5
        assert "hotset: tiny: the engine was killed by signal 9" in screen.text


def test_answers_alone_go_to_a_file_behind_stdout(tmp_path: Path, tiny: Path) -> None:
    """A terminal for the hands, a file for the answer, as with `hotset run m hi > file`."""
    path = tmp_path / "answer.txt"
    with path.open("wb") as file:
        words = ("run", tiny, "hi", *SHORT)
        with terminal(*words, home=tmp_path, stdout=file.fileno()) as screen:
            assert screen.await_end() == 0
            assert "ready in " in screen.text
    assert path.read_text().strip()
    assert "ready in" not in path.read_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
@pytest.mark.parametrize("moment", ["RAM ", "loading: ", "ready in "])
def test_a_polite_signal_at_any_moment_ends_everything(
    tmp_path: Path, tiny: Path, number: signal.Signals, moment: str
) -> None:
    # The tiny one is there before there is anything to report of its loading.
    model = "smollm2" if moment == "loading: " else tiny
    with background("run", model, "go on", *ENDLESS, home=tmp_path) as run:
        run.await_note(moment)
        run.send(number)
        ended = run.end()
        assert ended.code == 128 + number, ended
        assert "Traceback" not in ended.err


def test_a_signal_in_the_middle_of_an_answer_ends_everything(tmp_path: Path, tiny: Path) -> None:
    for number in (signal.SIGTERM, signal.SIGHUP):
        with background("run", tiny, "go on", *ENDLESS, home=tmp_path) as run:
            run.await_out()
            run.send(number)
            assert run.end().code == 128 + number


def test_a_terminal_that_is_closed_ends_the_conversation(tmp_path: Path, tiny: Path) -> None:
    with terminal("run", tiny, *ENDLESS, home=tmp_path) as screen:
        screen.await_text("\n> ")
        # The end of the input and the signal come together; either may be seen first.
        assert screen.hang_up() in (0, 128 + signal.SIGHUP)


@given(st.text(st.characters() | st.sampled_from("\x1b\x07\x9b\r\n\t[31m")))
def test_text_of_a_model_cannot_drive_the_terminal(text: str) -> None:
    """What is printable, and the layout, stays; whatever a terminal would obey is gone."""
    shown = harmless(text)
    assert harmless(shown) == shown
    assert all(c in "\n\t" or not ("\0" <= c < " " or "\x7f" <= c < "\xa0") for c in shown)
    assert shown.encode("utf-8") or not shown
    assert [c for c in shown if c.isprintable()] == [c for c in text if c.isprintable()]
    assert shown.count("\n") == text.count("\n")
