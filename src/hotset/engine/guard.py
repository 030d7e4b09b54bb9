"""Stands between hotset and an engine so that no engine outlives hotset.

Run as a script of its own (`python -I -S guard.py`), standard library only. It reads one JSON
line from stdin, `{"argv": [...], "env": {...}, "stdin": "..."}`, starts that program in a process
group of its own, hands it the text on its stdin, and then watches two things:

* its own stdin: the byte `T` asks for a polite end (SIGTERM to the group); end of file means kill,
  because hotset wants it or because hotset is gone, by whatever death;
* the engine: when it ends, its status is reported.

Either way the guard leaves last: it kills what is left of the engine's descendants and reaps them
all. All signals are sent by the guard, the engine's parent, so none can hit a stranger that was
given the number of a process already gone.

If the guard itself is killed, Linux kills the engine (parent-death signal). That signal follows
the *thread* that forked; the guard has only one, which is why it and not hotset does the forking.

Reports are JSON lines on stdout: `{"pid": n}` after the start, `{"exit": n}` at the end (negative:
killed by that signal), `{"error": "..."}` when the program could not be started. The engine's
stdout and stderr both go to the guard's stderr.
"""

from __future__ import annotations

import contextlib
import ctypes
import json
import os
import select
import signal
import sys
from typing import NoReturn, TypedDict

PR_SET_PDEATHSIG = 1  # linux/prctl.h
PR_SET_CHILD_SUBREAPER = 36
TERMINATE = b"T"


class Order(TypedDict):
    """What hotset asks for: the program, its whole environment, what it reads on stdin."""

    argv: list[str]
    env: dict[str, str]
    stdin: str


def report(**fields: object) -> None:
    # Nobody may be left to read it.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def prctl(option: int, value: int) -> None:
    """Only Linux has it; elsewhere end of file on stdin has to do."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(option, value)


def read_order() -> Order | None:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return None  # hotset died before it could ask
        line += part
    order: Order = json.loads(line)
    return order


def run_child(order: Order, stdin_fd: int, failure_fd: int, guard: int) -> NoReturn:
    """In the forked child: become the engine. A failure is written to `failure_fd`."""
    try:
        prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != guard:  # it died before the call
            os._exit(1)
        os.setpgid(0, 0)
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
            signal.signal(number, signal.SIG_DFL)
        os.dup2(stdin_fd, 0)
        os.dup2(2, 1)
        os.execve(order["argv"][0], order["argv"], order["env"])
    except OSError as error:
        os.write(failure_fd, f"{error.strerror}".encode())
    os._exit(127)


def feed(fd: int, text: bytes) -> None:
    """Write all of `text`; an engine that does not read its stdin must not stop the guard."""
    os.set_blocking(fd, False)
    with contextlib.suppress(OSError):
        while text and select.select([], [fd], [], 1.0)[1]:
            text = text[os.write(fd, text) :]


def descendants() -> list[int]:
    """Children of the guard now: the engine, and orphans of the engine (Linux)."""
    guard = os.getpid()
    try:
        with open(f"/proc/{guard}/task/{guard}/children", encoding="ascii") as file:
            return [int(pid) for pid in file.read().split()]
    except OSError:
        return []


def end_all(child: int) -> NoReturn:
    """Kill the group and whatever left it, reap them all, report the engine's status, leave."""
    with contextlib.suppress(OSError):
        os.killpg(child, signal.SIGKILL)
    while True:
        for pid in descendants():
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)
        try:
            pid, wait_status = os.wait()
        except ChildProcessError:
            os._exit(0)
        if pid == child:
            report(exit=os.waitstatus_to_exitcode(wait_status))


def main() -> NoReturn:
    # The terminal's Ctrl-C and a polite end of the session are for hotset, which decides.
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        signal.signal(number, signal.SIG_IGN)
    order = read_order()
    if order is None:
        os._exit(0)
    prctl(PR_SET_CHILD_SUBREAPER, 1)

    wakeup_read, wakeup_write = os.pipe()
    os.set_blocking(wakeup_write, False)
    signal.set_wakeup_fd(wakeup_write)
    signal.signal(signal.SIGCHLD, lambda *_: None)

    stdin_read, stdin_write = os.pipe()
    failure_read, failure_write = os.pipe()  # close-on-exec: end of file means that exec worked
    guard = os.getpid()
    child = os.fork()
    if child == 0:
        run_child(order, stdin_read, failure_write, guard)
    os.close(stdin_read)
    os.close(failure_write)
    failure = os.read(failure_read, 4096)
    if failure:
        os.waitpid(child, 0)
        report(error=failure.decode())
        os._exit(127)
    report(pid=child)
    feed(stdin_write, order["stdin"].encode())

    while True:
        readable, _, _ = select.select([0, wakeup_read], [], [])
        if 0 in readable:
            command = os.read(0, 1)
            if not command:
                end_all(child)
            if command == TERMINATE:
                with contextlib.suppress(OSError):
                    os.killpg(child, signal.SIGTERM)
        if wakeup_read in readable:
            os.read(wakeup_read, 4096)
            # WNOWAIT: while the engine is unreaped its group's number cannot be given away.
            if os.waitid(os.P_PID, child, os.WEXITED | os.WNOHANG | os.WNOWAIT):
                end_all(child)


if __name__ == "__main__":
    main()
