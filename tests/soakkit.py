"""A gateway under rough use: clients that leave, engines that are killed, models that swap."""

from __future__ import annotations

import random
import threading
import time
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any

import httpx
import psutil

from hotset.core.units import MIB

PROMPT = "to be or not to be"
NUM_TOKENS = 12
# What a client may be told when its engine was killed under it.
_CLEAR_ERRORS = (429, 502, 503)


@dataclass(frozen=True)
class Sample:
    """The gateway's process at a moment."""

    num_loads: int
    num_files: int
    num_children: int
    rss_mib: float

    def __str__(self) -> str:
        return (
            f"{self.num_loads} loads: {self.num_files} files, {self.num_children} processes below,"
            f" {self.rss_mib:.1f} MiB"
        )


@dataclass
class Soak:
    """Runs clients against `url` until so many models have been loaded.

    Attributes:
        gateway: its process.
        ended: what requests ended in.
        wrong: answers that are neither right nor one clear error.
        samples: twenty-one of them, from the beginning to the end.
    """

    url: str
    gateway: psutil.Process
    models: tuple[str, ...]
    num_loads: int
    seed: int = 0
    ended: Counter[str] = field(default_factory=Counter)
    wrong: list[str] = field(default_factory=list)
    samples: list[Sample] = field(default_factory=list)
    _expected: dict[str, str] = field(default_factory=dict)
    _over: threading.Event = field(default_factory=threading.Event)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def run(self, *, num_clients: int = 8, kill_every_s: float = 1.0) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            self._expected = {
                model: _text(client.post("/v1/completions", json=_body(model)).json())
                for model in self.models
            }
            threads = [
                threading.Thread(target=self._use, args=(random.Random(self.seed + n),))
                for n in range(num_clients)
            ]
            for thread in threads:
                thread.start()
            killer = random.Random(self.seed - 1)
            killed_s = time.monotonic()
            while (loads := self.loads(client)) < self.num_loads:
                time.sleep(0.2)
                self._sample(loads)
                if time.monotonic() - killed_s > kill_every_s:
                    killed_s = time.monotonic()
                    self._kill(client, killer)
            self._over.set()
            for thread in threads:
                thread.join()
            self._sample(loads, is_last=True)

    def loads(self, client: httpx.Client) -> int:
        return sum(row["num_loads"] for row in client.get("/api/models").json()["models"])

    def _sample(self, num_loads: int, *, is_last: bool = False) -> None:
        if is_last or num_loads * 20 >= len(self.samples) * self.num_loads:
            gateway = self.gateway
            children = gateway.children(recursive=True)
            rss_mib = gateway.memory_info().rss / MIB
            self.samples.append(Sample(num_loads, gateway.num_fds(), len(children), rss_mib))

    def _kill(self, client: httpx.Client, chance: random.Random) -> None:
        """Kill an engine that is up; now and then whatever the gateway has started, as it comes."""
        rows = client.get("/api/models").json()["models"]
        pids, what = [row["pid"] for row in rows if row["pid"]], "engine killed"
        if chance.random() < 0.2:
            pids = [child.pid for child in self.gateway.children(recursive=True)]
            what = "guard, start or engine killed"
        if pids:
            with suppress(psutil.NoSuchProcess):
                psutil.Process(chance.choice(pids)).kill()
                self._count(what)

    def _use(self, chance: random.Random) -> None:
        with httpx.Client(base_url=self.url, timeout=120) as client:
            while not self._over.is_set():
                model = chance.choice(self.models)
                if chance.random() < 0.2:
                    self._leave_early(client, model, chance.random())
                else:
                    self._ask(client, model)

    def _leave_early(self, client: httpx.Client, model: str, seconds: float) -> None:
        with suppress(httpx.TimeoutException):
            client.post("/v1/completions", json=_body(model), timeout=0.01 + seconds / 2)
        self._count("client left")

    def _ask(self, client: httpx.Client, model: str) -> None:
        answer = client.post("/v1/completions", json=_body(model))
        if answer.status_code == 200:
            is_right = _text(answer.json()) == self._expected[model]
            self._count("right" if is_right else "wrong", answer.text if not is_right else "")
        elif answer.status_code in _CLEAR_ERRORS and answer.json()["error"]["message"]:
            self._count(f"error {answer.status_code}")
        else:
            self._count("unclear", f"{answer.status_code} {answer.text}")

    def _count(self, what: str, wrong: str = "") -> None:
        with self._lock:
            self.ended[what] += 1
            if wrong:
                self.wrong.append(wrong)


def _body(model: str) -> dict[str, Any]:
    return {"model": model, "prompt": PROMPT, "max_tokens": NUM_TOKENS, "temperature": 0}


def _text(answer: dict[str, Any]) -> str:
    return str(answer["choices"][0]["text"])
