"""The `hotset` command as a whole: help, version, completion, refusals, unexpected faults."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest

from clikit import COMMAND, assert_refused, environment, hotset
from hotset import __version__

LOOKING = ("ps", "load", "unload", "logs", "why")
NAMES = (
    *("inspect", "plan", "run", "serve", *LOOKING, "doctor", "demo", "simulate"),
    *("machine", "store", "trace"),
)


def test_the_version_is_the_packages(tmp_path: Path) -> None:
    ended = hotset("--version", home=tmp_path)
    assert (ended.code, ended.out, ended.err) == (0, f"hotset {__version__}\n", "")


def test_help_names_every_command_and_so_does_hotset_alone(tmp_path: Path) -> None:
    helped = [hotset(*words, home=tmp_path) for words in (("--help",), ("-h",), ())]
    assert {ended.code for ended in helped} == {0}
    assert len({ended.out for ended in helped}) == 1
    assert all(f"\n  {name} " in helped[0].out for name in NAMES)
    assert helped[0].out.startswith("Usage: hotset [OPTIONS] COMMAND")


def test_the_installed_program_and_the_module_are_the_same_command(tmp_path: Path) -> None:
    program = Path(sys.executable).with_name("hotset")
    by_name, by_module = (
        subprocess.run(
            [*words, "--help"],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for words in ((str(program),), COMMAND)
    )
    assert by_name == by_module


@pytest.mark.parametrize("place", ["__del__(self)", "__set_name__(self, *_)"])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_a_signal_whose_exception_python_hides_ends_the_command_all_the_same(
    tmp_path: Path, number: signal.Signals, place: str
) -> None:
    """Python discards some, as in its callbacks while it imports, and makes others of some."""
    script = f"""if True:
        import signal, time
        from hotset.cli import main

        class Hiding:
            def {place}:
                signal.raise_signal({int(number)})

        def work(**_):
            class Holding:
                held = Hiding()
            del Holding.held
            time.sleep(5)

        main.app = work
        main.main()
    """
    ended = subprocess.run(
        [sys.executable, "-c", script], env=environment(tmp_path), capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert (ended.returncode, ended.stdout, ended.stderr) == (128 + number, "", "")


@pytest.mark.parametrize("name", NAMES)
def test_each_command_explains_itself(tmp_path: Path, name: str) -> None:
    ended = hotset(name, "--help", home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert ended.out.startswith(f"Usage: hotset {name} ")


@pytest.mark.parametrize(
    ("words", "reason"),
    [
        (("frobnicate",), "No such command 'frobnicate'"),
        (("--frobnicate",), "No such option: --frobnicate"),
        (("run",), "Missing argument 'MODEL'"),
        (("inspect",), "Missing argument"),
        (("run", "smollm2", "hi", "--ctx"), "--ctx"),
        (("run", "", "hi"), "the name of the model is empty"),
        (("ru\x1b[31mn\n",), "No such command"),
        (("--x\x1b[31m\ny",), "No such option"),
        ((b"\xff\xfe",), "No such command"),
    ],
)
def test_a_wrong_command_line_is_one_harmless_line(
    tmp_path: Path, words: tuple[str | bytes, ...], reason: str
) -> None:
    assert_refused(hotset(*words, home=tmp_path), 4, reason)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_a_shell_gets_its_completion_script(tmp_path: Path, shell: str) -> None:
    ended = hotset("--show-completion", shell, home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    assert "_HOTSET_COMPLETE" in ended.out


def test_bash_completes_commands_and_options_through_its_script(tmp_path: Path) -> None:
    """As the shell does it: load the script, call its function, read the proposals."""
    script = hotset("--show-completion", "bash", home=tmp_path).out
    program = Path(sys.executable).with_name("hotset")

    def proposals(*words: str) -> list[str]:
        call = (
            f'COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _hotset_completion {program};'
            ' printf "%s\\n" "${COMPREPLY[@]}"'
        )
        done = subprocess.run(
            ["/bin/bash", "-c", f"{script}\n{call}", "bash", *words],
            env=environment(tmp_path),
            capture_output=True,
            text=True,
            check=True,
        )
        return done.stdout.split()

    assert proposals("hotset", "in") == ["inspect"]
    assert set(proposals("hotset", "")) == set(NAMES)
    assert "--max-tokens" in proposals("hotset", "run", "--ma")


def test_output_to_a_full_disk_is_a_machine_problem(tmp_path: Path) -> None:
    for words in (("--help",), ("doctor",), ("doctor", "--json")):
        ended = hotset(*words, home=tmp_path, through='exec "$@" >/dev/full')
        assert_refused(ended, 3, "the output cannot be written: No space left on device")


def test_a_full_disk_or_a_reader_that_left_takes_the_notes_and_not_the_work(tmp_path: Path) -> None:
    (tmp_path / "models").mkdir()
    shell = ('"$@" 2>/dev/full; echo $? >code', '{ "$@"; echo $? >code; } 2>&1 | exec <&-')
    for through in shell:
        for words, code in ((("inspect", "models"), 2), (("ps", "--url", "http://127.0.0.1:1"), 3)):
            ended = hotset(*words, home=tmp_path, through=through)
            assert (ended.out, ended.err) == ("", "")
            assert int((tmp_path / "code").read_text()) == code


@pytest.mark.parametrize("stream", ["<&-", ">&-", "2>&-", "<&- >&- 2>&-"])
def test_closed_streams_do_no_harm(tmp_path: Path, stream: str) -> None:
    ended = hotset("--version", home=tmp_path, through=f'exec "$@" {stream}')
    assert (ended.code, ended.err) == (0, "")
    refused = hotset("frobnicate", home=tmp_path, through=f'exec "$@" {stream}')
    assert (refused.code, refused.out) == (4, "")


FAULT = """
import sys
from hotset.cli import main
def doctor():
    raise ValueError("a fault\\nof ours \\x1b[31m")
main.app.command(name="fault")(doctor)
sys.argv = ["hotset", "fault"]
main.main()
"""


def test_a_fault_of_ours_is_one_line_and_its_place_is_shown_on_request(tmp_path: Path) -> None:
    def fault(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-c", FAULT],
            env=environment(tmp_path, **more),
            capture_output=True,
            text=True,
            check=False,
        )

    plain, debug = fault(), fault(HOTSET_DEBUG="1")
    assert plain.returncode == debug.returncode == 1
    (line,) = plain.stderr.splitlines()
    assert line.startswith("hotset: internal error, please report it: ValueError: a fault of ours")
    assert line.isprintable()
    assert "Traceback" in debug.stderr
