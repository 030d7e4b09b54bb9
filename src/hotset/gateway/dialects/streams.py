"""An engine's event stream on its way to the client: whole events, usage, and a proper end.

Bytes pass as they came. Only events that carry one of a dialect's marks are looked into, a few
per answer, so that a token costs no parsing. Inside JSON texts a quotation mark is always escaped,
so a mark with quotes in it cannot be part of a model's words.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

from hotset.core.errors import EngineProblem
from hotset.gateway.dialects.failure import Failure

__all__ = ["Event", "EventStream", "Rename", "Usage", "count", "event_bytes"]

_END = b"\n\n"
_MAX_EVENT_BYTES = 64 * 1024 * 1024


@dataclass(slots=True)
class Usage:
    """What an answer used, as far as the engine said; speeds in tokens per second."""

    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prompt_per_s: float = 0.0
    completion_per_s: float = 0.0

    def take_timings(self, timings: object) -> None:
        """From llama.cpp's `timings`: `prompt_n` counts what was read, `cache_n` what was not."""
        if not isinstance(timings, dict):
            return
        self.cached_tokens = count(timings.get("cache_n"))
        self.prompt_tokens = self.cached_tokens + count(timings.get("prompt_n"))
        self.completion_tokens = count(timings.get("predicted_n"))
        self.prompt_per_s = _speed(timings.get("prompt_per_second"))
        self.completion_per_s = _speed(timings.get("predicted_per_second"))


@dataclass(frozen=True, slots=True)
class Rename:
    """Puts the name that the client asked for in place of the engine's own."""

    old: bytes
    new: bytes

    @classmethod
    def between(cls, old: str, new: str) -> Rename | None:
        """None if there is nothing to do."""
        if old == new:
            return None
        return cls(b'"model":' + json.dumps(old).encode(), b'"model":' + json.dumps(new).encode())

    def apply(self, data: bytes) -> bytes:
        return data.replace(self.old, self.new)


@dataclass(frozen=True, slots=True)
class Event:
    """One server-sent event: its raw bytes without the blank line, its name, its data."""

    raw: bytes
    name: str
    data: str

    @classmethod
    def parse(cls, raw: bytes) -> Event:
        name, data = "", []
        for line in raw.decode("utf-8", errors="replace").split("\n"):
            field, _, value = line.partition(":")
            value = value.removeprefix(" ").removesuffix("\r")
            if field == "event":
                name = value
            elif field == "data":
                data.append(value)
        return cls(raw, name, "\n".join(data))

    def json(self) -> dict[str, Any]:
        """The data as an object; empty if it is none."""
        try:
            parsed = json.loads(self.data)
        except ValueError:
            return {}
        return parsed if isinstance(parsed, dict) else {}


class EventStream(ABC):
    """One answer's events, from the engine to the client. Not thread-safe; used once.

    Attributes:
        usage: filled while the events pass.
        is_complete: whether the dialect's own end mark has passed.
        failure: what the engine's error event said; nothing comes after it.
    """

    marks: tuple[bytes, ...]

    def __init__(self, rename: Rename | None) -> None:
        self.usage = Usage()
        self.is_complete = False
        self.failure: Failure | None = None
        self._rename = rename
        self._tail = b""

    def lacks_start(self, data: bytes) -> bool:
        """Whether the stream begins with these bytes, without the event that it must begin with."""
        del data
        return False

    def start(self, model: str, prompt_tokens: int) -> bytes:
        """The event that was missing."""
        del model, prompt_tokens
        return b""

    def feed(self, data: bytes) -> bytes:
        """What to send on for what came in: whole events only.

        Raises:
            EngineProblem: an event without an end.
        """
        if self._tail:
            data = self._tail + data
            self._tail = b""
        if not data.endswith(_END):
            cut = data.rfind(_END) + len(_END)
            if cut < len(_END):
                cut = 0
            data, self._tail = data[:cut], data[cut:]
            if len(self._tail) > _MAX_EVENT_BYTES:
                raise EngineProblem("the engine sent an event that does not end")
        if self._rename:
            data = self._rename.apply(data)
        for mark in self.marks:
            if mark in data:
                return self._look(data)
        return data

    def _look(self, data: bytes) -> bytes:
        passed = []
        for raw in data.removesuffix(_END).split(_END):
            if self.failure is None:
                passed.append(self.take(Event.parse(raw)))
        return b"".join(passed)

    @abstractmethod
    def take(self, event: Event) -> bytes:
        """Note what an event says; returns what the client gets for it, blank line included."""

    def flush(self) -> bytes:
        """What was kept back, when the stream has ended in whatever way."""
        return b""


def event_bytes(data: object, name: str = "") -> bytes:
    """An event with JSON data."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":")).encode()
    head = f"event: {name}\n".encode() if name else b""
    return head + b"data: " + text + _END


def count(value: object) -> int:
    """A token count out of parsed JSON; 0 for anything else."""
    return value if isinstance(value, int) and value >= 0 else 0


def _speed(value: object) -> float:
    return float(value) if isinstance(value, int | float) and value >= 0 else 0.0
