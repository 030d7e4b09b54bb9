"""One engine for one run: started cold in a memory group, asked over HTTP, ended with the group."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import httpx
from benchmarks.store import pagecache
from benchmarks.store.limits import MemoryGroup, memory_group
from benchmarks.store.models import BenchModel
from benchmarks.store.variants import Variant

from hotset.core.errors import EngineProblem
from hotset.engine.base import scrubbed
from hotset.store import (
    Counters,
    NativeStore,
    check_embedded,
    child_settings,
    find_native,
    read_counters,
)

__all__ = ["SLOTS", "SLOT_TOKENS", "Decoded", "Running", "running"]

SLOTS = 2
SLOT_TOKENS = 2304  # the longest prompt of the benchmark is 2048 tokens
_CHILD = Path(__file__).with_name("child.py")
_ROOT = Path(__file__).parent.parent.parent
_TIMEOUT_S = 900.0
_STOP_S = 30.0
_LOG_LINES = 8


@dataclass(frozen=True, slots=True)
class Decoded:
    """What a request generated: tokens evaluated one by one, and the time that took."""

    n_tokens: int
    seconds: float


@dataclass(frozen=True, slots=True)
class Running:
    """An engine that is ready.

    Attributes:
        start_s: from the start of the process to readiness.
        resident_bytes: of the model file, in the page cache when it was ready.
        holds_all: the store has room for every expert.
    """

    child: subprocess.Popen[str]
    client: httpx.Client
    group: MemoryGroup
    page: Path | None
    start_s: float
    resident_bytes: int
    holds_all: bool = False

    def prefill(self, prompt: Sequence[int], *, slot: int = 0) -> float:
        """Read a prompt; seconds by the engine's own clock."""
        answer = self._complete(prompt, 1, slot=slot, seed=0)
        return float(answer["timings"]["prompt_ms"]) / 1000

    def decode(
        self, prompt: Sequence[int], n_tokens: int, *, slot: int = 0, seed: int = 0
    ) -> Decoded:
        """Generate after a prompt that the slot has just read with `prefill`.

        The engine's clock starts with the first token drawn, so it times one token less.
        """
        answer = self._complete(prompt, n_tokens + 1, slot=slot, seed=seed)
        timings = answer["timings"]
        return Decoded(int(timings["predicted_n"]) - 1, float(timings["predicted_ms"]) / 1000)

    def counters(self) -> Counters | None:
        """Of the store; None for a stock engine."""
        return read_counters(self.page) if self.page else None

    def read_bytes(self) -> int:
        """What the process has caused to be read from disks."""
        text = Path(f"/proc/{self.child.pid}/io").read_text()
        return int(dict(line.split(": ") for line in text.splitlines())["read_bytes"])

    def _complete(
        self, prompt: Sequence[int], n_tokens: int, *, slot: int, seed: int
    ) -> dict[str, Any]:
        # Drawn, not greedy: random weights soon repeat themselves when they always take the
        # likeliest token, and then the same experts serve for ever.
        order = {
            "prompt": list(prompt), "n_predict": n_tokens, "id_slot": slot, "cache_prompt": True,
            "temperature": 1.0, "top_k": 0, "top_p": 1.0, "min_p": 0.0, "seed": seed,
            "ignore_eos": True,
        }  # fmt: skip
        try:
            reply = self.client.post("/completion", json=order)
        except httpx.HTTPError as error:
            raise EngineProblem(f"engine: no answer ({error}); was it killed?") from error
        if reply.status_code != httpx.codes.OK:
            raise EngineProblem(f"engine: status {reply.status_code}: {reply.text[:200]}")
        body: dict[str, Any] = reply.json()
        return body


@contextmanager
def running(
    model: BenchModel, variant: Variant, *, threads: int, readers: int | None
) -> Iterator[Running]:
    """The engine, cold: with no page of the model in memory.

    Raises:
        EngineProblem: it ends before it is ready; its last lines.
        MachineProblem: no memory group can be made.
    """
    with tempfile.TemporaryDirectory(prefix="hotset-bench-") as folder:
        page = Path(folder) / "counters" if variant.store_bytes is not None else None
        log = Path(folder) / "log"
        plugin, environment = _store(model, variant, page, readers)
        order = {
            "model": str(model.path), "plugin": plugin, "threads": threads,
            "load_mode": variant.load_mode,
            "params": {
                "n_ctx": SLOTS * SLOT_TOKENS, "n_parallel": SLOTS, "kv_unified": False,
                "no_extra_bufts": not variant.is_repacked, "port": 0, "warmup": False,
                "cache_ram_mib": 0, "cache_idle_slots": False, "fit_params": False,
                "n_ctx_checkpoints": 0,
            },
        }  # fmt: skip
        pagecache.drop(model.path)
        with memory_group(variant.limit_bytes) as group, log.open("w") as errors:
            begun = time.monotonic()
            child = subprocess.Popen(
                group.command([sys.executable, str(_CHILD)]),
                env={**scrubbed(os.environ), **environment},
                stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, text=True,
            )  # fmt: skip
            try:
                address = _send(child, json.dumps(order) + "\n")
                start_s = time.monotonic() - begun
                if not address:
                    raise EngineProblem(f"{variant.label}: no start: {_last_lines(log)}")
                with httpx.Client(base_url=address, timeout=_TIMEOUT_S) as client:
                    resident = pagecache.resident_bytes(model.path)
                    holds_all = (variant.store_bytes or 0) >= model.expert_bytes
                    yield Running(child, client, group, page, start_s, resident, holds_all)
            except EngineProblem as problem:
                raise EngineProblem(f"{problem.message}; its log: {_last_lines(log)}") from problem
            finally:
                _stop(child)


def _send(child: subprocess.Popen[str], order: str) -> str:
    """The address that the child answers with; empty when it ends instead."""
    assert child.stdin is not None
    assert child.stdout is not None
    try:
        child.stdin.write(order)
        child.stdin.flush()
    except BrokenPipeError:
        return ""
    return child.stdout.readline().strip()


def _stop(child: subprocess.Popen[str]) -> None:
    assert child.stdin is not None
    assert child.stdout is not None
    with suppress(BrokenPipeError):
        child.stdin.close()
    try:
        child.wait(_STOP_S)
    except subprocess.TimeoutExpired:
        child.kill()
        child.wait()
    child.stdout.close()


def _store(
    model: BenchModel, variant: Variant, page: Path | None, readers: int | None
) -> tuple[str | None, Mapping[str, str]]:
    environment = {"PYTHONPATH": f"{_ROOT / 'src'}"}
    if variant.store_bytes is None:
        return None, environment
    native, plugin = _native()
    settings = child_settings(
        native, plugin, [model.path], ram_bytes=variant.store_bytes, read_first=[model.needed],
        counters=page,
    )  # fmt: skip
    if readers is not None:
        environment["HOTSET_READERS"] = str(readers)
    return str(plugin), environment | dict(settings.environment)


@cache
def _native() -> tuple[NativeStore, Path]:
    native = find_native()
    check = check_embedded(os.environ, native)
    if check.plugin is None:
        raise EngineProblem(f"expert store: {check.reason}")
    return native, check.plugin


def _last_lines(log: Path) -> str:
    lines = [line.strip() for line in log.read_text(errors="replace").splitlines() if line.strip()]
    return " | ".join(lines[-_LOG_LINES:]) or "nothing"
