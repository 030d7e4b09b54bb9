"""The connection to an engine: every way in which HTTP ends an answer, and what is none."""

from __future__ import annotations

import asyncio
import json

import httpx
import pytest

from gatewaykit import PATIENCE_S, Exchange, gateway
from hotset.core.settings import Secret
from hotset.gateway.pool import Upstream
from hotset.gateway.wire import asking

HEAD = b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\n"
BODY = json.dumps({"model": "small", "content": "x" * 50}).encode()


@pytest.mark.parametrize(
    "answer",
    [
        HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
        HEAD + b"Transfer-Encoding: chunked\r\n\r\n%x\r\n%s\r\n0\r\n\r\n" % (len(BODY), BODY),
        HEAD + b"Connection: close\r\n\r\n" + BODY,
        b"HTTP/1.1 100 Continue\r\n\r\n" + HEAD + b"Content-Length: %d\r\n\r\n" % len(BODY) + BODY,
    ],
    ids=["length", "chunks", "close", "continue"],
)
@pytest.mark.parametrize("piece_bytes", [7, 4096])
def test_an_answer_is_the_same_however_it_ends_and_comes(answer: bytes, piece_bytes: int) -> None:
    async def raw(exchange: Exchange) -> None:
        for at in range(0, len(answer), piece_bytes):
            exchange.write(answer[at : at + piece_bytes])
            await asyncio.sleep(0)

    with gateway() as running:
        running.engine.script = raw
        passed = running.post("/completion", {"model": "small", "prompt": "x"})
        assert (passed.status_code, passed.content) == (200, BODY)


@pytest.mark.parametrize(
    "answer",
    [b"what?\r\n\r\n", HEAD + b"Content-Length: 500\r\n\r\n" + BODY, HEAD, b""],
    ids=["no HTTP", "too short", "half a head", "nothing"],
)
def test_what_is_no_whole_answer_is_an_engine_problem(answer: bytes) -> None:
    async def raw(exchange: Exchange) -> None:
        exchange.write(answer)

    with gateway() as running:
        running.engine.script = raw
        refused = running.post("/completion", {"model": "small", "prompt": "x"})
        assert refused.status_code == 502
        assert refused.json()["error"]["code"] == "engine_failed"


def test_the_answer_to_head_has_no_body_to_wait_for() -> None:
    async def raw(exchange: Exchange) -> None:
        exchange.write(HEAD + b"Content-Length: 500\r\n\r\n")
        await exchange.wait_until_gone()

    with gateway() as running:
        running.engine.script = raw
        url = f"{running.url}/upstream/small/anything"
        assert httpx.head(url, timeout=PATIENCE_S, trust_env=False).status_code == 200


def test_line_breaks_in_a_path_stay_encoded() -> None:
    async def answer(exchange: Exchange) -> None:
        await exchange.answer({})

    with gateway() as running:
        running.engine.script = answer
        assert running.post("/slots/1%0d%0aX-Evil:%20yes?model=small").status_code == 200
        assert running.engine.last.target == "/slots/1%0d%0aX-Evil:%20yes?model=small"
        assert "x-evil" not in running.engine.last.headers


def test_a_line_break_in_a_header_is_never_sent() -> None:
    with gateway() as running:
        upstream = Upstream(
            model=running.pool.served[0], url=running.engine.url, api_key=Secret("k")
        )

        async def ask() -> None:
            async with asking(upstream, "GET", "/x", [("Accept", "a\r\nX-Evil: yes")]):
                pass

        with pytest.raises(ValueError, match="line break"):
            running.run(ask())
        assert running.engine.exchanges == []
