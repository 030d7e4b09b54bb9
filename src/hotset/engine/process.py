"""One engine process under guard: started, listened to, ended, always reaped."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

from hotset.core.errors import EngineProblem
from hotset.engine.guard import TERMINATE

__all__ = ["EngineProcess"]

_GUARD = Path(__file__).with_name("guard.py")
# A process in the middle of a system call, such as the unmapping of many GiB, dies late.
_GUARD_GRACE_S = 10.0
_KEPT_LINES = 4000
_LONGEST_LINE_BYTES = 16 << 10
# The engine prints the last characters of the keys it was given.
_PRIVATE = "api_keys"


def _opened(stream: IO[bytes] | None) -> IO[bytes]:
    """A pipe that was asked for is there; this tells the type checker."""
    if stream is None:
        raise ValueError("not a pipe")
    return stream


class EngineProcess:
    """A guarded child. Thread-safe; `end` may be called any number of times, from any thread.

    Args:
        argv: program (absolute path) and arguments. Holds no secret: others can see it.
        env: its whole environment.
        stdin: what it reads first; afterwards its stdin stays open until hotset is gone.
        on_line: called on a reader thread with each line of output, in order.

    Raises:
        EngineProblem: the program could not be started.
    """

    def __init__(
        self,
        argv: Sequence[str],
        env: Mapping[str, str],
        stdin: str,
        on_line: Callable[[str], None],
    ) -> None:
        self.lines: deque[str] = deque(maxlen=_KEPT_LINES)
        self.num_lines = 0
        self.pid = 0
        self.exit_status: int | None = None
        self._on_line = on_line
        self._error = ""
        self._reported = threading.Event()
        self._gone = threading.Event()
        self._end_lock = threading.Lock()
        guard = subprocess.Popen(
            [sys.executable, "-I", "-S", str(_GUARD)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        self._guard = guard
        self._orders, self._reports, self._output = map(
            _opened, (guard.stdin, guard.stdout, guard.stderr)
        )
        self._threads = [
            threading.Thread(target=self._read_reports, name="engine-reports", daemon=True),
            threading.Thread(target=self._read_output, name="engine-output", daemon=True),
        ]
        for thread in self._threads:
            thread.start()
        order = json.dumps({"argv": list(argv), "env": dict(env), "stdin": stdin}) + "\n"
        try:
            with contextlib.suppress(BrokenPipeError):
                self._orders.write(order.encode())
                self._orders.flush()
            self._reported.wait()
            if not self.pid:
                raise EngineProblem(
                    f"{argv[0]}: could not be started: {self._error or 'its guard died'}"
                )
        except BaseException:
            self.end(grace_s=0)
            raise

    def _read_reports(self) -> None:
        for line in self._reports:
            report = json.loads(line)
            self.pid = report.get("pid", self.pid)
            self._error = report.get("error", self._error)
            self.exit_status = report.get("exit", self.exit_status)
            self._reported.set()
        # End of file: the guard is gone. It leaves last, unless it was killed; then Linux has
        # killed the engine, and what the engine had started is still in its group.
        self._guard.wait()
        if self.pid and self.exit_status is None:
            with contextlib.suppress(OSError):
                os.killpg(self.pid, signal.SIGKILL)
        self._reported.set()
        self._gone.set()

    def _read_output(self) -> None:
        while raw := self._output.readline(_LONGEST_LINE_BYTES):
            line = raw.decode(errors="replace").rstrip("\r\n")
            if _PRIVATE in line:
                continue
            self.lines.append(line)
            self.num_lines += 1
            self._on_line(line)

    def is_alive(self) -> bool:
        return not self._gone.is_set()

    def wait(self, timeout_s: float) -> bool:
        """Wait for the end; True when the process and all of its group are gone and reaped."""
        return self._gone.wait(timeout_s)

    def end(self, grace_s: float) -> None:
        """Terminate, wait up to `grace_s` for a clean exit, kill, reap. Then all is gone."""
        with self._end_lock:
            if grace_s > 0 and self.is_alive():
                with contextlib.suppress(BrokenPipeError, ValueError):
                    self._orders.write(TERMINATE)
                    self._orders.flush()
                self._gone.wait(grace_s)
            # End of file is the guard's order to kill everything and leave.
            with contextlib.suppress(BrokenPipeError):
                self._orders.close()
            if not self._gone.wait(_GUARD_GRACE_S):
                self._guard.kill()
                self._gone.wait()
            for thread in self._threads:
                # The output ends with the processes; a line callback may still be at work.
                if thread is not threading.current_thread():
                    thread.join(timeout=_GUARD_GRACE_S)
            self._reports.close()
            self._output.close()

    def settle(self) -> None:
        """After the end: wait until the last output has been read."""
        deadline = time.monotonic() + 2.0
        while self._threads[1].is_alive() and time.monotonic() < deadline:
            time.sleep(0.005)
