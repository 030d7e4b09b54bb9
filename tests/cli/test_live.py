"""The line of figures below a text: seen while it comes, and without a trace afterwards."""

from __future__ import annotations

import io
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from clikit import environment, hotset, terminal
from hotset.cli.live import LiveLine
from hotset.cli.screen import harmless
from hotset.core.errors import EngineProblem
from hotset.store import find_native
from screenkit import Screen

FIGURES = "12 tokens · 3.4 tok/s · experts 91% from RAM · 1.1 GB read"
SIZE = (24, 80)
LITTLE_RAM = ("--ram", "300MiB", "--ctx", "4096", "--threads", "1")
# Some seconds: the line comes after the first half, and then four times a second.
LONG = ("--max-tokens", "2500", "--temp", "0")

# Letters, what terminals draw in one or two cells, and what they draw in none to two.
_SURE = st.sampled_from("abc xyz\n\t漢字かな한éж")
_UNSURE = st.sampled_from("—“”…·ö\u0301\u200d\ufe0f🙂👩☎ﷺนे")
_PIECES = st.lists(st.text(_SURE | _UNSURE | st.just("a"), max_size=60), max_size=25)


class Tty(io.StringIO):
    """A stream to a screen."""

    encoding = "utf-8"
    errors = "strict"

    def __init__(self, screen: Screen) -> None:
        super().__init__()
        self.screen = screen

    def isatty(self) -> bool:
        return True

    def fileno(self) -> int:
        return 99

    def write(self, text: str) -> int:
        self.screen.send(text)
        return len(text)


def cells_of(unsure: int) -> dict[str, int]:
    sure = (
        dict.fromkeys("漢字かな한", 2) | dict.fromkeys("éжö", 1) | dict.fromkeys("\u0301\u200d", 0)
    )
    return dict.fromkeys("—“”…·🙂👩☎ﷺนे\ufe0f", unsure) | sure


@given(
    pieces=_PIECES,
    columns=st.integers(40, 60),
    rows=st.integers(4, 9),
    ambiguous=st.sampled_from([1, 2]),
    keeps_wrap=st.booleans(),
    shows=st.lists(st.booleans(), min_size=25, max_size=25),
)
def test_a_text_with_the_line_looks_as_it_does_without(
    pieces: list[str],
    columns: int,
    rows: int,
    ambiguous: int,
    keeps_wrap: bool,
    shows: list[bool],
) -> None:
    """On terminals that draw the same characters differently, whatever the moments of drawing."""
    widths = cells_of(ambiguous)
    plain, drawn = (
        Screen(rows, columns, cells=lambda char: widths.get(char, 1), keeps_wrap=keeps_wrap)
        for _ in range(2)
    )
    stream = Tty(drawn)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("sys.stderr", stream)
        patch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, rows)))
        patch.setenv("TERM", "xterm")
        patch.delenv("NO_COLOR", raising=False)
        with LiveLine(lambda: FIGURES, after_s=3600) as live:
            for piece, is_shown in zip(pieces, shows, strict=False):
                plain.send(piece)
                live.print(piece, stream)
                if is_shown:
                    live.refresh()
                assert drawn.place == plain.place
    assert drawn.text == plain.text
    assert drawn.place == plain.place


def on_screen(
    monkeypatch: pytest.MonkeyPatch, *, columns: int = 80, rows: int = 24, **env: str
) -> Screen:
    screen = Screen(rows, columns)
    monkeypatch.setattr("sys.stderr", Tty(screen))
    monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((columns, rows)))
    monkeypatch.delenv("NO_COLOR", raising=False)
    for name, value in ({"TERM": "xterm"} | env).items():
        monkeypatch.setenv(name, value)
    return screen


def test_the_line_is_below_the_text_while_it_comes(monkeypatch: pytest.MonkeyPatch) -> None:
    screen = on_screen(monkeypatch)
    figures = ["reading", "writing", ""]
    with LiveLine(lambda: figures[0], after_s=3600) as live:
        live.refresh()
        assert screen.text == "\nreading"
        live.print("The sky", Tty(screen))
        live.refresh()
        assert screen.text == "The sky\nreading"
        figures.pop(0)
        live.refresh()
        assert screen.text == "The sky\nwriting"
        live.print(" is\nblue", Tty(screen))
        assert screen.text == "The sky is\nblue"
        live.refresh()
        assert screen.text == "The sky is\nblue\nwriting"
        figures.pop(0)
        live.refresh()
        assert screen.text == "The sky is\nblue"
    assert screen.text == "The sky is\nblue"


