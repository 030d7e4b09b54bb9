"""The gateway with real child processes that do as they are told (see `scripted_engine`)."""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from enginekit import settings_for
from gatewaykit import Served, await_true
from hotset.cli.experts import ExpertWatch
from hotset.cli.fleet import ServedEngine
from hotset.core.settings import Settings
from hotset.engine.base import Engine
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.start import start
from hotset.engine.watch import Patience
from hotset.gateway.engines import EnginePool
from hotset.gateway.ledger import Bytes, Rules
from hotset.gateway.names import Name
from hotset.gateway.offers import Claims, Offer, StartWatch
from hotset.gateway.settings import GatewaySettings

_PROGRAM = Path(__file__).with_name("scripted_engine.py")
RULES = Rules(max_wait_s=0.8, least_stay_s=0.2, first_pause_s=0.3, return_wait_s=0.1, max_waiting=3)


def scripted_program(folder: Path) -> Path:
    """The engine as a program: a shell script, as users wrap theirs."""
    program = folder / "scripted-llama-server"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -I -S {_PROGRAM} "$@"\n')
    program.chmod(0o755)
    return program


@dataclass
class Scripted:
    """Models whose engines do as told; starts them (see `hotset.gateway.offers.Starter`).

    Attributes:
        num_places: how many models fit at the same time.
    """

    folder: Path
    names: Sequence[str]
    num_places: int = 1
    patience: Patience = field(default_factory=lambda: Patience(idle_s=1.0))

    def __post_init__(self) -> None:
        self.program = scripted_program(self.folder)
        self.engine: Engine = LlamaServerEngine(self.program)
        for name in self.names:
            (self.folder / f"{name}.gguf").touch()

    def behave(self, name: str, **behaviour: Any) -> None:
        (self.folder / f"{name}.json").write_text(json.dumps(behaviour))

    def log(self, name: str) -> list[str]:
        """What its engines have done so far, in order."""
        return [what for what, _, _ in self.entries(name)]

    def entries(self, name: str) -> list[tuple[str, int, float]]:
        """The same with process and time."""
        path = self.folder / f"{name}.log"
        rows = (
            [line.rsplit(" ", 2) for line in path.read_text().splitlines()] if path.exists() else []
        )
        return [(what, int(pid), float(at)) for what, pid, at in rows]

    def at(self, name: str, what: str) -> float:
        """When it did that last."""
        return next(at for found, _, at in reversed(self.entries(name)) if found == what)

    def forget(self) -> None:
        """Empty logs and plain behaviour, for the next case."""
        for name in self.names:
            for kind in ("json", "log"):
                (self.folder / f"{name}.{kind}").unlink(missing_ok=True)

    def offers(self, ttl_s: float | None = None) -> list[Offer]:
        return [Offer(name=Name(name, ()), need={"RAM": 1}, ttl_s=ttl_s) for name in self.names]

    def settings(self, model_id: str) -> Settings:
        return settings_for(self.folder / f"{model_id}.gguf", alias=model_id)

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> ServedEngine:
        running = start(
            self.engine,
            self.settings(model_id),
            os.environ,
            on_line=watch.on_line,
            on_pid=watch.on_pid,
            cancel=watch.cancel,
            patience=self.patience,
        )
        return ServedEngine(running, bytes_by_device, ExpertWatch(None), ExitStack(), lambda: None)

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        del model_id, claims, cancel
        return ""

    def room(self, pids: Sequence[int]) -> Bytes:
        del pids
        return {"RAM": self.num_places}


class ScriptedGateway(Served):
    """A gateway that starts, swaps and ends them."""

    def __init__(self, pool: EnginePool, settings: GatewaySettings) -> None:
        super().__init__(pool, settings)
        self.pool = pool

    async def begin(self) -> None:
        await self.pool.__aenter__()

    async def finish(self) -> None:
        await self.pool.__aexit__(None, None, None)

    def states(self) -> dict[str, str]:
        return {row["id"]: row["state"] for row in self.get("/api/models").json()["models"]}

    def await_state(self, name: str, state: str) -> None:
        assert await_true(lambda: self.states()[name] == state), self.states()

    def leave_all(self) -> None:
        """Everything unloaded, as at the start."""
        self.post("/api/unload", {"force": True})
        assert set(self.states().values()) <= {"unloaded", "failed"}


@contextmanager
def scripted_gateway(
    scripted: Scripted, *, ttl_s: float | None = None, rules: Rules = RULES, **settings: Any
) -> Iterator[ScriptedGateway]:
    """A gateway with these models."""
    fields: dict[str, Any] = {"listen_port": 0, "headers_after_s": 0.2, "keep_alive_s": 0.1}
    pool = EnginePool(scripted.offers(ttl_s), scripted, rules=rules)
    running = ScriptedGateway(pool, GatewaySettings(**(fields | settings)))
    running.start()
    try:
        yield running
    finally:
        running.stop()
