"""The application before a scripted engine: names, bodies, what models can do, odd paths."""

from __future__ import annotations

import json
import socket
from typing import Any

import anthropic
import httpx
import openai
import pytest

from gatewaykit import (
    PATIENCE_S,
    Exchange,
    chat,
    gateway,
    model,
)
from hotset.gateway.pool import Capability, Reach, State

HELLO = {"model": "small", "messages": [{"role": "user", "content": "Hi"}]}
OTHER = model("other", state=State.UNLOADED)


def test_the_official_openai_client_lists_asks_and_streams() -> None:
    with gateway() as running:
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        assert [m.id for m in client.models.list()] == ["small"]
        assert client.models.retrieve("small").id == "small"
        answer = client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Hi"}]
        )
        assert answer.choices[0].message.content == "Hello there"
        stream = client.chat.completions.create(
            model="small", messages=[{"role": "user", "content": "Hi"}], stream=True
        )
        chunks = list(stream)
        assert "".join(c.choices[0].delta.content or "" for c in chunks) == "Hello there"
        assert chunks[-1].usage is not None
        with pytest.raises(openai.NotFoundError, match="small"):
            client.chat.completions.create(
                model="nothing", messages=[{"role": "user", "content": "Hi"}]
            )


def test_the_official_anthropic_client_lists_models_and_sees_errors() -> None:
    with gateway() as running:
        client = anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)
        assert [m.id for m in client.models.list()] == ["small"]
        with pytest.raises(anthropic.NotFoundError) as caught:
            client.messages.create(
                model="nothing", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
            )
        assert isinstance(caught.value.body, dict)
        assert caught.value.body["error"]["type"] == "not_found_error"
        assert caught.value.request_id


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
def test_without_a_name_the_only_model_answers(path: str) -> None:
    with gateway() as running:
        running.post(path, {"messages": HELLO["messages"], "max_tokens": 5})
        assert running.engine.last.target == path


def test_without_a_name_and_with_several_models_the_names_are_listed() -> None:
    with gateway(model(), OTHER) as running:
        answer = running.chat(model=None)
        assert answer.status_code == 400
        error = answer.json()["error"]
        assert error["code"] == "model_missing"
        assert "other, small" in error["message"]
        assert not running.pool.holds


def test_an_unknown_model_is_a_404_and_loads_nothing() -> None:
    with gateway(model(), OTHER) as running:
        answer = running.chat(model="nothing")
        assert answer.status_code == 404
        assert answer.json()["error"]["code"] == "model_not_found"
        assert not running.pool.holds


@pytest.mark.parametrize(
    ("data", "status", "code"),
    [
        (b"{", 400, "invalid_json"),
        (b"[]", 400, "invalid_json"),
        (b'{"model": NaN}', 400, "invalid_json"),
        (b"[" * 200_000, 400, "invalid_json"),
        (b"\xff\xfe", 400, "invalid_json"),
        (b'{"model": 3}', 400, "invalid_request"),
        (b"", 400, "invalid_json"),
    ],
)
def test_a_body_that_is_no_json_object_is_a_400(data: bytes, status: int, code: str) -> None:
    with gateway() as running:
        answer = httpx.post(running.url + "/v1/chat/completions", content=data, trust_env=False)
        assert (answer.status_code, answer.json()["error"]["code"]) == (status, code)
        assert not running.engine.exchanges


def test_json_is_read_whatever_content_type_it_has() -> None:
    with gateway() as running:
        answer = httpx.post(
            running.url + "/v1/chat/completions",
            content=json.dumps(HELLO),
            headers={"Content-Type": "application/x-www-form-urlencoded"},
            trust_env=False,
        )
        assert answer.status_code == 200


@pytest.mark.parametrize("is_stated", [True, False])
def test_a_body_beyond_the_limit_is_a_413(is_stated: bool) -> None:
    with gateway(max_body_bytes=10_000) as running:
        data = json.dumps({**HELLO, "user": "x" * 20_000}).encode()
        content: Any = data if is_stated else iter([data[:9_000], data[9_000:]])
        answer = httpx.post(running.url + "/v1/chat/completions", content=content, trust_env=False)
        assert answer.status_code == 413
        assert answer.json()["error"]["code"] == "request_too_large"
        assert not running.engine.exchanges


