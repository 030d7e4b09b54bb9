"""An answer on its way to one client: headers in time, comments into silence, one proper end."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterable
from contextlib import asynccontextmanager, suppress

from starlette.types import Send

from hotset.gateway.dialects.base import Dialect, encode
from hotset.gateway.dialects.failure import Failure

__all__ = ["Reply"]

Headers = list[tuple[bytes, bytes]]

_STREAM_HEADERS: Headers = [
    (b"content-type", b"text/event-stream; charset=utf-8"),
    (b"cache-control", b"no-cache"),
    # Some reverse proxies would collect a stream before they pass it on.
    (b"x-accel-buffering", b"no"),
]


class Reply:
    """Belongs to one request; used by one task, besides its own that fills silences.

    Attributes:
        status: what the client got or gets; 0 before the headers.
        failure: the error that it ended with.
        note: what a comment tells about the wait.
        first_at, last_at: of bytes of the answer itself, of the monotonic clock; 0 before.
    """

    def __init__(self, send: Send, dialect: Dialect, request_id: str, *, is_stream: bool) -> None:
        self.status = 0
        self.failure: Failure | None = None
        self.note = ""
        self.first_at = 0.0
        self.last_at = 0.0
        self._send = send
        self._dialect = dialect
        self._request_id = request_id
        self._is_stream = is_stream
        self._is_ended = False
        self._is_writing = False

    @property
    def has_begun(self) -> bool:
        return self.status != 0

    async def begin(self, status: int, headers: Iterable[tuple[bytes, bytes]]) -> None:
        self.status = status
        await self._send({"type": "http.response.start", "status": status, "headers": [*headers]})

    async def begin_stream(self) -> None:
        """The headers of a stream, unless the silence has brought them already."""
        if not self.has_begun:
            await self.begin(200, _STREAM_HEADERS)

    async def write(self, data: bytes) -> None:
        """Pass bytes on; waits where the client reads slowly."""
        self._is_writing = True
        await self._send({"type": "http.response.body", "body": data, "more_body": True})
        self._is_writing = False
        self.last_at = time.monotonic()
        self.first_at = self.first_at or self.last_at

    async def end(self, data: bytes = b"") -> None:
        self._is_ended = True
        if data:
            self.last_at = time.monotonic()
            self.first_at = self.first_at or self.last_at
        await self._send({"type": "http.response.body", "body": data, "more_body": False})

    async def whole(self, body: bytes) -> None:
        """A JSON answer in one piece."""
        length = str(len(body)).encode()
        await self.begin(200, [(b"content-type", b"application/json"), (b"content-length", length)])
        await self.end(body)

    async def fail(self, failure: Failure) -> None:
        """End with an error: as a status where nothing was sent yet, else as the last event.

        A body with a stated length that breaks off is left incomplete: the server then closes the
        connection, and the client sees that something is missing.
        """
        self.failure = failure
        if not self.has_begun:
            body = encode(self._dialect.error(failure, self._request_id))
            headers = [
                (b"content-type", b"application/json"),
                (b"content-length", str(len(body)).encode()),
            ]
            if failure.retry_after_s is not None:
                headers.append((b"retry-after", str(max(1, round(failure.retry_after_s))).encode()))
            await self.begin(failure.status, headers)
            await self.end(body)
        elif self._is_stream and not self._is_ended:
            await self.end(self._dialect.error_event(failure, self._request_id))

    @asynccontextmanager
    async def kept_alive(self, *, headers_after_s: float, every_s: float) -> AsyncIterator[None]:
        """Within the block a silent stream gets its headers, and then comments."""
        task: asyncio.Task[None] | None = None

        def begin() -> None:
            nonlocal task
            task = asyncio.create_task(self._fill_silence(every_s))

        # Most answers begin before that, and then there was no task at all.
        timer = asyncio.get_running_loop().call_later(headers_after_s, begin)
        try:
            yield
        finally:
            timer.cancel()
            if task is not None:
                task.cancel()
                with suppress(asyncio.CancelledError):
                    await task

    async def _fill_silence(self, every_s: float) -> None:
        await self.begin_stream()
        spoke_at = -every_s
        while not self._is_ended:
            silent_s = time.monotonic() - max(self.last_at, spoke_at)
            if silent_s >= every_s and not self._is_writing:
                spoke_at = time.monotonic()
                await self._comment()
                silent_s = 0.0
            await asyncio.sleep(max(every_s - silent_s, 0.01))

    async def _comment(self) -> None:
        note = f" {self.note}" if self.note else ""
        text = f": keep-alive{note}\n\n".encode()
        await self._send({"type": "http.response.body", "body": text, "more_body": True})
