"""From a client's request to an engine and back, byte for byte where that is right.

One request, in order: wait for the model (the pool decides), post to its engine, pass the answer
on as it comes. All the while the client's leaving is watched; it ends the wait, or closes the
engine's connection, and the engine stops computing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from contextlib import AsyncExitStack, suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
from starlette.types import Receive, Send

from hotset.core.errors import EngineProblem, HotsetError
from hotset.gateway.dialects.base import encode
from hotset.gateway.dialects.collect import Collector
from hotset.gateway.dialects.failure import BadRequest, Failure, failure_from_engine, failure_of
from hotset.gateway.dialects.streams import Rename, Usage, count
from hotset.gateway.endpoints import Endpoint
from hotset.gateway.pool import Pool, ServedModel, Upstream, Waiting
from hotset.gateway.reply import Reply
from hotset.gateway.settings import GatewaySettings

__all__ = ["Call", "Outcome", "Relay", "make_session"]

_log = logging.getLogger("hotset.gateway")

_CONNECT_TIMEOUT_S = 5.0
_ASK_TIMEOUT_S = 10.0
_KEPT_ENGINES = 64
_COUNT_PATH = "/v1/messages/count_tokens"
_WHOLE_BYTES = 256 * 1024
"""An answer without a stream is read so far before its headers go out: an engine that dies within
it is still an error of its own."""
_ERROR_BYTES = 1024 * 1024
_EDGE_BYTES = 4096
"""Of an answer without a stream, kept at either end to read the usage from."""
_CLIENT_LEFT = 499
_STOPPING = Failure(status=503, code="shutting_down", message="the gateway is being stopped")

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"}
)
_NOT_PASSED_BACK = _HOP_BY_HOP | {b"content-length", b"server", b"date", b"set-cookie"}


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


class Relay:
    """Passes calls on. One per application, for one event loop.

    Args:
        session: made with `force_close`: an engine closes an idle connection at any moment, and a
            request must not be lost on one that is about to close. On loopback a new one costs a
            tenth of a millisecond.
    """

    def __init__(
        self, pool: Pool, session: aiohttp.ClientSession, settings: GatewaySettings
    ) -> None:
        self._pool = pool
        self._session = session
        self._settings = settings
        self._works: set[asyncio.Task[None]] = set()
        self._with_tools: dict[str, bool] = {}

    def cut(self) -> None:
        """End all answers now, each with an error that says so."""
        for work in self._works:
            work.cancel()

    async def run(self, call: Call, receive: Receive, send: Send) -> Outcome:
        """Answer one client, whatever happens. Raises nothing but cancellation."""
        outcome = Outcome(call, time.monotonic())
        reply = Reply(send, call.endpoint.dialect, call.request_id, is_stream=call.is_stream)
        work = asyncio.create_task(self._answer(call, reply, outcome))
        gone = asyncio.create_task(_client_left(receive))
        self._works.add(work)
        try:
            await asyncio.wait((work, gone), return_when=asyncio.FIRST_COMPLETED)
        finally:
            if not work.done():
                work.cancel()
            with suppress(asyncio.CancelledError):
                await work
            has_left = gone.done()
            gone.cancel()
            self._works.discard(work)
        if has_left and work.cancelled():
            outcome.status = _CLIENT_LEFT
        elif work.cancelled():
            await reply.fail(_STOPPING)
        outcome.status = outcome.status or reply.status
        outcome.failure = reply.failure
        outcome.first_at = reply.first_at
        outcome.ended_at = time.monotonic()
        return outcome

    async def _answer(self, call: Call, reply: Reply, outcome: Outcome) -> None:
        try:
            async with AsyncExitStack() as stack:
                if call.is_stream:
                    await stack.enter_async_context(
                        reply.kept_alive(
                            headers_after_s=self._settings.headers_after_s,
                            every_s=self._settings.keep_alive_s,
                        )
                    )
                await self._hold_and_pass_on(call, reply, outcome)
        except HotsetError as error:
            await reply.fail(failure_of(error))
        except Exception:
            _log.exception("request %s: internal error", call.request_id)
            await reply.fail(
                Failure(status=500, code="internal_error", message="an error in the gateway itself")
            )

    async def _hold_and_pass_on(self, call: Call, reply: Reply, outcome: Outcome) -> None:
        def on_wait(news: Waiting) -> None:
            reply.note = _one_line(news)

        endpoint = call.endpoint
        hold = self._pool.hold(
            call.model.id, on_wait, reach=endpoint.reach, is_light=endpoint.is_light
        )
        async with hold as upstream:
            outcome.held_at = time.monotonic()
            reply.note = ""
            if call.has_tools and not await self._can_call_tools(upstream):
                raise BadRequest(
                    f"the chat template of '{call.model.id}' has no tools; leave them out, or ask"
                    " another model",
                    "tools",
                    code="tools_not_supported",
                )
            await self._pass_on(call, upstream, reply, outcome)

    async def _pass_on(
        self, call: Call, upstream: Upstream, reply: Reply, outcome: Outcome
    ) -> None:
        """Post to the engine; where it refuses the conversation's order, once more in another.

        Raises:
            EngineProblem: it could not be reached, or broke off.
        """
        refused: Failure | None = None
        try:
            for body in (call.body, call.other_body):
                if body is None:
                    break
                async with self._session.request(
                    call.method,
                    upstream.url + call.endpoint.target,
                    data=body or None,
                    headers=_engine_headers(call, upstream),
                    allow_redirects=False,
                ) as response:
                    if response.status < 400:
                        await self._pass_back(call, upstream, response, reply, outcome)
                        return
                    given = failure_from_engine(
                        response.status, await response.content.read(_ERROR_BYTES)
                    )
                    refused = refused or given
                    if given.code == "context_length_exceeded":
                        refused = given
                        break
        except (aiohttp.ClientError, ConnectionError, TimeoutError) as error:
            raise EngineProblem(
                f"{call.model.id}: the engine {_what_happened(error, reply.first_at)};"
                f" `hotset logs {call.model.id}` shows its last words"
            ) from error
        if refused is not None:
            await reply.fail(refused)

    async def _can_call_tools(self, upstream: Upstream) -> bool:
        """Whether the model's template knows tools. The engine would leave them out in silence."""
        if upstream.url not in self._with_tools:
            props = await self._ask(upstream, "GET", "/props")
            caps = props.get("chat_template_caps", {})
            if len(self._with_tools) >= _KEPT_ENGINES:
                self._with_tools.clear()
            self._with_tools[upstream.url] = caps.get("supports_tools", True)
        return self._with_tools[upstream.url]

    async def _ask(
        self, upstream: Upstream, method: str, path: str, body: bytes | None = None
    ) -> dict[str, Any]:
        """A small question of the gateway's own; empty if the engine does not answer it."""
        headers = [("Content-Type", "application/json"), *_own_headers(upstream)]
        try:
            async with self._session.request(
                method,
                upstream.url + path,
                data=body,
                headers=headers,
                timeout=aiohttp.ClientTimeout(total=_ASK_TIMEOUT_S),
            ) as response:
                answer = await response.json() if response.status == 200 else {}
        except (aiohttp.ClientError, ConnectionError, TimeoutError, ValueError):
            return {}
        return answer if isinstance(answer, dict) else {}

    async def _pass_back(
        self,
        call: Call,
        upstream: Upstream,
        response: aiohttp.ClientResponse,
        reply: Reply,
        outcome: Outcome,
    ) -> None:
        rename = Rename.between(upstream.model.id, call.asked)
        if response.content_type == "text/event-stream":
            await self._pass_stream(call, upstream, rename, response, reply, outcome)
        elif reply.has_begun:
            raise EngineProblem(f"{call.model.id}: the engine answered without a stream")
        else:
            await self._pass_whole(call, rename, response, reply, outcome)

    async def _pass_stream(
        self,
        call: Call,
        upstream: Upstream,
        rename: Rename | None,
        response: aiohttp.ClientResponse,
        reply: Reply,
        outcome: Outcome,
    ) -> None:
        """Event by event. Back-pressure: while the client does not read, nor do we, nor can the
        engine write."""
        stream = call.endpoint.dialect.stream(rename=rename, wants_usage=call.wants_usage)
        outcome.usage = stream.usage
        collector = call.collector

        async def send(data: bytes) -> None:
            if collector is None:
                await reply.write(data)
            else:
                collector.add(data)

        if call.is_stream:
            await reply.begin_stream()
        try:
            async for data in response.content.iter_any():
                if stream.lacks_start(data):
                    counted = await self._ask(upstream, "POST", _COUNT_PATH, call.body)
                    num_tokens = count(counted.get("input_tokens"))
                    await send(stream.start(call.asked, num_tokens))
                if out := stream.feed(data):
                    await send(out)
                if stream.failure is not None:
                    await reply.fail(stream.failure)
                    return
        finally:
            if kept := stream.flush():
                await send(kept)
        if not stream.is_complete:
            raise EngineProblem(f"{call.model.id}: the engine broke off the answer")
        if collector is None:
            await reply.end()
        else:
            await reply.whole(encode(collector.answer()))

    async def _pass_whole(
        self,
        call: Call,
        rename: Rename | None,
        response: aiohttp.ClientResponse,
        reply: Reply,
        outcome: Outcome,
    ) -> None:
        """An answer in one piece. A long one is passed on in parts, never held as a whole."""
        head = bytearray()
        content = response.content
        while len(head) < _WHOLE_BYTES and not content.at_eof():
            head += await content.readany()
        first = bytes(head)
        headers = _passed_headers(response)
        dialect = call.endpoint.dialect
        if content.at_eof():
            first = rename.apply(first) if rename else first
            outcome.usage = dialect.usage_of(first[:_EDGE_BYTES], first[-_EDGE_BYTES:])
            length = str(len(first)).encode()
            await reply.begin(response.status, [*headers, (b"content-length", length)])
            await reply.end(first)
            return
        if response.content_length is not None:
            headers.append((b"content-length", str(response.content_length).encode()))
        await reply.begin(response.status, headers)
        await reply.write(first)
        tail = first[-_EDGE_BYTES:]
        async for data in content.iter_any():
            tail = (tail + data)[-_EDGE_BYTES:]
            await reply.write(data)
        outcome.usage = dialect.usage_of(first[:_EDGE_BYTES], tail)
        await reply.end()


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _one_line(news: Waiting) -> str:
    if news.position:
        return f"position {news.position}: {news.reason}"
    if news.fraction is not None:
        return f"{news.reason} {news.fraction:.0%}"
    return news.reason


