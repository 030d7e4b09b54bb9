"""A world for the scheduler: engines that load, fail, crash and end, memory that comes back late.

It keeps its own books, and checks every order against them.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from hotset.core.errors import EngineProblem, HotsetError
from hotset.gateway.ledger import (
    Action,
    Bytes,
    Grant,
    Model,
    Refuse,
    Request,
    Rules,
    Start,
    Stop,
    fits,
    minus,
    plus,
)
from hotset.gateway.scheduler import Scheduler

TICK_S = 0.5


@dataclass
class Fate:
    """What becomes of an engine's next start."""

    load_s: float = 2.0
    stop_s: float = 0.5
    memory_s: float = 0.2
    fails: bool = False


@dataclass
class Engine:
    """A process: it takes `held` from its start until some time after its end."""

    held: Bytes
    fate: Fate
    state: str = "loading"  # ready, stopping
    users: set[int] = field(default_factory=set)


class World:
    """Runs a scheduler against engines that it makes up.

    Args:
        room: of each device; a number is RAM.

    Attributes:
        granted_s, refused: what became of requests, by number.
        log: (time, order), all of them.
    """

    def __init__(
        self, models: list[Model], room: int | Mapping[str, int], rules: Rules | None = None
    ) -> None:
        self.scheduler = Scheduler(models, rules or Rules())
        self.now_s = 0.0
        self.room: Bytes = {"RAM": room} if isinstance(room, int) else room
        self.returning: Bytes = {}
        self.engines: dict[str, Engine] = {}
        self.fates: dict[str, Fate] = {model.id: Fate() for model in models}
        self.asked: dict[int, Request] = {}
        self.use_s: dict[int, float] = {}
        self.granted_s: dict[int, float] = {}
        self.refused: dict[int, HotsetError] = {}
        self.left: set[int] = set()
        self.log: list[tuple[float, Action]] = []
        self._later: list[tuple[float, int, Callable[[], None]]] = []
        self._num_events = 0
        self._measure()

    @property
    def waiting(self) -> list[Request]:
        decided = self.granted_s.keys() | self.refused.keys() | self.left
        return [request for number, request in self.asked.items() if number not in decided]

    def ask(self, model_id: str, *, use_s: float = 1.0, is_light: bool = False) -> int:
        """A client asks, and uses the model for so long once it has it. Returns its number."""
        number = len(self.asked)
        self.asked[number] = Request(number, model_id, self.now_s, is_light)
        self.use_s[number] = use_s
        self.scheduler.ask(self.asked[number])
        self.step()
        return number

    def leave(self, number: int) -> None:
        """The client goes away, whatever it has so far."""
        if number in self.left:
            return
        self.left.add(number)
        for engine in self.engines.values():
            engine.users.discard(number)
        self.scheduler.leave(number, self.now_s)
        self.step()

    def crash(self, model_id: str) -> None:
        """The engine ends by itself, if it is ready."""
        engine = self.engines.get(model_id)
        if engine and engine.state == "ready":
            self._end(model_id)
            self.scheduler.died(model_id, self.now_s, EngineProblem(f"{model_id}: crashed"))
            self.scheduler.gone(model_id, self.now_s)
            self.step()

    def run(self, seconds: float) -> None:
        """Let time pass, with a step at every event and every tick."""
        end_s = self.now_s + seconds
        while self.now_s < end_s:
            next_s = min(self.now_s + TICK_S, end_s)
            if self._later and self._later[0][0] <= next_s:
                self.now_s, _, happen = heapq.heappop(self._later)
                happen()
            else:
                self.now_s = next_s
            self.step()

    def step(self) -> None:
        self._measure()
        for order in self.scheduler.step(self.now_s):
            self.log.append((self.now_s, order))
            match order:
                case Start():
                    self._on_start(order)
                case Stop():
                    self._on_stop(order)
                case Grant():
                    self._on_grant(order)
                case Refuse():
                    self._assert_undecided(order.request)
                    self.refused[order.request] = order.problem

    def orders(self, kind: type[Start | Stop]) -> list[str]:
        """The models that were started, or told to stop, in order."""
        return [order.model_id for _, order in self.log if isinstance(order, kind)]

    def _measure(self) -> None:
        self.scheduler.measured(minus(self.room, self.returning))

    def _after(self, seconds: float, happen: Callable[[], None]) -> None:
        self._num_events += 1
        heapq.heappush(self._later, (self.now_s + seconds, self._num_events, happen))

    def _on_start(self, order: Start) -> None:
        assert order.model_id not in self.engines, "two engines of one model"
        taken = plus(*(engine.held for engine in self.engines.values()), self.returning)
        assert fits(plus(taken, order.bytes_by_device), self.room), "over budget"
        fate = self.fates[order.model_id]
        engine = self.engines[order.model_id] = Engine(order.bytes_by_device, fate)

        def finish() -> None:
            if self.engines.get(order.model_id) is not engine or engine.state != "loading":
                return
            if fate.fails:
                self._end(order.model_id)
                problem = EngineProblem(f"{order.model_id}: does not start")
                self.scheduler.failed(order.model_id, self.now_s, problem)
            else:
                engine.state = "ready"
                self.scheduler.started(order.model_id, self.now_s)

        self._after(fate.load_s, finish)

    def _on_stop(self, order: Stop) -> None:
        engine = self.engines[order.model_id]
        assert engine.state in ("loading", "ready"), "stopped twice"
        if not order.is_forced:
            assert not engine.users, "stopped while in use"
            if engine.state == "loading":
                wanted = {request.model_id for request in self.waiting}
                assert order.model_id not in wanted, "a wanted load was called off"
        engine.state = "stopping"

        def finish() -> None:
            self._end(order.model_id)
            self.scheduler.gone(order.model_id, self.now_s)

        self._after(engine.fate.stop_s, finish)

    def _on_grant(self, order: Grant) -> None:
        self._assert_undecided(order.request)
        engine = self.engines[order.model_id]
        request = self.asked[order.request]
        assert request.model_id == order.model_id
        assert engine.state == "ready", "granted without an engine"
        engine.users.add(order.request)
        heavy = [number for number in engine.users if not self.asked[number].is_light]
        assert len(heavy) <= self.scheduler.models[order.model_id].slots, "more than the slots"
        self.granted_s[order.request] = self.now_s
        self._after(self.use_s[order.request], lambda: self.leave(order.request))

    def _assert_undecided(self, number: int) -> None:
        assert number in self.asked
        assert number not in self.granted_s, "decided twice"
        assert number not in self.refused, "decided twice"
        assert number not in self.left, "decided after its client left"

    def _end(self, model_id: str) -> None:
        engine = self.engines.pop(model_id)
        self.returning = plus(self.returning, engine.held)

        def come_back() -> None:
            self.returning = minus(self.returning, engine.held)

        self._after(engine.fate.memory_s, come_back)
