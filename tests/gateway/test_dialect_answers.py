"""What comes back: errors in each dialect's form, and streams of events."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import EngineProblem, MachineProblem
from hotset.gateway.dialects.base import encode
from hotset.gateway.dialects.failure import Failure, failure_from_engine, failure_of
from hotset.gateway.endpoints import ANTHROPIC, CHAT, LLAMA, OPENAI, RESPONSES

USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}

OVERFLOW = json.dumps(
    {
        "error": {
            "code": 400,
            "message": "request (25837 tokens) exceeds the available context size (25088 tokens)",
            "type": "exceed_context_size_error",
            "n_prompt_tokens": 25837,
            "n_ctx": 25088,
        }
    }
).encode()


def test_a_context_overflow_has_both_numbers_in_the_form_that_clients_know() -> None:
    failure = failure_from_engine(400, OVERFLOW)
    error = OPENAI.error(failure, "r")["error"]
    assert error["code"] == "context_length_exceeded"
    assert error["type"] == "invalid_request_error"
    assert "maximum context length is 25088 tokens" in error["message"]
    assert "25837" in error["message"]
    assert (error["n_prompt_tokens"], error["n_ctx"]) == (25837, 25088)
    answer = ANTHROPIC.error(failure, "r")
    assert answer["type"] == "error"
    assert answer["error"]["type"] == "invalid_request_error"
    assert answer["error"]["message"] == "prompt is too long: 25837 tokens > 25088 maximum"


@pytest.mark.parametrize(
    ("status", "body", "expected"),
    [
        (500, b'{"error":{"code":500,"message":"boom"}}', (502, "engine_failed")),
        (503, b'{"error":{"message":"Loading model"}}', (503, "engine_busy")),
        (501, b'{"error":{"type":"not_supported_error","message":"no"}}', (400, "not_supported")),
        (
            401,
            b'{"error":{"message":"bad key","type":"authentication_error"}}',
            (502, "engine_failed"),
        ),
        (404, b"File Not Found", (404, "not_found")),
        (400, b'{"error":"text"}', (400, "invalid_request")),
        (400, b"[]", (400, "invalid_request")),
        (400, b"\xff\xfe", (400, "invalid_request")),
    ],
)
def test_each_error_of_an_engine_has_a_status_and_a_stable_code(
    status: int, body: bytes, expected: tuple[int, str]
) -> None:
    failure = failure_from_engine(status, body)
    assert (failure.status, failure.code) == expected
    assert "\n" not in failure.message


def test_hotsets_own_problems_have_stable_codes() -> None:
    assert failure_of(MachineProblem("no room")).code == "no_room"
    assert failure_of(EngineProblem("died")).status == 502


ANTHROPIC_TYPES = {
    400: "invalid_request_error",
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    502: "api_error",
    503: "overloaded_error",
}


@pytest.mark.parametrize(("status", "kind"), ANTHROPIC_TYPES.items())
def test_errors_have_anthropics_types(status: int, kind: str) -> None:
    failure = Failure(status=status, code="c", message="m", path="p")
    answer = ANTHROPIC.error(failure, "req_1")
    assert answer == {
        "type": "error",
        "error": {"type": kind, "message": "m", "code": "c", "param": "p"},
        "request_id": "req_1",
    }
    event = ANTHROPIC.error_event(failure, "req_1")
    assert event == b"event: error\ndata: " + encode(answer) + b"\n\n"


def test_an_error_of_responses_is_an_event_of_their_own_kind() -> None:
    event = RESPONSES.error_event(Failure(status=502, code="engine_failed", message="m"), "r")
    name, data = event.decode().rstrip("\n").split("\n")
    assert name == "event: error"
    assert json.loads(data.removeprefix("data: "))["type"] == "error"


STREAMS = {
    "chat": (
        CHAT,
        b'data: {"choices":[{"finish_reason":"stop","index":0,"delta":{}}]}\n\ndata: [DONE]\n\n',
    ),
    "llama": (LLAMA, b'data: {"content":"a","stop":false}\n\ndata: {"content":"","stop":true}\n\n'),
    "anthropic": (
        ANTHROPIC,
        (
            b'event: message_start\ndata: {"type":"message_start","message":{"usage":{}}}\n\n'
            b'event: message_stop\ndata: {"type":"message_stop"}\n\n'
        ),
    ),
    "responses": (
        RESPONSES,
        (
            b'event: response.completed\ndata: {"type":"response.completed",'
            b'"response":{"output":[]},"sequence_number":0}\n\n'
        ),
    ),
}


@pytest.mark.parametrize("name", STREAMS)
@given(data=st.data())
def test_a_stream_is_the_same_however_its_bytes_are_cut(name: str, data: st.DataObject) -> None:
    dialect, whole = STREAMS[name]
    cuts = sorted(data.draw(st.sets(st.integers(1, len(whole) - 1))))
    stream = dialect.stream(rename=None, wants_usage=True)
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    out = b""
    for piece in pieces:
        assert not stream.is_complete
        out += stream.feed(piece)
    assert out == whole
    assert stream.is_complete


def test_words_of_a_model_that_look_like_marks_change_nothing() -> None:
    text = '"finish_reason":"stop" data: [DONE] "error":1 event: message_stop "usage":{}'
    event = b"data: " + encode({"choices": [{"delta": {"content": text}}]}) + b"\n\n"
    stream = CHAT.stream(rename=None, wants_usage=False)
    assert stream.feed(event) == event
    assert not stream.is_complete
    assert stream.failure is None


def test_an_anthropic_tool_call_begins_with_an_empty_input() -> None:
    stream = ANTHROPIC.stream(rename=None, wants_usage=True)
    block = {key: value for key, value in USE.items() if key != "input"}
    start = {"type": "content_block_start", "index": 0, "content_block": block}
    out = stream.feed(b"event: content_block_start\ndata: " + encode(start) + b"\n\n")
    assert json.loads(out.split(b"data: ")[1])["content_block"]["input"] == {}


def test_an_answer_ended_by_a_stop_text_says_so() -> None:
    delta = {"stop_reason": "end_turn", "stop_sequence": "END"}
    event = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}
    stream = ANTHROPIC.stream(rename=None, wants_usage=True)
    out = stream.feed(b"event: message_delta\ndata: " + encode(event) + b"\n\n")
    assert json.loads(out.split(b"data: ")[1])["delta"]["stop_reason"] == "stop_sequence"
    assert stream.usage.completion_tokens == 3


def test_events_of_responses_get_the_numbers_that_clients_need() -> None:
    given: list[dict[str, Any]] = [
        {"type": "response.created", "response": {"id": "r"}},
        {"type": "response.output_item.added", "item": {"id": "a", "type": "reasoning"}},
        {"type": "response.reasoning_text.delta", "item_id": "a", "delta": "x"},
        {"type": "response.output_item.added", "item": {"id": "b", "type": "message"}},
        {"type": "response.output_text.delta", "item_id": "b", "delta": "y"},
    ]
    stream = RESPONSES.stream(rename=None, wants_usage=True)
    out = b"".join(
        stream.feed(f"event: {each['type']}\n".encode() + b"data: " + encode(each) + b"\n\n")
        for each in given
    )
    data = [json.loads(block.split(b"data: ")[1]) for block in out.strip().split(b"\n\n")]
    assert [each["sequence_number"] for each in data] == [0, 1, 2, 3, 4]
    assert [each.get("output_index") for each in data] == [None, 0, 0, 1, 1]
    assert [each.get("content_index") for each in data] == [None, None, 0, None, 0]
    assert data[0]["response"]["output"] == []
