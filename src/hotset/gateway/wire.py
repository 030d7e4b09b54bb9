"""One request to an engine and its answer: HTTP/1.1 on a connection of its own.

Connections are not kept. llama.cpp's server has a thread for each one, for as long as it is open,
and closes idle ones at any moment; a request must not be lost on one that is about to close. On
loopback a new connection costs less than what a general client does for a request, which is why
this is not one.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterable, Sequence
from contextlib import asynccontextmanager
from functools import lru_cache
from typing import Any, cast
from urllib.parse import urlsplit

import httptools

from hotset.gateway.pool import Upstream

__all__ = ["CONNECT_TIMEOUT_S", "EngineAnswer", "ask_shortly", "asking"]

CONNECT_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 10.0
_MAX_WAITING_BYTES = 256 * 1024
"""What is read ahead of a slow client before the engine has to wait, too."""
_NO_CONTENT = (204, 304)


class EngineAnswer(asyncio.Protocol):
    """An engine's answer as it comes. For one reader.

    Attributes:
        status: 0 before the headers.
        headers: names in small letters.
        is_complete: whether its end has come; what has not been read yet can still be read.
    """

    def __init__(self, *, has_body: bool) -> None:
        self.status = 0
        self.headers: list[tuple[bytes, bytes]] = []
        self.is_complete = False
        self._has_body = has_body
        self._is_ended_by_close = True
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._num_bytes = 0
        self._is_paused = False
        self._news: asyncio.Future[None] | None = None
        self._error: Exception | None = None
        self._transport: asyncio.Transport | None = None

    def header(self, name: bytes) -> bytes:
        """The first value of a header; empty without one."""
        return next((value for key, value in self.headers if key == name), b"")

    async def read(self) -> bytes:
        """What has come since the last time; empty at the end.

        Raises:
            ConnectionError: it was broken off.
        """
        while not self._parts and not self.is_complete:
            await self._await_news()
        data = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._num_bytes = 0
        if self._is_paused and self._transport:
            self._is_paused = False
            self._transport.resume_reading()
        return data

    async def head(self) -> None:
        """Wait for the headers. Raises as `read`."""
        while not self.status:
            await self._await_news()

    async def _await_news(self) -> None:
        if self._error:
            raise self._error
        self._news = asyncio.get_running_loop().create_future()
        await self._news

    def _tell(self) -> None:
        if self._news and not self._news.done():
            self._news.set_result(None)

    def close(self) -> None:
        """The engine sees at once that nobody listens any more."""
        if self._transport:
            self._transport.abort()

    # What the connection tells.

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = cast("asyncio.Transport", transport)  # uvloop's own is no subclass

    def data_received(self, data: bytes) -> None:
        try:
            self._parser.feed_data(data)
        except httptools.HttpParserError as error:
            self._error = ConnectionError(f"the engine's answer is no HTTP: {error}")
            self.close()
        if self._num_bytes > _MAX_WAITING_BYTES and not self._is_paused and self._transport:
            self._is_paused = True
            self._transport.pause_reading()
        self._tell()

    def connection_lost(self, error: Exception | None) -> None:
        if error is None and self.status and self._is_ended_by_close:
            self.is_complete = True
        elif not self.is_complete:
            self._error = self._error or error or ConnectionResetError("the connection was closed")
        self._tell()

    # What the parser tells.

    def on_header(self, name: bytes, value: bytes) -> None:
        name = name.lower()
        self.headers.append((name, value))
        if name in (b"content-length", b"transfer-encoding"):
            self._is_ended_by_close = False

    def on_headers_complete(self) -> None:
        status = self._parser.get_status_code()
        if status < 200:  # "go on": the real answer follows
            self.headers.clear()
            return
        self.status = status
        if not self._has_body or status in _NO_CONTENT:
            self.is_complete = True

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        self._num_bytes += len(body)

    def on_message_complete(self) -> None:
        self.is_complete = self.status != 0


@asynccontextmanager
async def asking(
    upstream: Upstream,
    method: str,
    target: str,
    headers: Iterable[tuple[str, str]] = (),
    body: bytes = b"",
) -> AsyncIterator[EngineAnswer]:
    """Ask an engine; within the block its answer can be read, afterwards the connection is closed.

    There is no deadline but for the connection itself: a long prompt is long silence.

    Args:
        target: path and query, encoded.
        headers: besides the connection's own and the engine's key.

    Raises:
        ConnectionError, TimeoutError, OSError: it does not take the connection, or closes it
            without an answer.
        ValueError: something in the head has a line break in it.
    """
    host, port = _address(upstream.url)
    lines = [f"{method} {target} HTTP/1.1", f"Host: {host}:{port}", "Connection: close"]
    lines += ["Accept-Encoding: identity", *(f"{name}: {value}" for name, value in headers)]
    if upstream.api_key:
        lines.append(f"Authorization: Bearer {upstream.api_key.reveal()}")
    if body or method not in ("GET", "HEAD"):
        lines.append(f"Content-Length: {len(body)}")
    async with asyncio.timeout(CONNECT_TIMEOUT_S):
        transport, answer = await asyncio.get_running_loop().create_connection(
            lambda: EngineAnswer(has_body=method != "HEAD"), host, port
        )
    try:
        transport.write(_head(lines) + body)
        await answer.head()
        yield answer
    finally:
        answer.close()


def _head(lines: Sequence[str]) -> bytes:
    text = "\r\n".join(lines)
    if text.count("\n") != len(lines) - 1 or text.count("\r") != len(lines) - 1:
        raise ValueError("a line break within a header")
    return f"{text}\r\n\r\n".encode("latin-1")


@lru_cache(maxsize=64)
def _address(url: str) -> tuple[str, int]:
    parts = urlsplit(url)
    return parts.hostname or "", parts.port or 80


async def ask_shortly(
    upstream: Upstream, method: str, target: str, body: bytes = b""
) -> dict[str, Any]:
    """A small question of the gateway's own; empty if the engine does not answer it soon."""
    headers = (("Content-Type", "application/json"),)
    try:
        async with (
            asyncio.timeout(_ASK_TIMEOUT_S),
            asking(upstream, method, target, headers, body) as answer,
        ):
            data = b""
            while part := await answer.read():
                data += part
            parsed = json.loads(data) if answer.status == 200 else {}
    except (OSError, ValueError):  # TimeoutError and ConnectionError are OSErrors
        return {}
    return parsed if isinstance(parsed, dict) else {}