def _engine_headers(call: Call, upstream: Upstream) -> list[tuple[str, str]]:
    return [*call.headers, ("Accept-Encoding", "identity"), *_own_headers(upstream)]


def _own_headers(upstream: Upstream) -> list[tuple[str, str]]:
    if upstream.api_key is None:
        return []
    return [("Authorization", f"Bearer {upstream.api_key.reveal()}")]


def _passed_headers(response: aiohttp.ClientResponse) -> list[tuple[bytes, bytes]]:
    """The engine's headers that a client gets: neither of the connection, nor of its origin."""
    return [
        (name, value)
        for name, value in ((n.lower(), v) for n, v in response.raw_headers)
        if name not in _NOT_PASSED_BACK and not name.startswith(b"access-control-")
    ]


def _what_happened(error: Exception, first_at: float) -> str:
    if isinstance(error, aiohttp.ClientConnectorError):
        return "does not take connections"
    if isinstance(error, TimeoutError):
        return f"took no connection within {_CONNECT_TIMEOUT_S:.0f} s"
    return "broke off the answer" if first_at else "closed the connection without an answer"


def make_session() -> aiohttp.ClientSession:
    """The client towards the engines: no total deadline, because a long prompt is long silence."""
    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=0, force_close=True),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_TIMEOUT_S),
        cookie_jar=aiohttp.DummyCookieJar(),
        auto_decompress=False,
    )
