"""The expert store when things go wrong: too little memory, kills, files that change."""

from __future__ import annotations

import os
import re
import signal
import time
from pathlib import Path

import psutil
import pytest

from clikit import Background, Ended, assert_refused, background, environment, hotset, terminal
from hotset.core.units import MIB
from hotset.gguf.reader import read_header
from hotset.gguf.synth import Dims, Mix, write_sized
from hotset.store import find_native

pytestmark = pytest.mark.usefixtures("needs_native")

DIMS = Dims(
    n_layers=4,
    n_embd=512,
    n_ff_exp=384,
    n_experts=128,
    n_used=8,
    n_vocab=2000,
    context_tokens=65536,
)
# The experts' 180 MiB do not fit beside what the engine needs for itself.
WITH_STORE = ("--ctx", "8192", "--kv", "q8_0", "--threads", "1")
LITTLE_RAM = ("--ram", "300MiB", *WITH_STORE)
SHORT = ("--max-tokens", "6", "--temp", "0")
READ_BYTES = 16 * MIB
LIMIT_S = 60.0


@pytest.fixture(name="needs_native", scope="module")
def _needs_native() -> None:
    """A test that cannot be where there was no compiler."""
    try:
        find_native()
    except Exception as problem:
        pytest.skip(str(problem))


def write_model(path: Path) -> Path:
    return write_sized("qwen3moe", path, DIMS, Mix("Q4_0", "Q4_0"))[0]


@pytest.fixture(name="moe", scope="module")
def _moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_model(tmp_path_factory.mktemp("moe") / "moe.gguf")


@pytest.fixture(name="scratch")
def _scratch(tmp_path: Path) -> Path:
    """The command's folder for temporary files; the counters go there."""
    folder = tmp_path / "scratch"
    folder.mkdir()
    return folder


def with_scratch(home: Path, scratch: Path) -> dict[str, str]:
    return environment(home, TMPDIR=str(scratch))


def engine_below(pid: int) -> psutil.Process:
    (guard,) = psutil.Process(pid).children()
    (engine,) = guard.children()
    return engine


def await_reads(engine: psutil.Process) -> None:
    """Wait until the engine, which is up, reads: an answer with little memory never stops to."""

    def read_bytes() -> int:
        return int(engine.io_counters().read_chars)

    before, deadline = read_bytes(), time.monotonic() + LIMIT_S
    while read_bytes() < before + READ_BYTES:
        assert time.monotonic() < deadline, "the store reads nothing"
        time.sleep(0.01)


def await_answer(run: Background) -> psutil.Process:
    """Wait until an answer is under way; returns the engine."""
    run.await_note("ready in ")
    run.await_out()
    engine = engine_below(run.process.pid)
    await_reads(engine)
    return engine


def test_too_little_memory_is_refused_with_an_amount_that_is_enough(
    tmp_path: Path, moe: Path
) -> None:
    def asked(ram: str) -> list[str | Path]:
        return ["run", moe, "hello", *SHORT, *WITH_STORE, "--ram", ram]

    def least(refused: Ended) -> float:
        named = re.search(r"the least is ([\d.]+) MiB,", refused.err)
        assert named is not None, refused
        return float(named[1])

    refused = hotset(*asked("220MiB"), home=tmp_path)
    assert_refused(
        refused, 3, "220.0 MiB of RAM are too little", "even with the experts on the disk"
    )
    first_mib = least(refused)
    # Each start corrects the next plan, so what is too little is asked before one.
    below = hotset(*asked(f"{first_mib - 0.2:.1f}MiB"), home=tmp_path)
    assert_refused(below, 3, f"the least is {first_mib} MiB,")
    enough = hotset(*asked(f"{first_mib}MiB"), home=tmp_path)
    assert enough.code == 0, enough
    assert "experts stay on the disk" in enough.err
    corrected_mib = least(hotset(*asked("220MiB"), home=tmp_path))
    below = hotset(*asked(f"{corrected_mib - 0.2:.1f}MiB"), home=tmp_path)
    assert_refused(below, 3, f"the least is {corrected_mib} MiB,")
    again = hotset(*asked(f"{corrected_mib}MiB"), home=tmp_path)
    assert again.code == 0, again
    plenty = hotset(*asked("4GiB"), home=tmp_path)
    assert "experts stay on the disk" not in plenty.err
    assert enough.out == again.out == plenty.out


