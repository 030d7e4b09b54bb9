"""One client's request on its way through the gateway, and how it went."""

from __future__ import annotations

from dataclasses import dataclass

from hotset.gateway.dialects.collect import Collector
from hotset.gateway.dialects.failure import Failure
from hotset.gateway.dialects.streams import Usage
from hotset.gateway.endpoints import Endpoint
from hotset.gateway.pool import ServedModel

__all__ = ["Call", "Outcome"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """One client's request, checked and ready to be passed on.

    Attributes:
        asked: the name that the client used for the model.
        body: what the engine gets.
        other_body: a second form, for an engine that refuses the first.
        headers: for the engine, without any key.
        is_stream: whether the client gets one.
        collector: puts the engine's stream together for a client that does not.
        wants_usage: whether a stream brings usage as an event of its own.
        has_tools: whether the model is offered any.
        has_images: whether the request brings pictures.
        client: address, for people.
    """

    request_id: str
    endpoint: Endpoint
    model: ServedModel
    asked: str
    body: bytes
    other_body: bytes | None = None
    headers: tuple[tuple[str, str], ...] = ()
    method: str = "POST"
    is_stream: bool = False
    collector: Collector | None = None
    wants_usage: bool = True
    has_tools: bool = False
    has_images: bool = False
    client: str = ""


@dataclass(slots=True)
class Outcome:
    """How a call went. Times are of the monotonic clock, in seconds.

    Attributes:
        held_at: when its model was ready for it; 0 if that was never.
        first_at: of the first byte of the answer; 0 if there was none.
    """

    call: Call
    began_at: float
    status: int = 0
    failure: Failure | None = None
    usage: Usage | None = None
    held_at: float = 0.0
    first_at: float = 0.0
    ended_at: float = 0.0
