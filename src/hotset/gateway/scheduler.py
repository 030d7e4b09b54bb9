"""Which models are loaded, whose turn it is, and who leaves: every decision, and nothing else.

Pure: what happens is told to it with the time at which it happened, `step` answers with orders.
It starts no process and reads no clock. Not safe for several threads.

The rules, in short. A request waits for its model in order of arrival; as many as the model has
slots use it at the same time. A model that is not loaded is started where its bytes fit. Where they
do not, idle models of least value leave. A busy one goes on with its own requests until another
model's have waited `max_wait_s`; then it takes no new ones, finishes what it has, and leaves.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from hotset.core.errors import ClientProblem, HotsetError, MachineProblem
from hotset.core.units import format_bytes
from hotset.gateway.eviction import choose_leaving
from hotset.gateway.ledger import (
    Action,
    Bytes,
    Grant,
    Model,
    Phase,
    Refuse,
    Request,
    Rules,
    Start,
    Stop,
    fits,
    minus,
    plus,
)

__all__ = ["Scheduler"]

_DEFAULT_RULES = Rules()


class Scheduler:
    """Decides for a fixed set of models.

    Attributes:
        models: by id; to be read only.
        room: bytes that all engines together may take, as last measured; empty before that.
        is_closing: no new requests, no new starts.
    """

    def __init__(self, models: Iterable[Model], rules: Rules = _DEFAULT_RULES) -> None:
        self._models = {model.id: model for model in models}
        self.models: Mapping[str, Model] = self._models
        self.rules = rules
        self.room: Bytes = {}
        self.is_closing = False
        self._owner: dict[int, Model] = {}
        self._orders: list[Action] = []

    def step(self, now_s: float) -> list[Action]:
        """Decide what can be decided now. Orders are given once and are to be carried out.

        Each `Start` is answered by `started`, `failed` or, after a `Stop`, by `gone`; each other
        `Stop` by `gone`.
        """
        self._take_memory_back(now_s)
        self._end_unused(now_s)
        self._grant()
        self._make_room(now_s)
        orders, self._orders = self._orders, []
        return orders

    def _take_memory_back(self, now_s: float) -> None:
        """Ended engines whose memory is free again, or has been awaited long enough, are out."""
        for model in self._in(Phase.RETURNING):
            missing = {d: int(n * self.rules.tolerance) for d, n in model.held.items()}
            is_back = fits(minus(model.room_before, missing), self.room)
            if is_back or now_s - model.since_s >= self.rules.return_wait_s:
                model.held = {}
                model.enter(Phase.OUT, now_s, model.why)

    def _end_unused(self, now_s: float) -> None:
        """What a user wants gone, once it is done, and what has been idle for its time."""
        for model in self._in(Phase.READY):
            idle_s = now_s - model.used_s
            if model.is_unloading and not model.running:
                self._stop(model, now_s, model.unload_why)
            elif model.is_idle() and idle_s >= model.stays_idle_s:
                self._stop(model, now_s, f"left after {idle_s:.0f} s without a request")

    def _grant(self) -> None:
        """Ready models take the requests that wait for them, as far as their slots go."""
        for model in self._in(Phase.READY):
            if model.is_closed or model.is_unloading:
                continue
            for request in list(model.waiting.values()):
                if request.is_light or model.num_busy_slots < model.slots:
                    model.running[request.number] = model.waiting.pop(request.number)
                    self._orders.append(Grant(request.number, model.id))

    def _make_room(self, now_s: float) -> None:
        """Start the models that are waited for, the longest awaited first; make others leave."""
        was_closed = {model.id for model in self.models.values() if model.is_closed}
        for model in self.models.values():
            model.is_closed = False
        if not self.room:
            return
        reserved: Bytes = {}
        for wanted in self._wanted():
            if not (need := self._affordable(wanted)):
                continue
            soon = minus(self._room_soon(), *(m.held for m in self._staying()), reserved)
            is_overdue = now_s - wanted.first_asked_s >= self.rules.max_wait_s
            if fits(need, soon):
                now = minus(self.room, *(model.held for model in self.models.values()))
                if fits(need, now):
                    self._start(wanted, need, now_s)
                else:
                    wanted.wait_why = "waits until memory is free again"
                    reserved = plus(reserved, need)
            elif leaving := choose_leaving(
                self._staying(), minus(need, soon), now_s, self.rules, was_closed, is_overdue
            ):
                self._push_out(leaving, wanted, now_s)
                reserved = plus(reserved, need)
            else:
                wanted.wait_why = "waits until a model in use is idle"
                if is_overdue:
                    break  # nobody behind it may take what it waits for

    def _push_out(self, leaving: list[Model], wanted: Model, now_s: float) -> None:
        """Close them; once the last of them is done, all of them go."""
        for model in leaving:
            model.is_closed = True
        names = ", ".join(model.id for model in leaving)
        busy = sum(len(model.running) for model in leaving)
        if busy:
            what = f"{busy} request{'s' if busy > 1 else ''}"
            wanted.wait_why = f"waits for {names} to finish {what}"
            return
        wanted.wait_why = f"waits for {names} to leave"
        for model in leaving:
            reason = f"left to make room for {wanted.id}"
            self._stop(model, now_s, reason, is_eviction=True)

    def _affordable(self, wanted: Model) -> Bytes:
        """Its need, as far as pinned models leave room at all; else its requests are refused."""
        pinned = [m for m in self.models.values() if m.is_pinned and m.is_in]
        most = minus(self._room_soon(), *(model.held for model in pinned))
        for device, n_bytes in wanted.need.items():
            if n_bytes > 0 >= most.get(device, 0):
                kept = ", ".join(model.id for model in pinned) or "other programs"
                self._refuse_all(
                    wanted,
                    MachineProblem(
                        f"{wanted.id}: needs {format_bytes(n_bytes)} of {device}, which {kept}"
                        " leave none of; unload or unpin a model, or close programs"
                    ),
                )
                return {}
        return {device: min(n, most.get(device, 0)) for device, n in wanted.need.items()}

    def _room_soon(self) -> Bytes:
        """The room, once the memory of engines that have just ended is free again."""
        before = [model.room_before for model in self._in(Phase.RETURNING)]
        return {
            device: max(n, *(b.get(device, 0) for b in before), 0)
            for device, n in self.room.items()
        }

    def _start(self, model: Model, n_bytes: Bytes, now_s: float) -> None:
        model.held = n_bytes
        model.room_before = self.room
        model.enter(Phase.LOADING, now_s, "is being loaded")
        self._orders.append(Start(model.id, n_bytes))

    def _stop(
        self,
        model: Model,
        now_s: float,
        reason: str,
        *,
        is_forced: bool = False,
        is_eviction: bool = False,
    ) -> None:
        model.is_closed = model.is_unloading = False
        model.room_before = self.room
        model.running.clear()
        model.enter(Phase.STOPPING, now_s, reason)
        self._orders.append(Stop(model.id, reason, is_forced, is_eviction))

    def _wanted(self) -> list[Model]:
        """Models that somebody waits for and that are not in memory, the longest awaited first."""
        wanted = [m for m in self.models.values() if m.waiting and not m.is_in]
        return sorted(wanted, key=lambda model: min(model.waiting))

    def _in(self, phase: Phase) -> list[Model]:
        return [model for model in self.models.values() if model.phase is phase]

    def _staying(self) -> list[Model]:
        """Models in memory that have not been told to leave."""
        phases = (Phase.LOADING, Phase.READY)
        return [m for m in self.models.values() if m.phase in phases and not m.is_closed]

    def _refuse_all(self, model: Model, problem: HotsetError) -> None:
        for number in list(model.waiting):
            self._refuse(model, number, problem)

    def _refuse(self, model: Model, number: int, problem: HotsetError) -> None:
        del model.waiting[number]
        del self._owner[number]
        self._orders.append(Refuse(number, model.id, problem))

    def has_room(self, model: Model) -> bool:
        """Whether it could be started now without another having to leave."""
        held = (other.held for other in self.models.values())
        return not model.is_in and fits(model.need, minus(self.room, *held))

    def next_in(self) -> Model | None:
        """The model that will be started next, once there is room for it; None if nobody waits."""
        return next(iter(self._wanted()), None)

    # What happens, in the order of a request's life.

    def ask(self, request: Request) -> None:
        """A request has arrived; `number` is higher than all before."""
        model, rules = self.models[request.model_id], self.rules
        model.waiting[request.number] = request
        self._owner[request.number] = model
        left_s = model.retry_s - request.asked_s
        if self.is_closing:
            self._refuse(model, request.number, MachineProblem("the gateway is being ended"))
        elif model.problem and left_s > 0:
            again = f"{model.problem.message} (not tried again for {left_s:.0f} s)"
            self._refuse(model, request.number, type(model.problem)(again))
        elif len(model.waiting) > rules.max_waiting:
            full = f"{model.id}: {rules.max_waiting} requests are waiting already; try again later"
            problem = ClientProblem(full, 429, retry_after_s=rules.retry_after_s)
            self._refuse(model, request.number, problem)

    def leave(self, number: int, now_s: float) -> None:
        """A request is done, or its client has left; without effect if it was refused."""
        model = self._owner.pop(number, None)
        if model is None:
            return
        model.waiting.pop(number, None)
        if model.running.pop(number, None):
            model.used_s = now_s
            model.num_failures = 0

    def measured(self, room: Bytes) -> None:
        """What all engines together may take now: what is free, and what they have."""
        self.room = room

    def started(self, model_id: str, now_s: float, held: Bytes | None = None) -> None:
        """Its engine answers.

        Args:
            held: what it takes, where that is not what it was allowed.
        """
        model = self.models[model_id]
        if model.phase is Phase.LOADING:
            model.load_s = now_s - model.since_s
            model.held = held or model.held
            model.used_s = model.ready_s = now_s
            model.problem = None
            model.enter(Phase.READY, now_s, f"loaded in {model.load_s:.1f} s")

    def failed(self, model_id: str, now_s: float, problem: HotsetError) -> None:
        """Its start failed, and its process is gone. Whoever waits is told at once."""
        model = self.models[model_id]
        self._note_failure(model, now_s, problem)
        model.num_failures += 1
        self.gone(model_id, now_s)

    def died(self, model_id: str, now_s: float, problem: HotsetError) -> None:
        """Its engine has ended by itself, or has to be ended; `gone` follows.

        It is started again for those who wait, unless that has just been tried: one that never
        serves fails like a start.
        """
        model = self.models[model_id]
        model.running.clear()
        model.room_before = self.room
        model.is_closed = model.is_unloading = False
        model.enter(Phase.STOPPING, now_s, problem.message)
        has_served = model.used_s > model.ready_s
        if not has_served and model.num_failures:
            self._note_failure(model, now_s, problem)
        model.num_failures += not has_served

    def gone(self, model_id: str, now_s: float) -> None:
        """The process of an engine that was to end is gone."""
        model = self.models[model_id]
        if model.is_in:
            model.is_unloading = False
            model.enter(Phase.RETURNING, now_s, model.why)

    def _note_failure(self, model: Model, now_s: float, problem: HotsetError) -> None:
        rules = self.rules
        pause_s = rules.first_pause_s * 2**model.num_failures
        model.retry_s = now_s + min(pause_s, rules.longest_pause_s)
        model.problem, model.why = problem, problem.message
        self._refuse_all(model, problem)

    def unload(self, model_id: str, now_s: float, *, is_forced: bool = False) -> None:
        """A user wants it out: after its running requests, or at once with `is_forced`."""
        model = self.models[model_id]
        model.unload_why = "unloaded by hand"
        if is_forced:
            self._refuse_all(model, MachineProblem(f"{model_id}: was unloaded by hand"))
        if model.phase is Phase.LOADING and not model.waiting:
            self._stop(model, now_s, "unloaded by hand", is_forced=True)
        elif model.phase is Phase.READY:
            model.is_unloading = True
            if is_forced:
                self._stop(model, now_s, "unloaded by hand", is_forced=True)

    def add(self, model: Model) -> None:
        """One more model."""
        self._models[model.id] = model

    def describe(self, model: Model) -> None:
        """A model is another one from now on: it leaves after its running requests, or once its
        load has ended, and those that wait for it get the new one.

        Args:
            model: as it is to be; only what does not change by itself is looked at.
        """
        old = self.models[model.id]
        old.need, old.slots = model.need, model.slots
        old.ttl_s, old.is_pinned = model.ttl_s, model.is_pinned
        old.problem, old.retry_s, old.num_failures = None, 0.0, 0
        if old.phase in (Phase.LOADING, Phase.READY):
            old.is_unloading, old.unload_why = True, "left because its settings have changed"

    def retire(self, model_id: str) -> None:
        """A model is not offered any more: it leaves after its running requests."""
        model = self.models[model_id]
        self._refuse_all(model, ClientProblem(f"there is no model '{model_id}' any more", 404))
        if model.phase in (Phase.LOADING, Phase.READY):
            model.is_unloading, model.unload_why = True, "left because it is not offered any more"

    def forget(self, model_id: str) -> bool:
        """Drop a model that is out; False while it is not."""
        model = self.models[model_id]
        if model.is_in or model.waiting:
            return False
        del self._models[model_id]
        return True

    def forgive(self, model_id: str) -> None:
        """A user wants a failed start tried again now."""
        self.models[model_id].retry_s = 0.0

    def close(self) -> None:
        """The gateway ends: whoever waits is refused, whoever runs may finish."""
        self.is_closing = True
        for model in self.models.values():
            self._refuse_all(model, MachineProblem("the gateway is being ended"))
