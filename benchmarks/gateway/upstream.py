"""A fake engine: events like llama.cpp's, one write each, with the time of their sending.

`python -m benchmarks.gateway.upstream` prints its port and serves until its input closes. A request
says in its body what it wants: `{"messages": ..., "events": 200, "pause_s": 0.03}`; without a pause
it sends as fast as the reader reads.
"""

from __future__ import annotations

import asyncio
import json
import sys
import time

import uvloop

__all__ = ["SENT_AT"]

SENT_AT = b'"sent_ns":'
_HEAD = (
    b"HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nTransfer-Encoding: chunked\r\n"
    b"Connection: close\r\n\r\n"
)
_EVENT = (
    b'data: {"choices":[{"finish_reason":null,"index":0,"delta":{"content":" token"}}],'
    b'"created":1790000000,"id":"chatcmpl-0123456789abcdefghijklmnopqrstuv","model":"bench",'
    b'"object":"chat.completion.chunk","sent_ns":%d}\n\n'
)
_END = (
    b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}],"model":"bench"}\n\n'
    b"data: [DONE]\n\n"
)


async def _answer(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    head = await reader.readuntil(b"\r\n\r\n")
    length = next(
        int(line.split(b":")[1])
        for line in head.lower().split(b"\r\n")
        if line.startswith(b"content-length:")
    )
    order = json.loads(await reader.readexactly(length))
    try:
        writer.write(_HEAD)
        for _ in range(order["events"]):
            event = _EVENT % time.monotonic_ns()
            writer.write(b"%x\r\n%s\r\n" % (len(event), event))
            await writer.drain()
            await asyncio.sleep(order["pause_s"])
        writer.write(b"%x\r\n%s\r\n0\r\n\r\n" % (len(_END), _END))
        await writer.drain()
    except ConnectionError:
        pass
    finally:
        writer.close()


async def _serve() -> None:
    server = await asyncio.start_server(_answer, "127.0.0.1", 0, backlog=512)
    print(server.sockets[0].getsockname()[1], flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.close()


if __name__ == "__main__":
    uvloop.run(_serve())
