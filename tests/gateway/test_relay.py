"""The relay between a client and a scripted engine: streams, silence, leaving."""

from __future__ import annotations

import asyncio
import json
import socket
import time

import httpx
import pytest

from gatewaykit import (
    PATIENCE_S,
    USAGE,
    Exchange,
    RawClient,
    await_true,
    chat,
    chunk,
    events_of,
    gateway,
    model,
)
from hotset.gateway.pool import Waiting

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}


def test_an_answer_without_a_stream_is_the_engines() -> None:
    with gateway() as running:
        answer = running.chat()
        assert answer.status_code == 200
        choice = answer.json()["choices"][0]
        assert choice["message"] == {"role": "assistant", "content": "Hello there"}
        assert choice["finish_reason"] == "stop"
        assert answer.json()["object"] == "chat.completion"
        assert answer.json()["usage"]["prompt_tokens"] == 7
        # So the engine sees at once when the client leaves.
        assert running.engine.last.json["stream"] is True


def test_a_stream_passes_event_by_event_while_the_engine_still_writes() -> None:
    async def one_then_wait(exchange: Exchange) -> None:
        await exchange.head()
        await exchange.event(chunk("first"))
        await exchange.wait_until_gone()

    with gateway() as running:
        running.engine.script = one_then_wait
        client = RawClient(running, {**HELLO, "stream": True})
        assert b'"first"' in client.read_until(b"first")
        client.leave()


def test_an_event_that_comes_in_two_pieces_passes_as_one() -> None:
    async def in_pieces(exchange: Exchange) -> None:
        await exchange.head()
        text = f"data: {json.dumps(chunk('whole'))}\n\n".encode()
        for at in range(0, len(text), 7):
            await exchange.send(text[at : at + 7])
            await asyncio.sleep(0)
        await exchange.event("[DONE]")
        await exchange.end()

    with gateway() as running:
        running.engine.script = in_pieces
        answer = running.chat(stream=True)
        assert [d for _, d in events_of(answer.text)] == [chunk("whole"), "[DONE]"]


@pytest.mark.parametrize("is_asked", [True, False])
def test_usage_is_in_every_stream_and_as_a_chunk_only_for_who_asked(is_asked: bool) -> None:
    with gateway() as running:
        more = {"stream_options": {"include_usage": True}} if is_asked else {}
        data = [d for _, d in events_of(running.chat(stream=True, **more).text)]
        chunks = [d for d in data if d != "[DONE]"]
        assert chunks[-1]["usage"]["prompt_tokens"] == 7
        assert (chunks[-1]["choices"] == []) is is_asked
        finish = [c["choices"][0]["finish_reason"] for c in chunks if c["choices"]]
        assert finish == [None, None, "stop"]
        row = running.get("/api/activity").json()["requests"][0]
        assert (row["prompt_tokens"], row["cached_tokens"], row["completion_tokens"]) == (7, 3, 2)


def test_headers_and_comments_come_while_the_request_waits_in_the_queue() -> None:
    with gateway() as running:
        go = asyncio.Event()

        async def queued(on_wait: object) -> None:
            assert callable(on_wait)
            on_wait(Waiting(position=2, reason="other is answering"))
            await go.wait()

        running.pool.on_hold = queued
        client = RawClient(running, {**HELLO, "stream": True})
        seen = client.read_until(b": keep-alive position 2: other is answering\n\n")
        assert seen.startswith(b"HTTP/1.1 200 ")
        assert b"content-type: text/event-stream" in seen
        assert not running.engine.exchanges
        running.run(_set(go))
        assert b"data: [DONE]" in client.read_to_end()


async def _set(event: asyncio.Event) -> None:
    event.set()


def test_comments_come_while_the_engine_reads_a_long_prompt() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.6)
        await chat(exchange)

    with gateway() as running:
        running.engine.script = slow
        text = running.chat(stream=True).text
        assert text.count(": keep-alive\n\n") >= 2
        assert text.endswith("data: [DONE]\n\n")


def test_comments_come_between_events_and_never_within_one() -> None:
    async def stuttering(exchange: Exchange) -> None:
        await exchange.head()
        text = f"data: {json.dumps(chunk('word'))}\n\n".encode()
        for piece in (text[:20], text[20:]):
            await exchange.send(piece)
            await asyncio.sleep(0.35)
        await exchange.event("[DONE]")
        await exchange.end()

    with gateway() as running:
        running.engine.script = stuttering
        text = running.chat(stream=True).text
        assert ": keep-alive" in text
        assert [d for _, d in events_of(text)] == [chunk("word"), "[DONE]"]


