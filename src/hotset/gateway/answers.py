"""An engine's answer on its way back to a client, event by event or in one piece."""

from __future__ import annotations

from collections.abc import Awaitable, Callable

from hotset.core.errors import EngineProblem
from hotset.gateway.calls import Call, Outcome
from hotset.gateway.dialects.base import encode
from hotset.gateway.dialects.streams import Rename
from hotset.gateway.reply import Reply
from hotset.gateway.wire import EngineAnswer

__all__ = ["pass_back"]

_WHOLE_BYTES = 256 * 1024
"""An answer without a stream is read so far before its headers go out: an engine that dies within
it is still an error of its own."""
_EDGE_BYTES = 4096
"""Of an answer without a stream, kept at either end to read the usage from."""

_HOP_BY_HOP = frozenset(
    {b"connection", b"keep-alive", b"proxy-authenticate", b"proxy-authorization", b"te"}
    | {b"trailer", b"transfer-encoding", b"upgrade", b"proxy-connection"}
)
_NOT_PASSED_BACK = _HOP_BY_HOP | {b"content-length", b"server", b"date", b"set-cookie"}


async def pass_back(
    call: Call,
    engine_name: str,
    answer: EngineAnswer,
    reply: Reply,
    outcome: Outcome,
    count_prompt: Callable[[], Awaitable[int]],
) -> None:
    """Pass a good answer on.

    Args:
        engine_name: what the engine calls the model.
        count_prompt: asks the engine how many tokens the call's prompt has.

    Raises:
        EngineProblem: it does not fit what has been sent, or has no end.
        ConnectionError: it was broken off.
    """
    rename = Rename.between(engine_name, call.asked)
    if answer.header(b"content-type").startswith(b"text/event-stream"):
        await _pass_stream(call, rename, answer, reply, outcome, count_prompt)
    elif reply.has_begun:
        raise EngineProblem(f"{call.model.id}: the engine answered without a stream")
    else:
        await _pass_whole(call, rename, answer, reply, outcome)


async def _pass_stream(
    call: Call,
    rename: Rename | None,
    answer: EngineAnswer,
    reply: Reply,
    outcome: Outcome,
    count_prompt: Callable[[], Awaitable[int]],
) -> None:
    """Event by event. Back-pressure: while the client does not read, nor do we, nor can the
    engine write."""
    stream = call.endpoint.dialect.stream(rename=rename, wants_usage=call.wants_usage)
    outcome.usage = stream.usage
    collector = call.collector

    async def send(data: bytes) -> None:
        if collector is not None:
            collector.add(data)
            return
        # With the first event, not before: until then an error has a status of its own, and the
        # client is woken once, not twice.
        await reply.begin_stream()
        await reply.write(data)

    try:
        while data := await answer.read():
            if stream.lacks_start(data):
                await send(stream.start(call.asked, await count_prompt()))
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
        await reply.begin_stream()
        await reply.end()
    else:
        await reply.whole(encode(collector.answer()))


async def _pass_whole(
    call: Call, rename: Rename | None, answer: EngineAnswer, reply: Reply, outcome: Outcome
) -> None:
    """An answer in one piece. A long one is passed on in parts, never held as a whole."""
    head = bytearray()
    while len(head) < _WHOLE_BYTES and (data := await answer.read()):
        head += data
    first = bytes(head)
    headers = _passed_headers(answer)
    dialect = call.endpoint.dialect
    if len(first) < _WHOLE_BYTES:
        first = rename.apply(first) if rename else first
        outcome.usage = dialect.usage_of(first[:_EDGE_BYTES], first[-_EDGE_BYTES:])
        length = str(len(first)).encode()
        await reply.begin(answer.status, [*headers, (b"content-length", length)])
        await reply.end(first)
        return
    if length := answer.header(b"content-length"):
        headers.append((b"content-length", length))
    await reply.begin(answer.status, headers)
    await reply.write(first)
    tail = first[-_EDGE_BYTES:]
    while data := await answer.read():
        tail = (tail + data)[-_EDGE_BYTES:]
        await reply.write(data)
    outcome.usage = dialect.usage_of(first[:_EDGE_BYTES], tail)
    await reply.end()


def _passed_headers(answer: EngineAnswer) -> list[tuple[bytes, bytes]]:
    """The engine's headers that a client gets: neither of the connection, nor of its origin."""
    return [
        (name, value)
        for name, value in answer.headers
        if name not in _NOT_PASSED_BACK and not name.startswith(b"access-control-")
    ]