def test_headers_beyond_the_limit_are_a_431() -> None:
    with gateway(max_header_bytes=4096) as running:
        answer = running.get("/v1/models", headers={"X-Long": "x" * 8000})
        assert answer.status_code == 431
        assert answer.json()["error"]["code"] == "headers_too_large"


def test_a_lone_surrogate_in_a_text_does_not_reach_the_engine_as_broken_utf8() -> None:
    body = {**HELLO, "stream": True, "messages": [{"role": "user", "content": "cut \ud83d"}]}
    with gateway() as running:
        answer = httpx.post(
            running.url + "/v1/chat/completions", content=json.dumps(body), trust_env=False
        )
        assert answer.status_code == 200
        assert running.engine.last.json["messages"][0]["content"] == "cut ?"


def test_a_model_is_asked_only_for_what_it_can_do() -> None:
    vectors = model("vectors", capabilities=frozenset({Capability.EMBEDDING}))
    with gateway(model(), vectors) as running:
        answer = running.post("/v1/embeddings", {"model": "small", "input": "x"})
        assert answer.status_code == 400
        assert "vectors" in answer.json()["error"]["message"]
        assert running.chat(model="vectors").status_code == 400
        assert not running.pool.holds

        async def embed(exchange: Exchange) -> None:
            usage = {"prompt_tokens": 4, "total_tokens": 4}
            data = [{"object": "embedding", "index": 0, "embedding": [0.5]}]
            await exchange.answer({"object": "list", "usage": usage, "data": data})

        running.engine.script = embed
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        made = client.embeddings.create(model="vectors", input="x", encoding_format="float")
        assert made.data[0].embedding == [0.5]
        assert running.get("/api/activity").json()["requests"][0]["prompt_tokens"] == 4


