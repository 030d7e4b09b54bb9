"""The pool of models: the scheduler's orders carried out with real engines.

Everything here runs on one event loop; what blocks (planning, starting, ending) runs in threads and
reports back to it. Each event (a request, a client that leaves, an engine that is ready or dead)
takes one turn: the scheduler is told, asked for orders, and the orders are set going.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Collection, Coroutine, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager
from itertools import count
from types import TracebackType

from hotset.core.errors import ClientProblem, EngineProblem, HotsetError, MachineProblem
from hotset.gateway.ahead import ReadAhead
from hotset.gateway.explain import explain, places
from hotset.gateway.health import Health
from hotset.gateway.ledger import (
    Action,
    Grant,
    Model,
    Phase,
    Refuse,
    Request,
    Rules,
    Start,
    Stop,
    plus,
)
from hotset.gateway.lives import Life
from hotset.gateway.names import Names
from hotset.gateway.offers import Claims, Offer, Starter
from hotset.gateway.pool import Reach, Residence, ServedModel, State, Upstream, Waiting
from hotset.gateway.scheduler import Scheduler
from hotset.gateway.seats import Seats

__all__ = ["EnginePool"]

_DEFAULT_RULES = Rules()
# How often time alone may change something: while somebody waits, and while nobody does.
_BUSY_TICK_S = 0.1
_IDLE_TICK_S = 0.5
# What an engine gets for a polite end.
_GRACE_S = 5.0


class EnginePool:
    """See `hotset.gateway.pool.Pool` for what it offers. Use as an async context manager.

    Args:
        offers: the models; ids and aliases unique.
        default: the id that a request without a model's name means.
    """

    def __init__(
        self,
        offers: Sequence[Offer],
        starter: Starter,
        *,
        default: str | None = None,
        rules: Rules = _DEFAULT_RULES,
    ) -> None:
        self._offers = {offer.name.id: offer for offer in sorted(offers, key=lambda o: o.name.id)}
        self._names = Names([offer.name for offer in self._offers.values()], default)
        self._starter = starter
        self._scheduler = Scheduler((offer.model() for offer in self._offers.values()), rules)
        self._threads = ThreadPoolExecutor(2 * len(offers) + 2, thread_name_prefix="engines")
        self._lives = {id_: Life(id_, self._threads) for id_ in self._offers}
        self._health = Health()
        self._ahead = ReadAhead(
            starter, self._claims, lambda id_, line: self._lives[id_].note(line)
        )
        self._grace_s = 0.0
        self._numbers = count(1)
        self._seats = Seats()
        self._watchers: list[Callable[[ServedModel], None]] = []
        self._shown: dict[str, ServedModel] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._retired: set[str] = set()

    async def __aenter__(self) -> EnginePool:
        self._shown = {model.id: model for model in self.models()}
        self._spawn(self._tick())
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        """End every engine: at once, or politely where `close` has let answers finish."""
        self._scheduler.close()
        self._turn()
        for task in list(self._tasks):
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        await asyncio.gather(*(life.end(grace_s=self._grace_s) for life in self._lives.values()))
        await self._health.close()
        self._ahead.close()
        self._threads.shutdown()

    async def close(self) -> None:
        """Take no more requests, refuse those that wait, and return once the others are done."""
        self._scheduler.close()
        self._turn()
        while any(model.running for model in self._scheduler.models.values()):
            await asyncio.sleep(_BUSY_TICK_S)
        self._grace_s = _GRACE_S

    def hurry(self) -> None:
        """Have the pool's end take no time for conversations, also while it is at that already."""
        self._grace_s = 0.0
        for life in self._lives.values():
            life.hurry()

    @property
    def is_closing(self) -> bool:
        return self._scheduler.is_closing

    @property
    def num_busy(self) -> int:
        """Requests that hold a model now."""
        return sum(len(model.running) for model in self._scheduler.models.values())

    def reoffer(
        self, offers: Sequence[Offer], changed: Collection[str], *, default: str | None = None
    ) -> None:
        """Take over another list of models; those that stay as they are notice nothing of it.

        A changed model, and one that is not offered any more, leaves after its running answers.
        Those that wait for a changed one get it as it is now.

        Args:
            changed: ids of models that have to start anew.
        """
        self._names = Names([offer.name for offer in offers], default)
        fresh = {offer.name.id: offer for offer in offers}
        for id_, offer in fresh.items():
            if id_ not in self._scheduler.models:
                self._scheduler.add(offer.model())
                self._lives[id_] = Life(id_, self._threads)
            elif id_ in changed or id_ in self._retired:
                self._scheduler.describe(offer.model())
        self._retired = self._scheduler.models.keys() - fresh.keys()
        for id_ in self._retired:
            self._scheduler.retire(id_)
        self._offers |= fresh
        self._shown = {model.id: self._shown.get(model.id, model) for model in self.models()}
        self._turn()

    # What the relay asks for.

    def models(self) -> list[ServedModel]:
        return [self._served(model) for model in self._scheduler.models.values()]

    def resolve(self, name: str) -> ServedModel:
        return self._served(self._scheduler.models[self._names.resolve(name)])

    @asynccontextmanager
    async def hold(
        self,
        model_id: str,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        reach: Reach = Reach.ANY,
        is_light: bool = False,
    ) -> AsyncIterator[Upstream]:
        model = self._known(model_id)
        self._check_reach(model, reach, is_light=is_light)
        number = next(self._numbers)
        upstream = self._seats.take(number, model.id, on_wait)
        self._scheduler.ask(Request(number, model.id, time.monotonic(), is_light))
        try:
            self._turn()
            if not upstream.done():
                self._tell_waiting()
            yield await upstream
        except EngineProblem:
            self._notice_death(model)
            self._spawn(self._examine(model))
            raise
        finally:
            self._seats.leave(number)
            self._scheduler.leave(number, time.monotonic())
            self._turn()

    async def load(self, model_id: str) -> None:
        self._scheduler.forgive(self._known(model_id).id)
        async with self.hold(model_id, is_light=True):
            pass

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        model = self._known(model_id)
        if model.phase is Phase.LOADING and model.waiting and not force:
            raise ClientProblem(
                f"{model_id}: is being loaded for {len(model.waiting)} requests; wait, or force it",
                409,
            )
        self._scheduler.unload(model.id, time.monotonic(), is_forced=force)
        self._turn()
        while model.is_unloading or model.phase in (Phase.STOPPING, Phase.RETURNING):
            await asyncio.sleep(_BUSY_TICK_S / 2)

    def residence(self, model_id: str) -> Residence:
        model = self._known(model_id)
        life, now_s = self._lives[model.id], time.monotonic()
        hits, look_ups = life.handle.num_expert_look_ups() if life.handle else (0, 0)
        leaves_in_s = None
        if model.is_idle() and model.ttl_s is not None and not model.is_pinned:
            leaves_in_s = max(0.0, model.ttl_s - (now_s - model.used_s))
        return Residence(
            pid=life.handle.pid if life.handle else None,
            since_s=time.time() - (now_s - model.since_s) if model.since_s else 0.0,
            num_busy=len(model.running),
            num_queued=len(model.waiting),
            slots=model.slots,
            leaves_in_s=leaves_in_s,
            memory_bytes=dict(model.held or model.need),
            load_s=model.load_s or None,
            num_loads=life.num_loads,
            num_failures=life.num_failures,
            num_evictions=life.num_evictions,
            num_expert_hits=hits,
            num_expert_requests=look_ups,
        )

    def why(self, model_id: str) -> Sequence[str]:
        return explain(self._scheduler, self._known(model_id), time.monotonic())

    def log_lines(self, model_id: str) -> Sequence[tuple[int, str]]:
        return self._lives[self._known(model_id).id].log.lines()

    def watch(self, on_change: Callable[[ServedModel], None]) -> Callable[[], None]:
        self._watchers.append(on_change)

        def end() -> None:
            if on_change in self._watchers:
                self._watchers.remove(on_change)

        return end

    # The loop.

    async def _tick(self) -> None:
        """Time passes: idle times end, engines die unasked, waiters want news."""
        while True:
            for model in self._health.due(self._ready()):
                self._spawn(self._examine(model))
            self._turn()
            self._tell_waiting()
            await asyncio.sleep(_BUSY_TICK_S if self._is_busy() else _IDLE_TICK_S)

    def _turn(self) -> None:
        """Ask the scheduler what is to be done now, and set it going."""
        models = self._scheduler.models.values()
        for model in models:
            self._notice_death(model)
        if any(m.waiting or m.is_in for m in models if m.phase is not Phase.READY):
            self._measure()
        for order in self._scheduler.step(time.monotonic()):
            self._carry_out(order)
        self._ahead.want(self._next_to_read())
        self._tell_watchers()
        for id_ in [id_ for id_ in self._retired if self._scheduler.forget(id_)]:
            self._retired.discard(id_)
            del self._lives[id_], self._offers[id_], self._shown[id_]

    def _carry_out(self, order: Action) -> None:
        match order:
            case Start():
                self._spawn(self._start(order))
            case Stop():
                life = self._lives[order.model_id]
                life.note(order.reason)
                life.num_evictions += order.is_eviction
                self._spawn(self._stop(order))
            case Grant():
                self._grant(order)
            case Refuse():
                self._seats.refuse(order.request, order.problem)

    def _grant(self, order: Grant) -> None:
        if handle := self._lives[order.model_id].handle:
            model = self._served(self._scheduler.models[order.model_id])
            upstream = Upstream(model=model, url=handle.url, api_key=handle.api_key)
            self._seats.give(order.request, upstream)

    async def _start(self, order: Start) -> None:
        life = self._lives[order.model_id]
        try:
            handle = await life.start(self._starter, order.bytes_by_device)
        except HotsetError as problem:
            if life.is_called_off:
                self._scheduler.gone(order.model_id, time.monotonic())
            else:
                self._scheduler.failed(order.model_id, time.monotonic(), problem)
        else:
            self._health.begin(order.model_id)
            self._scheduler.started(order.model_id, time.monotonic(), handle.held)
        self._turn()

    async def _stop(self, order: Stop) -> None:
        life = self._lives[order.model_id]
        if life.is_starting:
            life.call_off()  # `_start` reports its end
            return
        await life.end(grace_s=0.0 if order.is_forced else _GRACE_S)
        self._scheduler.gone(order.model_id, time.monotonic())
        self._turn()

    def _notice_death(self, model: Model) -> None:
        handle = self._lives[model.id].handle
        if model.phase is Phase.READY and handle and not handle.is_alive():
            self._bury(model, handle.died())

    def _bury(self, model: Model, problem: EngineProblem) -> None:
        """An engine that was ready has ended, or has to end: nobody gets it any more."""
        life = self._lives[model.id]
        life.note(problem.message)
        life.num_failures += 1
        self._scheduler.died(model.id, time.monotonic(), problem)
        self._spawn(self._stop(Stop(model.id, problem.message, is_forced=True)))

    async def _examine(self, model: Model) -> None:
        """Ask a ready engine for its health, and replace it if it has not answered for too long."""
        handle = self._lives[model.id].handle
        if model.phase is not Phase.READY or handle is None:
            return
        silent_s = await self._health.ask(model.id, handle)
        if silent_s and model in self._ready():
            what = f"{model.id}: the engine has not answered for {silent_s:.0f} s; it was ended"
            self._bury(model, EngineProblem(what))
            self._turn()

    # Small things.

    def _measure(self) -> None:
        self._scheduler.measured(self._starter.room(self._claims().pids))

    def _claims(self) -> Claims:
        pids = [life.pid for life in self._lives.values() if life.pid]
        return Claims(pids, plus(*(model.held for model in self._scheduler.models.values())))

    def _next_to_read(self) -> str | None:
        """The model that comes next, unless a busy one reads its experts from the disk itself."""
        for model in self._ready():
            handle = self._lives[model.id].handle
            if model.running and handle and handle.num_expert_look_ups()[1]:
                return None
        wanted = self._scheduler.next_in()
        return wanted.id if wanted else None

    def _known(self, model_id: str) -> Model:
        model = self._scheduler.models.get(model_id)
        return model or self._scheduler.models[self._names.resolve(model_id)]

    def _check_reach(self, model: Model, reach: Reach, *, is_light: bool) -> None:
        """Refuse a hold that would go further than its client wants."""
        if reach is Reach.ANY:
            return
        is_open = model.phase is Phase.READY and not (model.is_closed or model.is_unloading)
        if is_open and (is_light or model.num_busy_slots < model.slots):
            return
        if reach is Reach.FREE:
            self._measure()
            if is_open or model.phase is Phase.LOADING or self._scheduler.has_room(model):
                return
        raise MachineProblem(f"{model.id}: is not ready ({self._state(model)}: {model.why})")

    def _served(self, model: Model) -> ServedModel:
        offer, handle = self._offers[model.id], self._lives[model.id].handle
        return ServedModel(
            id=model.id,
            aliases=offer.name.aliases,
            capabilities=offer.capabilities,
            context_tokens=handle.context_tokens if handle else offer.context_tokens,
            n_bytes=offer.n_bytes,
            created_s=offer.created_s,
            state=self._state(model),
            why=model.wait_why if model.waiting and not model.is_in else model.why,
        )

    def _state(self, model: Model) -> State:
        match model.phase:
            case Phase.LOADING:
                return State.LOADING
            case Phase.READY:
                is_leaving = model.is_closed or model.is_unloading
                return State.DRAINING if is_leaving else State.READY
            case Phase.STOPPING | Phase.RETURNING:
                return State.DRAINING
            case Phase.OUT:
                if model.waiting:
                    return State.QUEUED
                return State.FAILED if model.problem else State.UNLOADED

    def _ready(self) -> list[Model]:
        return [m for m in self._scheduler.models.values() if m.phase is Phase.READY]

    def _is_busy(self) -> bool:
        models = self._scheduler.models.values()
        return any(m.waiting or m.phase not in (Phase.OUT, Phase.READY) for m in models)

    def _tell_waiting(self) -> None:
        if self._seats.has_waiting:
            self._seats.tell(places(self._scheduler), lambda id_: self._lives[id_].fraction)

    def _tell_watchers(self) -> None:
        for model in self.models():
            if self._shown.get(model.id) != model:
                is_news = self._shown[model.id].state is not model.state
                self._shown[model.id] = model
                for watcher in list(self._watchers) if is_news else ():
                    watcher(model)

    def _spawn(self, coroutine: Coroutine[None, None, None]) -> None:
        task = asyncio.create_task(coroutine)
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)