def test_an_engine_killed_while_it_reads_is_an_error_and_leaves_nothing(
    tmp_path: Path, moe: Path, scratch: Path
) -> None:
    env = with_scratch(tmp_path, scratch)
    with background("run", moe, "go on", *LITTLE_RAM, home=tmp_path, env=env) as run:
        await_answer(run).kill()
        ended = run.end()
    assert ended.code == 5
    assert ended.err_lines[-1] == (
        "hotset: moe: the engine was killed by signal 9 in the middle of its work"
    )
    assert list(scratch.iterdir()) == []


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
def test_hotset_ended_while_its_engine_reads_leaves_no_process_and_no_file(
    tmp_path: Path, moe: Path, scratch: Path, number: signal.Signals
) -> None:
    env = with_scratch(tmp_path, scratch)
    with background("run", moe, "go on", *LITTLE_RAM, home=tmp_path, env=env) as run:
        await_answer(run)
        run.send(number)
        ended = run.end()
    # Ctrl-C in a single answer stops it and then the program, as 130.
    assert ended.code == (-number if number == signal.SIGKILL else 128 + number)
    assert "Traceback" not in ended.err
    assert list(scratch.iterdir()) == []


def test_ctrl_c_while_the_store_reads_stops_the_answer_and_not_the_conversation(
    tmp_path: Path, moe: Path, scratch: Path
) -> None:
    env = with_scratch(tmp_path, scratch)
    words = ("run", moe, *LITTLE_RAM, "--temp", "0")
    with terminal(*words, home=tmp_path, env=env) as screen:
        screen.await_text("\n> ")
        engine = engine_below(screen.process.pid)
        for _ in range(2):
            screen.type("go on\n")
            screen.await_text("go on\r\n")
            screen.await_more()
            await_reads(engine)
            screen.type(b"\x03")
            screen.await_text("[stopped · ")
            screen.await_text("\n> ")
            screen.type("/clear\n")
            screen.await_text("\n> ")
        assert screen.await_end(b"\x03") == 0
    assert list(scratch.iterdir()) == []


def test_a_model_file_that_changes_is_named_and_the_conversation_can_go_on(
    tmp_path: Path, scratch: Path
) -> None:
    model = write_model(tmp_path / "moe.gguf")
    before = model.stat()
    words = ("run", model, *LITTLE_RAM, *SHORT)
    with terminal(*words, home=tmp_path, env=with_scratch(tmp_path, scratch)) as screen:
        screen.await_text("\n> ")
        screen.type("hello\n")
        screen.await_text("hello\r\n")
        right = screen.await_text("[cut off")
        screen.await_text("\n> ")
        screen.type("/clear\n")
        screen.await_text("\n> ")
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        screen.type("hello\n")
        screen.await_text(
            f"the engine failed on the request: {model}: changed while in use; start again"
        )
        screen.await_text("\n> ")
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        screen.type("hello\n")
        screen.await_text("hello\r\n")
        assert screen.await_text("[cut off") == right
        screen.await_text("\n> ")  # at the prompt Ctrl-C leaves, before it it interrupts
        assert screen.await_end(b"\x03") == 0


def test_a_file_cut_off_before_its_experts_ends_the_engine_with_the_likely_cause(
    tmp_path: Path, scratch: Path
) -> None:
    """What is no expert is mapped: the kernel ends a process that touches what is gone."""
    model = write_model(tmp_path / "moe.gguf")
    with background(
        *("run", model, "go on", *LITTLE_RAM), home=tmp_path, env=with_scratch(tmp_path, scratch)
    ) as run:
        await_answer(run)
        os.truncate(model, read_header(model).data_offset_bytes)
        ended = run.end()
    assert ended.code == 5
    last = ended.err_lines[-1]
    # Which of them notices first is chance: the kernel, a read, or the look before it.
    causes = ("was it cut off or written over", "ends at", "changed while in use")
    assert any(cause in last for cause in causes), last
    assert list(scratch.iterdir()) == []