def test_images_are_refused_by_a_model_without_vision_before_it_is_touched() -> None:
    parts = [{"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}]
    with gateway(model(), model("eyes", capabilities=frozenset(Capability))) as running:
        messages = [{"role": "user", "content": parts}]
        answer = running.chat(messages=messages)
        assert answer.status_code == 400
        assert answer.json()["error"]["code"] == "image_not_supported"
        assert not running.pool.holds
        assert running.chat(model="eyes", messages=messages).status_code == 200


def test_counting_tokens_never_makes_another_model_leave() -> None:
    async def counting(exchange: Exchange) -> None:
        await exchange.answer({"input_tokens": 5})

    with gateway(model(), OTHER) as running:
        running.engine.script = counting
        client = anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)
        messages: Any = [{"role": "user", "content": "Hi"}]
        assert client.messages.count_tokens(model="small", messages=messages).input_tokens == 5
        with pytest.raises(anthropic.APIStatusError) as caught:
            client.messages.count_tokens(model="other", messages=messages)
        assert caught.value.status_code == 503
        assert running.pool.holds == [
            ("small", Reach.FREE, True),
            ("other", Reach.FREE, True),
        ]


@pytest.mark.parametrize("path", ["/props", "/metrics", "/slots", "/lora-adapters"])
def test_looking_at_a_model_that_is_not_loaded_does_not_load_it(path: str) -> None:
    async def state(exchange: Exchange) -> None:
        await exchange.answer({"of": exchange.target})

    with gateway(model(), OTHER) as running:
        running.engine.script = state
        answer = running.get(f"{path}?model=other")
        assert answer.status_code == 409
        assert answer.json()["error"]["code"] == "model_not_loaded"
        assert running.get(f"{path}?model=small").json() == {"of": f"{path}?model=small"}
        assert running.pool.holds == [("small", Reach.READY, True)]


def test_upstream_passes_any_path_and_reading_it_does_not_load() -> None:
    async def state(exchange: Exchange) -> None:
        await exchange.answer({"target": exchange.target, "body": exchange.body.decode()})

    named = model("some/one")
    with gateway(named, OTHER) as running:
        running.engine.script = state
        answer = running.get("/upstream/some/one/a%20b?x=1")
        assert answer.json()["target"] == "/a%20b?x=1"
        answer = running.post("/upstream/some%2Fone/slots/0", {"n": 1})
        assert answer.json() == {"target": "/slots/0", "body": '{"n":1}'}
        assert running.get("/upstream/other/health").status_code == 503
        assert running.get("/upstream/nothing/health").status_code == 404


def test_the_multipart_form_of_a_recording_is_routed_by_its_model() -> None:
    async def heard(exchange: Exchange) -> None:
        assert b"sound" in exchange.body
        await exchange.answer({"text": exchange.headers["content-type"][:19]})

    with gateway(model(), OTHER) as running:
        running.engine.script = heard
        client = openai.OpenAI(base_url=running.url + "/v1", api_key="none", max_retries=0)
        answer = client.audio.transcriptions.create(model="small", file=("a.wav", b"sound"))
        assert answer.text == "multipart/form-data"


def test_paths_and_methods_that_are_not_there_have_json_errors() -> None:
    with gateway() as running:
        answer = running.get("/nothing")
        assert (answer.status_code, answer.json()["error"]["code"]) == (404, "not_found")
        answer = running.get("/v1/chat/completions")
        assert (answer.status_code, answer.json()["error"]["code"]) == (405, "method_not_allowed")
        answer = running.get("/v1/messages")
        assert answer.json()["type"] == "error"


def test_a_request_keeps_its_id_through_answer_and_activity() -> None:
    with gateway() as running:
        answer = running.post("/v1/chat/completions", HELLO, headers={"X-Request-Id": "agent-7_a"})
        assert answer.headers["x-request-id"] == "agent-7_a"
        assert running.get("/api/activity").json()["requests"][0]["request_id"] == "agent-7_a"
        answer = running.get("/nothing", headers={"X-Request-Id": "no good\tid"})
        assert answer.headers["x-request-id"].startswith("req_")
        assert answer.json()["request_id"] == answer.headers["request-id"]


def test_tools_are_refused_where_the_models_template_has_none() -> None:
    def with_caps(supports_tools: bool) -> Any:
        async def script(exchange: Exchange) -> None:
            if exchange.target == "/props":
                caps = {"supports_tools": supports_tools}
                await exchange.answer({"chat_template_caps": caps})
            else:
                await chat(exchange)

        return script

    tools = [{"type": "function", "function": {"name": "f"}}]
    for supports_tools, status in ((False, 400), (True, 200)):
        with gateway() as running:
            running.engine.script = with_caps(supports_tools)
            answer = running.chat(tools=tools)
            assert answer.status_code == status
            if not supports_tools:
                assert answer.json()["error"]["code"] == "tools_not_supported"
            assert running.chat(tools=tools, tool_choice="none").status_code == 200


def test_a_message_that_begins_within_a_sign_still_begins_with_message_start() -> None:
    async def headless(exchange: Exchange) -> None:
        if exchange.target.endswith("count_tokens"):
            await exchange.answer({"input_tokens": 11})
            return
        await exchange.head()
        block = {"type": "text", "text": ""}
        delta = {"type": "text_delta", "text": "\N{WAVING HAND SIGN}"}
        await exchange.event(
            {"type": "content_block_start", "index": 0, "content_block": block},
            "content_block_start",
        )
        await exchange.event(
            {"type": "content_block_delta", "index": 0, "delta": delta}, "content_block_delta"
        )
        await exchange.event({"type": "content_block_stop", "index": 0}, "content_block_stop")
        end = {"stop_reason": "end_turn", "stop_sequence": None}
        await exchange.event(
            {"type": "message_delta", "delta": end, "usage": {"output_tokens": 1}}, "message_delta"
        )
        await exchange.event({"type": "message_stop"}, "message_stop")
        await exchange.end()

    with gateway() as running:
        running.engine.script = headless
        client = anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)
        with client.messages.stream(
            model="small", max_tokens=5, messages=[{"role": "user", "content": "Hi"}]
        ) as stream:
            final = stream.get_final_message()
        assert final.content[0].type == "text"
        assert final.content[0].text == "\N{WAVING HAND SIGN}"
        assert final.usage.input_tokens == 11


