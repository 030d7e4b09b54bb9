"""The two engines of the contract tests, each started for one prompt with or without the store."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from hotset.store import ChildSettings, NativeStore, StoreCheck, check_embedded, check_llama_server
from store.asking import ask
from store.mapped import mapped_share

TESTS = Path(__file__).parent.parent
SERVER_VARIABLE = "HOTSET_TEST_LLAMA_SERVER"


@dataclass(frozen=True, slots=True)
class Run:
    """`share`: resident share of the mapped file between the start and the first request."""

    tokens: list[int]
    logprobs: list[list[float]]
    share: float
    status: int
    log: str


class Engine(Protocol):
    def check(self, native: NativeStore | None = None) -> StoreCheck: ...

    def run(
        self,
        model: Path,
        prompt: str,
        num_tokens: int,
        settings: ChildSettings | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        """With the store where `settings` are given, as its child settings say."""

    def fail(self, model: Path, settings: ChildSettings, environment: Mapping[str, str]) -> str:
        """Starts an engine that must not come up; its log."""


class Embedded:
    def check(self, native: NativeStore | None = None) -> StoreCheck:
        return check_embedded(native)

    def run(
        self,
        model: Path,
        prompt: str,
        num_tokens: int,
        settings: ChildSettings | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        child = self._start(model, prompt, num_tokens, settings, environment)
        assert child.stdout, child.stderr
        said = json.loads(child.stdout.splitlines()[-1])
        return Run(said["tokens"], said["logprobs"], said["share"], child.returncode, child.stderr)

    def fail(self, model: Path, settings: ChildSettings, environment: Mapping[str, str]) -> str:
        child = self._start(model, "", 0, settings, environment)
        assert child.returncode == 1
        assert child.stdout == ""
        return child.stderr

    def _start(
        self,
        model: Path,
        prompt: str,
        num_tokens: int,
        settings: ChildSettings | None,
        environment: Mapping[str, str] | None,
    ) -> subprocess.CompletedProcess[str]:
        plugin = settings.plugin_environment["GGML_BACKEND_PATH"] if settings else "-"
        script = TESTS / "store" / "embedded_child.py"
        return subprocess.run(
            [sys.executable, str(script), str(model), plugin, prompt, str(num_tokens)],
            env={
                **os.environ,
                "PYTHONPATH": str(TESTS),
                **(settings.environment if settings else {}),
                **(environment or {}),
            },
            capture_output=True,
            text=True,
            errors="replace",
            check=False,
        )


@dataclass(frozen=True, slots=True)
class LlamaServer:
    binary: Path

    def check(self, native: NativeStore | None = None) -> StoreCheck:
        return check_llama_server(self.binary, native)

    def run(
        self,
        model: Path,
        prompt: str,
        num_tokens: int,
        settings: ChildSettings | None = None,
        environment: Mapping[str, str] | None = None,
    ) -> Run:
        child = self._start(model, settings, environment)
        assert child.stderr is not None
        log = ""
        address = None
        for line in child.stderr:
            log += line
            if found := re.search(r"listening on (http://\S+)", line):
                address = found[1]
            if "all slots are idle" in line:
                break
        assert address, log
        share = mapped_share(str(child.pid), model)
        answer = ask(address, prompt, num_tokens)
        child.send_signal(signal.SIGINT)
        _, rest = child.communicate(timeout=60)
        return Run(answer["tokens"], answer["logprobs"], share, child.returncode, log + rest)

    def fail(self, model: Path, settings: ChildSettings, environment: Mapping[str, str]) -> str:
        child = self._start(model, settings, environment)
        _, log = child.communicate(timeout=60)
        assert child.returncode == 1
        return log

    def _start(
        self,
        model: Path,
        settings: ChildSettings | None,
        environment: Mapping[str, str] | None,
    ) -> subprocess.Popen[str]:
        return subprocess.Popen(
            [
                *(str(self.binary), "--model", str(model), "--ctx-size", "2048"),
                *("--parallel", "1", "--threads", "2", "--host", "127.0.0.1", "--port", "0"),
                *("--no-warmup", "--no-repack", "--cache-ram", "0", "--verbosity", "4"),
                *(settings.arguments if settings else ()),
            ],
            env={
                **os.environ,
                **(settings.environment if settings else {}),
                **(settings.plugin_environment if settings else {}),
                **(environment or {}),
            },
            stdout=subprocess.DEVNULL,
            stderr=subprocess.PIPE,
            text=True,
            errors="replace",
        )