def test_the_line_is_cut_to_the_width_and_hides_what_would_drive_the_terminal(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = on_screen(monkeypatch, columns=40)
    with LiveLine(lambda: "\x1b[31m·" * 50, after_s=3600) as live:
        live.refresh()
        assert len(screen.text.split("\n")) == 2
        assert "31m·[31m·" in screen.text


@pytest.mark.parametrize(
    "wish",
    [
        {"columns": 39},
        {"rows": 3},
        {"TERM": "dumb"},
        {"TERM": ""},
        {"NO_COLOR": "1"},
    ],
    ids=str,
)
def test_where_the_line_could_do_harm_there_is_none(
    monkeypatch: pytest.MonkeyPatch, wish: dict[str, object]
) -> None:
    screen = on_screen(monkeypatch, **wish)  # type: ignore[arg-type]  # sizes and variables
    with LiveLine(lambda: FIGURES, after_s=3600) as live:
        live.refresh()
        live.print("text", Tty(screen))
        live.refresh()
        assert screen.text == "text"


def test_a_terminal_that_becomes_narrow_loses_the_line_and_gets_it_back(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = on_screen(monkeypatch)
    with LiveLine(lambda: FIGURES, after_s=3600) as live:
        live.print("text", Tty(screen))
        live.refresh()
        assert FIGURES in screen.text
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((20, 24)))
        live.refresh()
        assert screen.text == "text"
        monkeypatch.setattr(os, "get_terminal_size", lambda _: os.terminal_size((80, 24)))
        live.refresh()
        assert screen.text == "text"  # the place of the cursor is not sure
        live.print("\n", Tty(screen))
        live.refresh()
        assert screen.text == f"text\n\n{FIGURES}"


def test_counters_that_cannot_be_read_take_the_line_away_and_nothing_else(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    screen = on_screen(monkeypatch)

    def describe() -> str:
        raise EngineProblem("gone")

    with LiveLine(describe, after_s=3600) as live:
        live.refresh()
        live.print("text", Tty(screen))
    assert screen.text == "text"


def on_paper(sent: str) -> str:
    """What is left to see of all that was sent to a terminal since the engine is ready."""
    screen = Screen(*SIZE)
    screen.send(sent[sent.index("ready in ") :].replace("\r\n", "\n"))
    return screen.text


@pytest.fixture(name="needs_native")
def _needs_native() -> None:
    """A test that cannot be where there was no compiler."""
    try:
        find_native()
    except EngineProblem as problem:
        pytest.skip(problem.message)


@pytest.mark.usefixtures("needs_native")
def test_run_shows_hits_bytes_and_speed_while_it_answers_and_only_the_answer_afterwards(
    tmp_path: Path, moe: Path
) -> None:
    words = ("run", moe, "hello " * 200, *LITTLE_RAM, *LONG)
    piped = hotset(*words, home=tmp_path)
    assert piped.code == 0, piped.err
    with terminal(*words, home=tmp_path, size=SIZE) as shown:
        shown.await_text("ready in ")
        shown.await_text("\n")
        shown.await_text("tok/s · experts ")
        shown.await_text("% from RAM · ")
        shown.await_text(" GB read")
        assert shown.await_end() == 0
    left, answer = on_paper(shown.text), Screen(*SIZE)
    answer.send(harmless(piped.out))
    assert f"\n{answer.text}\n[cut off" in left
    assert left.count("% from RAM") == 1  # in the summary
    assert "reading the prompt" not in left
    assert left.endswith(" in use]")


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("more", [{"NO_COLOR": "1"}, {"TERM": "dumb"}], ids=str)
def test_run_on_a_plain_terminal_prints_the_answer_and_the_summary_only(
    tmp_path: Path, moe: Path, more: dict[str, str]
) -> None:
    words = ("run", moe, "hello", *LITTLE_RAM, "--max-tokens", "500")
    env = environment(tmp_path, **more)
    with terminal(*words, home=tmp_path, size=SIZE, env=env) as shown:
        assert shown.await_end() == 0
    assert "\x1b7" not in shown.text
    assert shown.text.count("% from RAM") == 1


@pytest.mark.usefixtures("needs_native")
def test_ctrl_c_takes_the_line_away(tmp_path: Path, moe: Path) -> None:
    words = ("run", moe, "hello", *LITTLE_RAM)
    with terminal(*words, home=tmp_path, size=SIZE) as shown:
        shown.await_text("tok/s · experts ")
        shown.type(b"\x03")
        assert shown.await_end() == 130
    left = on_paper(shown.text)
    assert "\n[stopped · " in left
    assert left.count("% from RAM") == 1


@pytest.mark.usefixtures("needs_native")
def test_serve_shows_on_a_terminal_what_the_experts_do(tmp_path: Path, moe: Path) -> None:
    import httpx

    words = ("serve", moe, *LITTLE_RAM, "--port", "0")
    with terminal(*words, home=tmp_path, size=SIZE) as shown:
        shown.await_text("http://")
        url = shown.await_text("/v1 ").removesuffix("/v1 ")
        body = {"messages": [{"role": "user", "content": "hello"}], "max_tokens": 100}
        asked = httpx.post(f"http://{url}/v1/chat/completions", json=body, timeout=60)
        assert asked.status_code == 200
        shown.await_text("% from RAM")
        assert shown.await_end(b"\x03") == 0
    assert "from RAM" not in on_paper(shown.text)
