"""What the scheduler keeps in mind: models, requests, and what it orders."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hotset.core.errors import HotsetError

__all__ = [
    "Action",
    "Bytes",
    "Grant",
    "Model",
    "Phase",
    "Refuse",
    "Request",
    "Rules",
    "Start",
    "Stop",
    "fits",
    "minus",
    "plus",
]

Bytes = Mapping[str, int]
"""Device name ("RAM", "Vulkan0") to bytes."""


def plus(*amounts: Bytes) -> dict[str, int]:
    total: dict[str, int] = {}
    for amount in amounts:
        for device, n_bytes in amount.items():
            total[device] = total.get(device, 0) + n_bytes
    return total


def minus(have: Bytes, *amounts: Bytes) -> dict[str, int]:
    """What is left of `have`; below zero where more is taken than there is."""
    return plus(have, *({device: -n for device, n in amount.items()} for amount in amounts))


def fits(need: Bytes, room: Bytes) -> bool:
    """Whether every device has the room; one that `room` does not name has none."""
    return all(n_bytes <= room.get(device, 0) for device, n_bytes in need.items() if n_bytes > 0)


class Phase(StrEnum):
    """Where a model's engine is. All but the first hold memory."""

    OUT = "out"
    LOADING = "loading"
    READY = "ready"
    STOPPING = "stopping"
    RETURNING = "returning"
    """The process is gone; its memory is not seen to be free again yet."""


@dataclass(frozen=True, slots=True)
class Rules:
    """The scheduler's constants, seconds unless named otherwise.

    Attributes:
        max_wait_s: a request for another model that has waited so long closes a busy model to new
            requests; those at work are finished.
        least_stay_s: a model that is in use stays so long after its start, or as long as its start
            took, up to `max_wait_s`, before it is closed.
        linger_part: one that is idle leaves for another after this part of that time. A client
            that works with it needs a moment between two requests.
        return_wait_s: how long an ended engine's memory is awaited.
        tolerance: part of a model's bytes that may still be missing then.
        first_pause_s, longest_pause_s: no new start so long after a failed one; doubles each time.
        max_waiting: requests in one model's queue.
        retry_after_s: what a client beyond that is told.
    """

    max_wait_s: float = 30.0
    least_stay_s: float = 1.0
    linger_part: float = 0.25
    return_wait_s: float = 5.0
    tolerance: float = 0.05
    first_pause_s: float = 2.0
    longest_pause_s: float = 60.0
    max_waiting: int = 100
    retry_after_s: float = 5.0


@dataclass(slots=True)
class Request:
    """One request from its arrival until its client has what it wants, or has left.

    Attributes:
        number: unique; also the order of arrival.
        is_light: takes no slot.
    """

    number: int
    model_id: str
    asked_s: float
    is_light: bool = False


@dataclass(slots=True)
class Model:
    """One model and its engine, as the scheduler knows them.

    Attributes:
        need: bytes that it would take.
        held: bytes that its engine takes, by `phase`; nothing when OUT.
        slots: requests at the same time.
        ttl_s: idle time after which it leaves; None for never.
        is_pinned: never leaves by itself.
        waiting, running: requests by number, in order of arrival.
        is_closed: grants nothing new, because others have waited long enough.
        is_unloading: leaves when its running requests are finished, by a user's wish.
        unload_why: which wish that is.
        since_s: begin of the phase.
        used_s: end of the last use, or the start's end.
        ready_s: end of the last start.
        load_s: how long it took.
        room_before: free bytes as measured before its engine ended.
        num_failures: starts that failed in a row.
        problem: the last of them, until a start succeeds.
        retry_s: no start before.
        why: one line about the phase, for people.
        wait_why: one line about what those who wait for it wait for, while it is out.
    """

    id: str
    need: Bytes
    slots: int = 1
    ttl_s: float | None = None
    is_pinned: bool = False
    phase: Phase = Phase.OUT
    held: Bytes = field(default_factory=dict)
    waiting: dict[int, Request] = field(default_factory=dict)
    running: dict[int, Request] = field(default_factory=dict)
    is_closed: bool = False
    is_unloading: bool = False
    unload_why: str = "unloaded by hand"
    since_s: float = 0.0
    used_s: float = 0.0
    ready_s: float = 0.0
    load_s: float = 0.0
    room_before: Bytes = field(default_factory=dict)
    num_failures: int = 0
    problem: HotsetError | None = None
    retry_s: float = 0.0
    why: str = "nobody has asked for it yet"
    wait_why: str = ""

    def enter(self, phase: Phase, now_s: float, why: str) -> None:
        self.phase, self.since_s, self.why = phase, now_s, why

    @property
    def is_in(self) -> bool:
        """Whether it holds memory, or is about to take it."""
        return self.phase is not Phase.OUT

    @property
    def num_busy_slots(self) -> int:
        return sum(not request.is_light for request in self.running.values())

    @property
    def first_asked_s(self) -> float:
        """Arrival of the request that has waited longest; there is one."""
        return min(request.asked_s for request in self.waiting.values())

    @property
    def stays_idle_s(self) -> float:
        """How long it stays without a use."""
        return math.inf if self.is_pinned or self.ttl_s is None else self.ttl_s

    def stay_s(self, rules: Rules) -> float:
        """How long it stays after its start although others wait."""
        return min(max(self.load_s, rules.least_stay_s), rules.max_wait_s)

    def has_stayed(self, now_s: float, rules: Rules) -> bool:
        return now_s - self.since_s >= self.stay_s(rules)

    def is_idle(self) -> bool:
        """Ready, and nobody uses it or waits for it."""
        return self.phase is Phase.READY and not self.running and not self.waiting

    def may_leave(self, now_s: float, rules: Rules) -> bool:
        """Idle, and not just between two requests."""
        linger_s = self.stay_s(rules) * rules.linger_part
        return self.is_idle() and now_s - self.used_s >= linger_s


@dataclass(frozen=True, slots=True)
class Start:
    """Start the model's engine with no more than these bytes."""

    model_id: str
    bytes_by_device: Bytes


@dataclass(frozen=True, slots=True)
class Stop:
    """End the engine, or call its start off. Answers are cut off only with `is_forced`."""

    model_id: str
    reason: str
    is_forced: bool = False
    is_eviction: bool = False


@dataclass(frozen=True, slots=True)
class Grant:
    """The request may use the model now."""

    request: int
    model_id: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """The request ends with this problem."""

    request: int
    model_id: str
    problem: HotsetError


Action = Start | Stop | Grant | Refuse