def test_a_request_without_a_stream_gets_nothing_before_its_answer() -> None:
    async def slow(exchange: Exchange) -> None:
        await asyncio.sleep(0.5)
        await chat(exchange)

    with gateway() as running:
        running.engine.script = slow
        answer = running.chat()
        assert answer.json()["choices"][0]["message"]["content"] == "Hello there"
        assert "keep-alive" not in answer.text


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_closes_the_engines_connection(is_stream: bool) -> None:
    async def endless(exchange: Exchange) -> None:
        if exchange.json.get("stream"):
            await exchange.head()
            await exchange.event(chunk("word"))
        await exchange.wait_until_gone()

    with gateway() as running:
        running.engine.script = endless
        client = RawClient(running, {**HELLO, "stream": is_stream})
        assert await_true(lambda: running.engine.exchanges)
        client.leave()
        left_at = time.monotonic()
        assert await_true(lambda: running.engine.last.is_gone)
        assert await_true(lambda: running.pool.num_held == 0)
        assert time.monotonic() - left_at < PATIENCE_S
        assert await_true(lambda: running.get("/api/activity").json()["requests"])
        assert running.get("/api/activity").json()["requests"][0]["status"] == 499


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_the_queue_takes_its_demand_with_it(is_stream: bool) -> None:
    async def for_ever(_: object) -> None:
        await asyncio.Event().wait()

    with gateway() as running:
        running.pool.on_hold = for_ever
        client = RawClient(running, {**HELLO, "stream": is_stream})
        assert await_true(lambda: running.pool.num_waiting == 1)
        client.leave()
        assert await_true(lambda: running.pool.num_waiting == 0)
        assert not running.engine.exchanges


def test_a_long_answer_that_is_no_stream_passes_in_parts_and_whole() -> None:
    text = "word " * 200_000

    async def long(exchange: Exchange) -> None:
        await exchange.answer({"choices": [{"text": text}], "model": "small", "usage": USAGE})

    with gateway() as running:
        running.engine.script = long
        answer = running.post("/v1/completions", {"model": "small", "prompt": "x"})
        assert answer.json()["choices"][0]["text"] == text
        assert answer.headers["x-engine"] == "yes"
        row = running.get("/api/activity").json()["requests"][0]
        assert row["completion_tokens"] == 2


def test_a_slow_reader_slows_the_engine_down() -> None:
    async def flood(exchange: Exchange) -> None:
        await exchange.head()
        for _ in range(40_000):
            await exchange.event(chunk("x" * 1000))
        await exchange.event("[DONE]")
        await exchange.end()

    with gateway() as running:
        running.engine.script = flood
        client = RawClient(running, {**HELLO, "stream": True})
        client.read_until(b"xxxx")

        def has_stopped() -> bool:
            before = running.engine.last.num_events
            time.sleep(0.3)
            return running.engine.last.num_events == before

        assert await_true(has_stopped)
        assert running.engine.last.num_events < 40_000
        client.leave()
        assert await_true(lambda: running.pool.num_held == 0)


def test_the_engine_gets_its_own_key_and_none_of_the_clients() -> None:
    with gateway() as running:
        headers = {
            "Authorization": "Bearer mine",
            "x-api-key": "mine",
            "Cookie": "mine=1",
            "X-Conversation-Id": "goes-on-after-me",
        }
        running.post("/v1/chat/completions", HELLO, headers=headers)
        got = running.engine.last.headers
        assert got["authorization"] == "Bearer engine-key"
        assert "mine" not in json.dumps(got)
        assert "x-conversation-id" not in got


def test_headers_of_the_connection_and_of_origins_are_not_passed_back() -> None:
    with gateway() as running:
        answer = running.chat()
        assert "access-control-allow-origin" not in answer.headers
        assert "server" not in answer.headers


def test_an_answer_carries_the_name_that_was_asked_for() -> None:
    with gateway(model(aliases=("nice-name",))) as running:
        assert running.chat(model="nice-name").json()["model"] == "nice-name"
        data = [d for _, d in events_of(running.chat(model="nice-name", stream=True).text)]
        assert {d["model"] for d in data if d != "[DONE]"} == {"nice-name"}


def test_a_client_that_leaves_while_it_sends_is_nobodys_error() -> None:
    with gateway() as running:
        connection = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
        connection.sendall(
            b"POST /v1/chat/completions HTTP/1.1\r\nHost: x\r\nContent-Length: 100\r\n\r\n{"
        )
        connection.close()
        assert running.get("/health").status_code == 200
        assert not running.engine.exchanges


def test_many_streams_at_once_do_not_mix() -> None:
    async def named(exchange: Exchange) -> None:
        name = exchange.json["messages"][0]["content"]
        await chat(exchange, [f"{name}-{i}" for i in range(20)])

    with gateway() as running:
        running.engine.script = named

        async def ask(client: httpx.AsyncClient, name: str) -> str:
            body = {**HELLO, "messages": [{"role": "user", "content": name}], "stream": True}
            answer = await client.post(running.url + "/v1/chat/completions", json=body)
            data = [d for _, d in events_of(answer.text) if d != "[DONE]"]
            return "".join(d["choices"][0]["delta"].get("content", "") for d in data)

        async def ask_all() -> list[str]:
            async with httpx.AsyncClient(timeout=PATIENCE_S, trust_env=False) as client:
                return await asyncio.gather(*(ask(client, f"n{i}") for i in range(32)))

        assert asyncio.run(ask_all()) == [
            "".join(f"n{i}-{j}" for j in range(20)) for i in range(32)
        ]
