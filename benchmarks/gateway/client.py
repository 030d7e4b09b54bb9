"""A client that is as thin as can be: when did the first byte come, when each event."""

from __future__ import annotations

import asyncio
import json
import re
import time
from dataclasses import dataclass, field
from typing import Any

from benchmarks.gateway.upstream import SENT_AT

__all__ = ["Seen", "ask", "ask_many"]

_SENT = re.compile(SENT_AT + rb"(\d+)")


@dataclass(slots=True)
class Seen:
    """What a stream looked like from here.

    Attributes:
        first_s: from the request to the first event.
        delays_s: of each event, from its sending to its arrival; empty for a real engine.
    """

    first_s: float = 0.0
    delays_s: list[float] = field(default_factory=list)
    num_events: int = 0


async def ask(port: int, body: dict[str, Any], key: str = "") -> Seen:
    """One streamed request on a connection of its own."""
    data = json.dumps(body).encode()
    reader, writer = await asyncio.open_connection("127.0.0.1", port, limit=1 << 20)
    seen = Seen()
    began = time.monotonic_ns()
    writer.write(
        b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n"
        b"Authorization: Bearer %s\r\nContent-Length: %d\r\n\r\n%s"
        % (key.encode(), len(data), data)
    )
    tail = b""
    while part := await reader.read(1 << 18):
        now = time.monotonic_ns()
        if not seen.first_s and b"data:" in part:
            seen.first_s = (now - began) / 1e9
        tail += part
        last = 0
        for found in _SENT.finditer(tail):
            if found.end() == len(tail):
                break  # the number may go on
            seen.delays_s.append((now - int(found[1])) / 1e9)
            last = found.end()
        seen.num_events += tail[:last].count(SENT_AT)
        tail = tail[last:][-4096:]
    writer.close()
    return seen


async def ask_many(port: int, body: dict[str, Any], *, num_streams: int) -> list[Seen]:
    """Streams at the same time, begun a little apart as clients do."""

    async def later(number: int) -> Seen:
        await asyncio.sleep(number * 0.002)
        return await ask(port, body)

    return await asyncio.gather(*(later(number) for number in range(num_streams)))
