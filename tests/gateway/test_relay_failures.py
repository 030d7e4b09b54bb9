"""The relay where an engine refuses, breaks off or is not there: one clear error, one end."""

from __future__ import annotations

import asyncio

import httpx
import openai
import pytest

from gatewaykit import (
    Exchange,
    Gateway,
    RawClient,
    await_true,
    chat,
    chunk,
    events_of,
    gateway,
)
from hotset.core.errors import ClientProblem, EngineProblem

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}


def client_of(running: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)


def test_an_engine_that_dies_within_a_stream_ends_it_with_an_error_and_no_done() -> None:
    async def dying(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("half an"))
        await asyncio.sleep(0.05)
        exchange.die()

    with gateway() as running:
        running.engine.script = dying
        client = RawClient(running, {**HELLO, "stream": True})
        seen = client.read_to_end()
        assert seen.endswith(b"0\r\n\r\n")
        data = [d for _, d in events_of(seen.decode().replace("\r\n", "\n"))]
        assert "[DONE]" not in data
        assert data[-1]["error"]["code"] == "engine_failed"
        assert isinstance(running.pool.leaving[-1], EngineProblem)
        with pytest.raises(openai.APIError, match="the engine broke off"):
            for _ in client_of(running).chat.completions.create(
                model="small", messages=[{"role": "user", "content": "Hi"}], stream=True
            ):
                pass


def test_a_stream_that_ends_without_its_end_mark_is_an_error() -> None:
    async def short(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("half an"))
        await exchange.end()

    with gateway() as running:
        running.engine.script = short
        data = [d for _, d in events_of(running.chat(stream=True).text)]
        assert data[-1]["error"]["code"] == "engine_failed"


def test_half_an_event_of_a_dead_engine_is_not_passed_on() -> None:
    async def dying(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("whole"))
        await exchange.send(b'data: {"choices":[{"delta":{"content":"ha')
        await asyncio.sleep(0.05)
        exchange.die()

    with gateway() as running:
        running.engine.script = dying
        data = [d for _, d in events_of(running.chat(stream=True).text)]
        assert data[0] == chunk("whole")
        assert len(data) == 2
        assert data[1]["error"]["code"] == "engine_failed"


@pytest.mark.parametrize("is_stream", [True, False])
def test_an_engine_that_dies_before_its_answer_is_a_502(is_stream: bool) -> None:
    async def dying(exchange: Exchange) -> None:
        exchange.die()

    with gateway() as running:
        running.engine.script = dying
        answer = running.chat(stream=is_stream)
        assert answer.status_code == 502
        assert answer.json()["error"]["code"] == "engine_failed"
        assert "hotset logs small" in answer.json()["error"]["message"]


def test_an_engine_that_is_not_there_is_a_502() -> None:
    with gateway() as running:
        running.pool.engines["small"] = ("http://127.0.0.1:9", None)
        answer = running.chat()
        assert answer.status_code == 502
        assert "does not take connections" in answer.json()["error"]["message"]


def test_an_answer_of_stated_length_that_breaks_off_is_never_complete() -> None:
    async def dying(exchange: Exchange) -> None:
        await exchange.head(200, "application/json", 1_000_000)
        await exchange.send(b" " * 500_000)
        await asyncio.sleep(0.2)
        exchange.die()

    with gateway() as running:
        running.engine.script = dying
        with pytest.raises(httpx.RemoteProtocolError):
            running.chat()


def test_an_error_before_the_headers_keeps_the_engines_status() -> None:
    async def refusing(exchange: Exchange) -> None:
        error = {"code": 400, "message": "no such thing", "type": "invalid_request_error"}
        await exchange.answer({"error": error}, 400)

    with gateway() as running:
        running.engine.script = refusing
        answer = running.chat(stream=True)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "no such thing"


def test_an_error_after_the_headers_is_the_last_event() -> None:
    with gateway() as running:

        async def failing(_: object) -> None:
            await asyncio.sleep(0.5)
            raise EngineProblem("small: the start failed: out of memory")

        running.pool.on_hold = failing
        answer = running.chat(stream=True)
        assert answer.status_code == 200
        (only,) = [d for _, d in events_of(answer.text)]
        assert only["error"]["message"] == "small: the start failed: out of memory"


def test_a_full_queue_is_a_429_that_says_when_to_come_back() -> None:
    with gateway() as running:

        async def full(_: object) -> None:
            raise ClientProblem("8 requests wait already", 429, retry_after_s=7)

        running.pool.on_hold = full
        for is_stream in (True, False):
            answer = running.chat(stream=is_stream)
            assert answer.status_code == 429
            assert answer.headers["retry-after"] == "7"
            assert answer.json()["error"]["type"] == "rate_limit_error"
            assert answer.json()["error"]["code"] == "queue_full"


def test_an_error_event_of_the_engine_ends_the_stream_in_the_clients_form() -> None:
    async def failing(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("word"))
        error = {"code": 500, "message": "failed to parse input at pos 3", "type": "server_error"}
        await exchange.event({"error": error})
        await exchange.end()

    with gateway() as running:
        running.engine.script = failing
        data = [d for _, d in events_of(running.chat(stream=True).text)]
        assert data[0] == chunk("word")
        assert data[1]["error"]["code"] == "engine_failed"
        assert "failed to parse input" in data[1]["error"]["message"]
        assert len(data) == 2


def test_a_refused_conversation_is_tried_once_more_in_another_order() -> None:
    async def strict(exchange: Exchange) -> None:
        roles = [m["role"] for m in exchange.json["messages"]]
        if "system" in roles[1:]:
            error = {"code": 400, "message": "system must be first", "type": "x"}
            await exchange.answer({"error": error}, 400)
        else:
            await chat(exchange)

    late_system = [
        {"role": "user", "content": "one"},
        {"role": "system", "content": "two"},
        {"role": "user", "content": "three"},
    ]
    with gateway() as running:
        running.engine.script = strict
        assert running.chat(messages=late_system).status_code == 200
        assert [e.json["messages"] for e in running.engine.exchanges] == [
            late_system,
            [
                {"role": "system", "content": "two"},
                {"role": "user", "content": "one\n\nthree"},
            ],
        ]


def test_a_conversation_that_is_refused_in_both_orders_gets_the_first_answer() -> None:
    async def refusing(exchange: Exchange) -> None:
        number = len(exchange.json["messages"])
        error = {"code": 400, "message": f"{number} messages", "type": "invalid_request_error"}
        await exchange.answer({"error": error}, 400)

    twice = [{"role": "user", "content": "one"}] * 2
    with gateway() as running:
        running.engine.script = refusing
        answer = running.chat(messages=twice)
        assert answer.status_code == 400
        assert answer.json()["error"]["message"] == "2 messages"
        assert len(running.engine.exchanges) == 2


def test_stopping_the_gateway_now_ends_a_stream_with_an_error() -> None:
    async def endless(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("word"))
        await exchange.wait_until_gone()

    with gateway() as running:
        running.engine.script = endless
        client = RawClient(running, {**HELLO, "stream": True})
        client.read_until(b"word")
        running.loop_call(running.server.end_now)
        assert b'"shutting_down"' in client.read_to_end()
        assert await_true(lambda: running.engine.last.is_gone)
