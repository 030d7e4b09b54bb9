"""Engines for the pool's tests: made up, in threads, with a bound on their memory."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from hotset.core.errors import EngineProblem
from hotset.core.settings import Secret
from hotset.gateway.ledger import Bytes
from hotset.gateway.names import Name
from hotset.gateway.offers import Claims, Offer, StartWatch


class _Healthy(BaseHTTPRequestHandler):
    def do_GET(self) -> None:
        engine = self.server.engine  # type: ignore[attr-defined]  # set by FakeEngine
        if engine.is_wedged:
            engine.ended.wait(10)
        self.send_response(200)
        self.send_header("Content-Length", "0")
        self.end_headers()

    def log_message(self, *_: object) -> None:
        return


class FakeEngine:
    """Answers its health, unless it is wedged; `die` ends it unasked."""

    api_key: Secret | None = Secret("key")
    context_tokens = 512

    def __init__(self, model_id: str, pid: int, held: Bytes) -> None:
        self.model_id, self.pid, self.held = model_id, pid, held
        self.is_wedged = self.is_slow_to_end = self.is_killed = False
        self.grace_s = 0.0
        self.look_ups = (0, 0)
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _Healthy)
        self._server.engine = self  # type: ignore[attr-defined]  # read by _Healthy
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"

    def is_alive(self) -> bool:
        return not self.ended.is_set()

    def die(self) -> None:
        self.ended.set()

    def died(self) -> EngineProblem:
        return EngineProblem(f"{self.model_id}: the engine was killed")

    def num_expert_look_ups(self) -> tuple[int, int]:
        return self.look_ups

    def kill(self) -> None:
        self.is_killed = True
        self.ended.set()

    def stop(self, *, grace_s: float) -> None:
        self.grace_s = grace_s
        while self.is_slow_to_end and not self.ended.wait(0.005):
            pass
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


@dataclass
class FakeStarter:
    """Starts made-up engines. `gate` holds starts back; `problems` makes them fail.

    Attributes:
        living: engines that have not been stopped, by model.
        started: model ids, in order.
        ahead: those that are being read ahead now.
        claimed: what engines held when the last of them began.
    """

    room_bytes: int = 100
    gate: threading.Event = field(default_factory=threading.Event)
    problems: dict[str, Exception] = field(default_factory=dict)
    engines: list[FakeEngine] = field(default_factory=list)
    started: list[str] = field(default_factory=list)
    called_off: list[str] = field(default_factory=list)
    ahead: list[str] = field(default_factory=list)
    claimed: dict[str, int] = field(default_factory=dict)
    most_bytes: int = 0

    def __post_init__(self) -> None:
        self.gate.set()

    @property
    def living(self) -> dict[str, FakeEngine]:
        return {engine.model_id: engine for engine in self.engines if engine.is_alive()}

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> FakeEngine:
        self.started.append(model_id)
        watch.on_line(f"loading {model_id}")
        watch.on_fraction(0.5)
        while not self.gate.wait(0.005):
            if watch.cancel.is_set():
                self.called_off.append(model_id)
                raise EngineProblem(f"{model_id}: the start was called off")
        if problem := self.problems.get(model_id):
            raise problem
        engine = FakeEngine(model_id, 1000 + len(self.engines), bytes_by_device)
        self.engines.append(engine)
        self.most_bytes = max(self.most_bytes, sum(e.held["RAM"] for e in self.living.values()))
        watch.on_pid(engine.pid)
        return engine

    def room(self, pids: Sequence[int]) -> Bytes:
        del pids
        return {"RAM": self.room_bytes}

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        self.ahead.append(model_id)
        self.claimed = dict(claims().held)
        cancel.wait()
        self.ahead.remove(model_id)
        return "read ahead"


def offers_of(models: Iterable[tuple[str, int]], **more: object) -> list[Offer]:
    return [
        Offer(name=Name(id_, (f"{id_}-alias",)), need={"RAM": need}, **more)  # type: ignore[arg-type]  # fields of a dataclass
        for id_, need in models
    ]
