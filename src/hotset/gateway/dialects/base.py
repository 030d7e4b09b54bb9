"""What the relay asks of a dialect: check and mend a request, write errors, follow a stream."""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from hotset.gateway.dialects.collect import Collector
from hotset.gateway.dialects.failure import Failure
from hotset.gateway.dialects.streams import EventStream, Rename, Usage

__all__ = ["Dialect", "encode"]


class Dialect(ABC):
    """One way that clients talk. Stateless; one instance serves all requests.

    Attributes:
        name: for logs and metrics.
    """

    name: str

    def prepare(self, body: dict[str, Any], *, has_vision: bool) -> bool:
        """Check a request and mend in place what the engine would take wrongly.

        Returns whether anything was changed.

        Raises:
            BadRequest: with the place in the JSON.
        """
        del body, has_vision
        return False

    def rearranged(self, body: dict[str, Any]) -> dict[str, Any] | None:
        """The same conversation in an order that stricter chat templates take, no text lost.

        Sent only after the engine has refused the request as it came. None if there is nothing to
        rearrange. The argument stays as it is.
        """
        del body
        return None

    def wants_usage(self, body: dict[str, Any]) -> bool:
        """Whether the client asked for usage as an event of its own."""
        del body
        return True

    def collector(self, body: dict[str, Any]) -> Collector | None:
        """What puts a streamed answer together for a client that wants it whole.

        None where the engine's own whole answer has to do: then it is passed on as it is.
        """
        del body
        return None

    @abstractmethod
    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        """A follower for one streamed answer."""

    @abstractmethod
    def error(self, failure: Failure, request_id: str) -> dict[str, Any]:
        """The failure as the JSON of an answer."""

    @abstractmethod
    def error_event(self, failure: Failure, request_id: str) -> bytes:
        """The failure as the last event of a stream that has begun."""

    def usage_of(self, head: bytes, tail: bytes) -> Usage:
        """What a whole answer used, from its first and its last bytes."""
        del head, tail
        return Usage()


def encode(body: object) -> bytes:
    """JSON as bytes. A lone surrogate, which UTF-8 cannot carry, becomes a question mark."""
    return json.dumps(body, ensure_ascii=False, separators=(",", ":")).encode("utf-8", "replace")
