"""From a client's request to an engine and back, byte for byte where that is right.

One request, in order: wait for the model (the pool decides), post to its engine, pass the answer
on as it comes. All the while the client's leaving is watched; it ends the wait, or closes the
engine's connection, and the engine stops computing.
"""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager, suppress

from starlette.types import Receive, Send

from hotset.core.errors import EngineProblem, HotsetError, MachineProblem
from hotset.gateway.answers import pass_back
from hotset.gateway.calls import Call, Outcome
from hotset.gateway.counting import Tokenizers
from hotset.gateway.dialects.failure import BadRequest, Failure, failure_from_engine, failure_of
from hotset.gateway.dialects.streams import count
from hotset.gateway.pool import Pool, Reach, Upstream, Waiting
from hotset.gateway.reply import Reply
from hotset.gateway.settings import GatewaySettings
from hotset.gateway.wire import CONNECT_TIMEOUT_S, EngineAnswer, ask_shortly, asking

__all__ = ["Relay"]

_log = logging.getLogger("hotset.gateway")

_KEPT_ENGINES = 64
_COUNT_PATH = "/v1/messages/count_tokens"
_ERROR_BYTES = 1024 * 1024
_CLIENT_LEFT = 499
_STOPPING = Failure(status=503, code="shutting_down", message="the gateway is being stopped")
_INTERNAL = Failure(status=500, code="internal_error", message="an error in the gateway itself")


class Relay:
    """Passes calls on. One per application, for one event loop.

    Args:
        tokenizers: answer what needs no weights while a model is not ready; None where there are
            none, and such a call needs the model itself.
    """

    def __init__(
        self, pool: Pool, settings: GatewaySettings, tokenizers: Tokenizers | None = None
    ) -> None:
        self._pool = pool
        self._settings = settings
        self._tokenizers = tokenizers
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
            await reply.fail(_INTERNAL)

    async def _hold_and_pass_on(self, call: Call, reply: Reply, outcome: Outcome) -> None:
        def on_wait(news: Waiting) -> None:
            reply.note = _one_line(news)

        async with self._held(call, on_wait) as upstream:
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

    @asynccontextmanager
    async def _held(
        self, call: Call, on_wait: Callable[[Waiting], None]
    ) -> AsyncIterator[Upstream]:
        """The model's engine; or its tokenizer alone, where that will do and it is not ready."""
        endpoint, tokenizers = call.endpoint, self._tokenizers
        if not endpoint.is_weightless or tokenizers is None or call.has_images:
            hold = self._pool.hold(
                call.model.id, on_wait, reach=endpoint.reach, is_light=endpoint.is_light
            )
            async with hold as upstream:
                yield upstream
            return
        async with AsyncExitStack() as stack:
            ready = self._pool.hold(call.model.id, reach=Reach.READY, is_light=True)
            try:
                upstream = await stack.enter_async_context(ready)
            except MachineProblem:
                upstream = await stack.enter_async_context(tokenizers.hold(call.model))
            yield upstream

    async def _pass_on(
        self, call: Call, upstream: Upstream, reply: Reply, outcome: Outcome
    ) -> None:
        """Post to the engine; where it refuses the conversation's order, once more in another.

        Raises:
            EngineProblem: it could not be reached, or broke off.
        """

        async def count_prompt() -> int:
            counted = await ask_shortly(upstream, "POST", _COUNT_PATH, call.body)
            return count(counted.get("input_tokens"))

        refused: Failure | None = None
        try:
            for body in (call.body, call.other_body):
                if body is None:
                    break
                async with asking(
                    upstream, call.method, call.endpoint.target, call.headers, body
                ) as answer:
                    if answer.status < 400:
                        name = upstream.model.id
                        await pass_back(call, name, answer, reply, outcome, count_prompt)
                        return
                    given = failure_from_engine(answer.status, await _error_of(answer))
                    refused = refused or given
                    if given.code == "context_length_exceeded":
                        refused = given
                        break
        except OSError as error:  # refused, reset, timed out, no free descriptor
            raise EngineProblem(
                f"{call.model.id}: the engine {_what_happened(error, reply.first_at)};"
                f" `hotset logs {call.model.id}` shows its last words"
            ) from error
        if refused is not None:
            await reply.fail(refused)

    async def _can_call_tools(self, upstream: Upstream) -> bool:
        """Whether the model's template knows tools. The engine would leave them out in silence."""
        engine = f"{upstream.model.id} {upstream.url}"  # a later engine may have the same port
        if engine not in self._with_tools:
            props = await ask_shortly(upstream, "GET", "/props")
            caps = props.get("chat_template_caps", {})
            if len(self._with_tools) >= _KEPT_ENGINES:
                self._with_tools.clear()
            self._with_tools[engine] = caps.get("supports_tools", True)
        return self._with_tools[engine]


async def _error_of(answer: EngineAnswer) -> bytes:
    """The body of an error, as far as it matters."""
    data = b""
    while len(data) < _ERROR_BYTES and (part := await answer.read()):
        data += part
    return data


async def _client_left(receive: Receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass


def _one_line(news: Waiting) -> str:
    if news.position:
        return f"position {news.position}: {news.reason}"
    if news.fraction is not None:
        return f"{news.reason} {news.fraction:.0%}"
    return news.reason


def _what_happened(error: OSError, first_at: float) -> str:
    if isinstance(error, ConnectionRefusedError):
        return "does not take connections"
    if isinstance(error, TimeoutError):
        return f"took no connection within {CONNECT_TIMEOUT_S:.0f} s"
    if not isinstance(error, ConnectionError):
        return f"cannot be reached ({error.strerror or error})"
    return "broke off the answer" if first_at else "closed the connection without an answer"
