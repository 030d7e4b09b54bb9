"""The two engines of the contract tests, each as a child process with or without the store."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from threading import Thread
from typing import ClassVar, Protocol

from hotset.store import ChildSettings, NativeStore, StoreCheck, check_embedded, check_llama_server
from store.mapped import mapped_share

TESTS = Path(__file__).parent.parent
SERVER_VARIABLE = "HOTSET_TEST_LLAMA_SERVER"


class Engine(Protocol):
    """An engine that can be started; without `settings` it runs without the store.

    Some stop when interrupted, the others when their input closes.
    """

    @property
    def stops_by_interrupt(self) -> bool: ...

    def check(self, native: NativeStore | None = None) -> StoreCheck: ...

    def command(self, model: Path, settings: ChildSettings | None) -> Sequence[str]: ...


class Running:
    """An engine that is up, its log so far, and its exit status once it has been stopped."""

    def __init__(self, child: subprocess.Popen[str], model: Path, interrupt: bool) -> None:
        self.child = child
        self.model = model
        self.interrupt = interrupt
        self.address = ""
        self.log = ""
        assert child.stderr is not None
        self.lines = child.stderr
        for line in self.lines:
            self.log += line
            if found := re.search(r"listening on (http://\S+)", line):
                self.address = found[1]
                break
        # The pipe must be emptied, or the engine stops when it is full.
        self.drain = Thread(target=self._drain)
        self.drain.start()

    def _drain(self) -> None:
        for line in self.lines:
            self.log += line

    def mapped_share(self) -> float:
        return mapped_share(str(self.child.pid), self.model)

    def stop(self) -> int:
        assert self.child.stdin is not None
        self.child.stdin.close()
        if self.interrupt:
            self.child.send_signal(signal.SIGINT)
        status = self.child.wait(timeout=60)
        self.drain.join()
        self.lines.close()
        return status


@contextmanager
def running(
    engine: Engine,
    model: Path,
    settings: ChildSettings | None = None,
    environment: Mapping[str, str] | None = None,
) -> Iterator[Running]:
    """The engine with `model`, stopped at the end; its exit status is then 0."""
    started = start(engine, model, settings, environment)
    try:
        assert started.address, started.log
        yield started
    finally:
        status = started.stop()
    assert status == 0, started.log


def start(
    engine: Engine,
    model: Path,
    settings: ChildSettings | None,
    environment: Mapping[str, str] | None,
) -> Running:
    child = subprocess.Popen(
        engine.command(model, settings),
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            **(settings.environment if settings else {}),
            **(settings.plugin_environment if settings else {}),
            **(environment or {}),
        },
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.PIPE,
        text=True,
        errors="replace",
    )
    return Running(child, model, engine.stops_by_interrupt)


class Embedded:
    stops_by_interrupt = False

    def check(self, native: NativeStore | None = None) -> StoreCheck:
        return check_embedded(os.environ, native)

    def command(self, model: Path, settings: ChildSettings | None) -> Sequence[str]:
        plugin = settings.plugin_environment["GGML_BACKEND_PATH"] if settings else "-"
        return [sys.executable, str(TESTS / "store" / "embedded_child.py"), str(model), plugin]


@dataclass(frozen=True, slots=True)
class LlamaServer:
    binary: Path

    stops_by_interrupt: ClassVar[bool] = True

    def check(self, native: NativeStore | None = None) -> StoreCheck:
        return check_llama_server(self.binary, os.environ, native)

    def command(self, model: Path, settings: ChildSettings | None) -> Sequence[str]:
        return [
            *(str(self.binary), "--model", str(model), "--ctx-size", "2048", "--parallel", "2"),
            *("--threads", "2", "--host", "127.0.0.1", "--port", "0", "--no-warmup"),
            *("--no-repack", "--cache-ram", "0", "--verbosity", "4"),
            *(settings.arguments if settings else ()),
        ]
