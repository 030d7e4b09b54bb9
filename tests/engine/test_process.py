"""The guard and the process under it: whatever dies, nothing is left."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator

import psutil
import pytest

from enginekit import adopting, await_none_of, living_descendants
from hotset.core.errors import EngineProblem
from hotset.engine.process import EngineProcess

Starter = Callable[..., EngineProcess]


@pytest.fixture(name="start_python")
def _start_python() -> Iterator[Starter]:
    """Starts Python programs under guard and ends them after the test."""
    started: list[EngineProcess] = []

    def start(program: str, *, stdin: str = "", env: dict[str, str] | None = None) -> EngineProcess:
        argv = [sys.executable, "-I", "-S", "-u", "-c", program]
        process = EngineProcess(argv, env or {}, stdin, print)
        started.append(process)
        return process

    yield start
    for process in started:
        process.end(grace_s=0)


def await_line(process: EngineProcess, text: str) -> str:
    """The first output line that starts with `text`."""
    deadline = time.monotonic() + 20
    while time.monotonic() < deadline:
        for line in list(process.lines):
            if line.startswith(text):
                return line
        time.sleep(0.01)
    raise AssertionError(f"no line {text!r} in {list(process.lines)}")


def test_the_program_reads_its_stdin_and_both_its_outputs_are_captured_in_lines(
    start_python: Starter,
) -> None:
    process = start_python(
        "import sys; print('got', sys.stdin.readline()); print('err', file=sys.stderr)",
        stdin="a secret\n",
    )
    assert process.wait(20)
    process.settle()
    assert [line for line in process.lines if line] == ["got a secret", "err"]


def test_its_environment_is_exactly_the_one_given(start_python: Starter) -> None:
    process = start_python(
        "import os; print('env', sorted(k for k in os.environ if k != 'LC_CTYPE'))",
        env={"ONE": "1"},
    )
    assert await_line(process, "env") == "env ['ONE']"


@pytest.mark.parametrize(
    ("program", "status"),
    [
        ("pass", 0),
        ("raise SystemExit(7)", 7),
        ("import os; os.kill(os.getpid(), 11)", -signal.SIGSEGV),
        ("import os; os.abort()", -signal.SIGABRT),
    ],
)
def test_the_way_it_ended_is_reported(start_python: Starter, program: str, status: int) -> None:
    process = start_python(program)
    assert process.wait(20)
    assert process.exit_status == status


def test_a_program_that_cannot_be_started_is_one_clear_error() -> None:
    with pytest.raises(EngineProblem, match=r"/no/such/program: .*No such file"):
        EngineProcess(["/no/such/program"], {}, "", print)
    assert living_descendants() == []


def test_a_line_with_the_tail_of_a_key_is_not_kept(start_python: Starter) -> None:
    process = start_python("print('api_keys: ****abcd'); print('end')")
    await_line(process, "end")
    assert list(process.lines) == ["end"]


def test_endless_output_keeps_only_its_end_and_a_line_without_end_is_cut(
    start_python: Starter,
) -> None:
    process = start_python("print('x' * 1_000_000); [print(i) for i in range(20_000)]")
    assert process.wait(20)
    process.settle()
    assert process.lines[-1] == "19999"
    assert len(process.lines) <= 4000
    assert max(map(len, process.lines)) <= 16 << 10


def test_ending_a_program_that_ignores_the_polite_signal_kills_it(start_python: Starter) -> None:
    process = start_python(
        "import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print('up');"
        " time.sleep(600)"
    )
    await_line(process, "up")
    process.end(grace_s=0.2)
    assert process.exit_status in (None, -signal.SIGKILL)
    assert not psutil.pid_exists(process.pid)


def test_a_polite_end_lets_the_program_clean_up(start_python: Starter) -> None:
    process = start_python(
        "import signal, sys, time\n"
        "signal.signal(signal.SIGTERM, lambda *_: (print('clean'), sys.exit(3)))\n"
        "print('up')\n"
        "time.sleep(600)"
    )
    await_line(process, "up")
    process.end(grace_s=20)
    assert process.exit_status == 3
    assert "clean" in process.lines


def test_ending_twice_and_from_the_start_is_harmless(start_python: Starter) -> None:
    process = start_python("import time; time.sleep(600)")
    process.end(grace_s=0)
    process.end(grace_s=0)
    assert not process.is_alive()


def processes_of(pid: int) -> list[psutil.Process]:
    """The process, if it is still there."""
    try:
        return [psutil.Process(pid)]
    except psutil.NoSuchProcess:
        return []


_WITH_GRANDCHILD = (
    "import subprocess, sys, time\n"
    "child = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)'])\n"
    "print('grandchild', child.pid)\n"
)


@pytest.mark.parametrize("ending", ["by itself", "killed", "ended"])
def test_what_the_program_started_ends_with_it(start_python: Starter, ending: str) -> None:
    wait = "" if ending == "by itself" else "time.sleep(600)"
    process = start_python(_WITH_GRANDCHILD + wait)
    grandchild = processes_of(int(await_line(process, "grandchild").split()[1]))
    if ending == "killed":
        os.kill(process.pid, signal.SIGKILL)
    elif ending == "ended":
        process.end(grace_s=0)
    assert process.wait(20)
    assert await_none_of(grandchild, 2.0) == []


def test_killing_the_guard_kills_the_program_and_what_it_started(start_python: Starter) -> None:
    process = start_python(_WITH_GRANDCHILD + "time.sleep(600)")
    grandchild = psutil.Process(int(await_line(process, "grandchild").split()[1]))
    program = psutil.Process(process.pid)
    with adopting():
        psutil.Process(program.ppid()).kill()
        assert process.wait(20)
        assert await_none_of([program, grandchild], 2.0) == []


def test_the_program_survives_the_end_of_the_thread_that_started_it(start_python: Starter) -> None:
    """A parent-death signal follows the thread that forked: it must not be ours."""
    import threading

    found: list[EngineProcess] = []
    program = "import time\nprint('up')\ntime.sleep(0.5)\nprint('still here')\ntime.sleep(600)"
    thread = threading.Thread(target=lambda: found.append(start_python(program)))
    thread.start()
    thread.join()
    await_line(found[0], "still here")
    assert found[0].is_alive()
