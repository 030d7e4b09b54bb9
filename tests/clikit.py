"""The real `hotset` command as a user runs it: in a pipe, on a terminal, in a clean home.

Every run is checked for what it leaves behind: no process may outlive the command.
"""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from enginekit import adopting, living_descendants

Arg = str | bytes | Path

COMMAND: tuple[str, ...] = (sys.executable, "-m", "hotset")
_LIMIT_S = 120.0
# What a killed command leaves to its guards to end.
_AFTERMATH_S = 5.0


def environment(home: Path, **more: str) -> dict[str, str]:
    """What a fresh user has, and nothing of what the tests run in."""
    return {"HOME": str(home), "PATH": "/usr/bin:/bin", "LANG": "C.UTF-8", "TERM": "xterm"} | more


@contextmanager
def leaving_nothing(limit_s: float = 0.0) -> Iterator[None]:
    """The block must leave no process that was not there before, `limit_s` after its end."""
    before = {process.pid for process in living_descendants()}
    with adopting():
        yield
        deadline = time.monotonic() + limit_s
        while True:
            left = [process for process in living_descendants() if process.pid not in before]
            if not left or time.monotonic() > deadline:
                break
            time.sleep(0.02)
        assert left == []


@dataclass(frozen=True)
class Ended:
    """A finished command."""

    code: int
    out: str
    err: str

    @property
    def err_lines(self) -> list[str]:
        return self.err.splitlines()


def hotset(
    *args: Arg,
    home: Path,
    stdin: bytes | None = None,
    env: dict[str, str] | None = None,
    cwd: Path | None = None,
    through: str = "",
) -> Ended:
    """Run to the end.

    Args:
        stdin: piped in; None for the null device.
        env: its whole environment; None for that of a fresh user.
        through: run by a shell that starts the command as "$@", for limits and redirections.
    """
    with leaving_nothing():
        done = subprocess.run(
            [*(("/bin/sh", "-c", through, "sh") if through else ()), *COMMAND, *args],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            env=environment(home) if env is None else env,
            cwd=cwd or home,
            capture_output=True,
            timeout=_LIMIT_S,
            check=False,
        )
    return Ended(done.returncode, done.stdout.decode(), done.stderr.decode())


def assert_refused(ended: Ended, code: int, *words: str) -> None:
    """The rule for a refusal: one line on stderr, nothing on stdout, the code of its kind."""
    assert (ended.code, ended.out) == (code, ""), ended
    assert len(ended.err_lines) == 1, ended
    assert ended.err.startswith("hotset: "), ended
    assert ended.err_lines[0].isprintable(), ended
    for word in words:
        assert word in ended.err, ended
    assert "Traceback" not in ended.err
    assert "internal error" not in ended.err


def files_below(home: Path) -> set[str]:
    """Everything that is no folder, by its path from there."""
    return {str(path.relative_to(home)) for path in home.rglob("*") if not path.is_dir()}


# All that a start leaves in a home: what it showed, and the lock of that file.
RECORD = {".cache/hotset/starts.json", ".cache/hotset/.starts.json.lock"}


class Background:
    """A command at work, its stderr read line by line and its stdout to the end."""

    def __init__(self, process: subprocess.Popen[bytes]) -> None:
        assert process.stderr is not None
        assert process.stdout is not None
        self.process = process
        self.seen = ""
        self._stdout, self._stderr = process.stdout, process.stderr

    def await_note(self, words: str) -> str:
        """Read stderr up to the line with these words, and return it."""
        while True:
            line = self._stderr.readline().decode()
            assert line, f"'{words}' never came: {self.seen}"
            self.seen += line
            if words in line:
                return line

    def await_out(self) -> bytes:
        """Wait for the first bytes on stdout."""
        return os.read(self._stdout.fileno(), 1 << 16)

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> Ended:
        out, err = self.process.communicate(timeout=_LIMIT_S)
        return Ended(self.process.returncode, out.decode(), self.seen + err.decode())


