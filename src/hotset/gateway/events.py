"""News for pages and commands that watch: a small hub, and its server-sent form.

`GET /api/events`: each event is `event: TYPE`, `id: N`, `data: {"version": 1, "type": TYPE, ...}`.

- `models`: the first event: `models`, the list of `GET /api/models`.
- `model`: a model's state changed: `model`, one element of that list.
- `request`: a request ended: `request`, one row of `GET /api/activity`.
- `lost`: the reader was too slow; `count` events are missing. Ask `/api/models` again.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import contextmanager
from typing import Any

from hotset.gateway.dialects.streams import event_bytes

__all__ = ["VERSION", "EventHub", "own_form"]

VERSION = 1
_MAX_WAITING = 256


def own_form(event: dict[str, Any]) -> bytes:
    """As `GET /api/events` has it."""
    return f"id: {event['number']}\n".encode() + event_bytes(event, event["type"])


class _Reader:
    def __init__(self) -> None:
        self.queue: asyncio.Queue[dict[str, Any]] = asyncio.Queue(_MAX_WAITING)
        self.lost = 0


class EventHub:
    """Passes each event to all readers; never waits for one. For one event loop."""

    def __init__(self) -> None:
        self._readers: set[_Reader] = set()
        self._number = 0
        self._closed = asyncio.Event()

    def publish(self, kind: str, **data: Any) -> None:
        self._number += 1
        event = {"version": VERSION, "number": self._number, "type": kind, **data}
        for reader in self._readers:
            try:
                reader.queue.put_nowait(event)
            except asyncio.QueueFull:
                reader.lost += 1

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    async def closed(self) -> None:
        """Wait until it closes."""
        await self._closed.wait()

    def close(self) -> None:
        """End all streams, so that the server can stop."""
        self._closed.set()

    async def stream(
        self,
        first: Callable[[], dict[str, Any]],
        keep_alive_s: float,
        write: Callable[[dict[str, Any]], bytes] = own_form,
    ) -> AsyncIterator[bytes]:
        """Events as bytes until the hub closes.

        Args:
            first: gives the data of the first one.
            write: their form; what it gives no bytes for is left out.
        """
        with self._reading() as reader:
            yield write({"version": VERSION, "number": self._number, **first()})
            closing = asyncio.ensure_future(self.closed())
            try:
                while not closing.done():
                    news = asyncio.ensure_future(reader.queue.get())
                    done, _ = await asyncio.wait(
                        (news, closing),
                        timeout=keep_alive_s,
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                    if news not in done:
                        news.cancel()
                        if not done:
                            yield b": keep-alive\n\n"
                        continue
                    yield write(news.result())
                    if reader.lost and reader.queue.empty():
                        count, reader.lost = reader.lost, 0
                        yield write(
                            {
                                "version": VERSION,
                                "number": self._number,
                                "type": "lost",
                                "count": count,
                            }
                        )
            finally:
                closing.cancel()

    @contextmanager
    def _reading(self) -> Iterator[_Reader]:
        reader = _Reader()
        self._readers.add(reader)
        try:
            yield reader
        finally:
            self._readers.discard(reader)