@pytest.mark.parametrize("is_stream", [True, False])
def test_the_official_anthropic_client_reads_a_tool_call(is_stream: bool) -> None:
    use: dict[str, Any] = {"type": "tool_use", "id": "c1", "name": "look", "input": {"at": "it"}}
    usage = {"cache_read_input_tokens": 3, "input_tokens": 4, "output_tokens": 0}

    async def calling(exchange: Exchange) -> None:
        if exchange.target == "/props":
            await exchange.answer({})
            return
        message = {"id": "m", "type": "message", "role": "assistant", "model": "small"}
        if not exchange.json.get("stream"):
            end = {"stop_reason": "tool_use", "stop_sequence": None, "usage": usage}
            await exchange.answer({**message, "content": [use], **end})
            return
        await exchange.head()
        start = {**message, "content": [], "usage": usage}
        bare = {key: use[key] for key in ("type", "id", "name")}
        pieces: list[dict[str, Any]] = [
            {"type": "message_start", "message": start},
            {"type": "content_block_start", "index": 0, "content_block": bare},
            *(
                {
                    "type": "content_block_delta",
                    "index": 0,
                    "delta": {"type": "input_json_delta", "partial_json": part},
                }
                for part in ('{"at":', '"it"}')
            ),
            {"type": "content_block_stop", "index": 0},
            {
                "type": "message_delta",
                "delta": {"stop_reason": "tool_use", "stop_sequence": None},
                "usage": {"output_tokens": 9},
            },
            {"type": "message_stop"},
        ]
        for piece in pieces:
            await exchange.event(piece, str(piece["type"]))
        await exchange.end()

    with gateway() as running:
        running.engine.script = calling
        client = anthropic.Anthropic(base_url=running.url, api_key="none", max_retries=0)
        options: Any = {
            "model": "small",
            "max_tokens": 20,
            "messages": [{"role": "user", "content": "Hi"}],
            "tools": [{"name": "look", "input_schema": {"type": "object"}}],
        }
        if is_stream:
            with client.messages.stream(**options) as stream:
                answer = stream.get_final_message()
        else:
            answer = client.messages.create(**options)
        (block,) = answer.content
        assert block.type == "tool_use"
        assert block.input == {"at": "it"}
        assert answer.stop_reason == "tool_use"
        row = running.get("/api/activity").json()["requests"][0]
        assert (row["prompt_tokens"], row["cached_tokens"]) == (7, 3)


def test_a_connection_that_sends_nothing_holds_nobody_up() -> None:
    with gateway() as running:
        idle = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
        running.to_close.append(idle)
        assert running.chat().status_code == 200


WEBSOCKET = (
    b"GET /v1/models HTTP/1.1\r\nHost: localhost\r\nConnection: Upgrade\r\nUpgrade: websocket\r\n"
    b"Sec-WebSocket-Version: 13\r\nSec-WebSocket-Key: AAAAAAAAAAAAAAAAAAAAAA==\r\n\r\n"
)


@pytest.mark.parametrize(
    ("sent", "status"),
    [
        (WEBSOCKET, b"200"),
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03\r\n\r\n", b"400"),
    ],
)
def test_who_speaks_another_protocol_leaves_no_line_in_the_log(
    caplog: pytest.LogCaptureFixture, sent: bytes, status: bytes
) -> None:
    with gateway() as running:
        other = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
        running.to_close.append(other)
        other.sendall(sent)
        assert other.recv(4096).split()[1] == status
    assert [record.getMessage() for record in caplog.records] == []