@contextmanager
def background(
    *args: Arg, home: Path, env: dict[str, str] | None = None, prefix: tuple[str, ...] = ()
) -> Iterator[Background]:
    """A command at work. It is killed at the end of the block if it is still there."""
    with leaving_nothing(_AFTERMATH_S):
        process = subprocess.Popen(
            [*prefix, *COMMAND, *args],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            env=environment(home) if env is None else env,
            cwd=home,
        )
        try:
            yield Background(process)
        finally:
            process.kill()
            process.communicate()


# A session's first process takes a terminal as its own; then keys become signals.
_ON_TERMINAL = """
import fcntl, os, sys, termios
fcntl.ioctl(0, termios.TIOCSCTTY, 0)
os.execv(sys.argv[1], sys.argv[1:])
"""


class Terminal:
    """A command on a pseudo-terminal, with a person's hands and eyes.

    `text` is all that has appeared, control sequences included.
    """

    def __init__(self, process: subprocess.Popen[bytes], fd: int) -> None:
        self.process = process
        self.text = ""
        self._fd = fd
        self._read = 0

    def type(self, keys: str | bytes) -> None:
        os.write(self._fd, keys.encode() if isinstance(keys, str) else keys)

    def await_text(self, words: str) -> str:
        """Wait until these words appear after what was awaited before; returns all up to them."""
        while (at := self.text.find(words, self._read)) < 0:
            assert self._look(), f"ended before '{words}': {self.text}"
        begin, self._read = self._read, at + len(words)
        return self.text[begin : self._read]

    def await_more(self) -> None:
        """Wait until anything more appears."""
        assert self._look(), f"ended: {self.text}"
        self._read = len(self.text)

    def await_end(self, keys: bytes = b"") -> int:
        """Wait for the end of the command; returns its exit code (negative for a signal).

        Args:
            keys: typed at once, and again every second: Python's line editor looks for signals
                before it waits for keys, so that Ctrl-C in between acts with the next key only.
        """
        deadline = time.monotonic() + _LIMIT_S
        self.type(keys)
        while True:
            assert time.monotonic() < deadline, f"it does not end: {self.text}"
            if self._is_silent_for(1.0):
                self.type(keys)
            elif not self._take_in():
                break
        return self.process.wait(_LIMIT_S)

    def hang_up(self) -> int:
        """Close the terminal, as a window is closed; returns the command's exit code."""
        os.close(self._fd)
        self._fd = -1
        return self.process.wait(_LIMIT_S)

    def close(self) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def _is_silent_for(self, wait_s: float) -> bool:
        return not select.select([self._fd], [], [], wait_s)[0]

    def _look(self) -> bool:
        """Wait for something to appear, and take it in; False at the end."""
        assert not self._is_silent_for(_LIMIT_S), f"nothing more came: {self.text}"
        return self._take_in()

    def _take_in(self) -> bool:
        try:
            data = os.read(self._fd, 1 << 16)
        except OSError:  # EIO: nobody has the other end any more
            return False
        self.text += data.decode(errors="replace")
        return bool(data)


@contextmanager
def terminal(
    *args: Arg,
    home: Path,
    env: dict[str, str] | None = None,
    stdout: int | None = None,
    size: tuple[int, int] = (0, 0),
) -> Iterator[Terminal]:
    """A command on a terminal of its own; killed at the end of the block if still there.

    Args:
        size: rows and columns; 0 is what a terminal says that does not know.
    """
    with leaving_nothing(_AFTERMATH_S):
        ours, theirs = os.openpty()
        termios.tcsetwinsize(theirs, size)
        process = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _ON_TERMINAL, *COMMAND, *args],
            stdin=theirs,
            stdout=theirs if stdout is None else stdout,
            stderr=theirs,
            env=environment(home) if env is None else env,
            cwd=home,
            start_new_session=True,
        )
        os.close(theirs)
        screen = Terminal(process, ours)
        try:
            yield screen
        finally:
            process.kill()
            process.wait()
            screen.close()
