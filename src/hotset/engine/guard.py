"""Stands between hotset and an engine so that no engine outlives hotset.

Run as a script of its own (`python -I -S guard.py`), standard library only. It reads one JSON
line from stdin, `{"argv": [...], "env": {...}, "stdin": "..."}`, starts that program in its own
process group, hands it the text on its stdin, and then watches two things:

* its own stdin: end of file means that hotset is gone, by whatever death, and the whole group is
  killed at once;
* the engine: when it ends, its status is reported and whatever it left in the group is killed.

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


class Order(TypedDict):
    """What hotset asks for: the program, its whole environment, what it reads on stdin."""

    argv: list[str]
    env: dict[str, str]
    stdin: str


def report(**fields: object) -> None:
    # Nobody may be left to read it.
    with contextlib.suppress(OSError):
        os.write(1, json.dumps(fields).encode() + b"\n")


def die_with_parent(parent: int) -> None:
    """In the forked child: be killed when the guard dies (on Linux)."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
        if os.getppid() != parent:  # it died before the call
            os._exit(1)


def run_child(order: Order, stdin_fd: int, failure_fd: int, guard: int) -> NoReturn:
    """In the forked child: become the engine. A failure is written to `failure_fd`."""
    try:
        die_with_parent(guard)
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
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
        while text:
            select.select([], [fd], [], 1.0)
            text = text[os.write(fd, text) :]


def read_order() -> Order | None:
    line = bytearray()
    while not line.endswith(b"\n"):
        part = os.read(0, 1 << 16)
        if not part:
            return None  # hotset died before it could ask
        line += part
    order: Order = json.loads(line)
    return order


def end_group() -> NoReturn:
    """Kill everything in the group, the guard included."""
    os.killpg(0, signal.SIGKILL)
    os._exit(1)


def main() -> NoReturn:
    # A group of its own: the terminal's Ctrl-C is for hotset, which decides what it means.
    if os.getpgrp() != os.getpid():
        os.setpgrp()
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    order = read_order()
    if order is None:
        os._exit(0)

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
        if 0 in readable and not os.read(0, 4096):
            end_group()
        if wakeup_read in readable:
            os.read(wakeup_read, 4096)
            done, wait_status = os.waitpid(child, os.WNOHANG)
            if done:
                report(exit=os.waitstatus_to_exitcode(wait_status))
                end_group()


if __name__ == "__main__":
    main()
