"""What the dialects refuse, what they mend, and what they leave alone."""

from __future__ import annotations

import copy
import itertools
import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import EngineProblem, MachineProblem
from hotset.gateway.dialects.base import Dialect, encode
from hotset.gateway.dialects.checks import steady_billing
from hotset.gateway.dialects.failure import (
    BadRequest,
    Failure,
    failure_from_engine,
    failure_of,
)
from hotset.gateway.dialects.order import (
    with_one_system_message,
    without_empty_end,
    without_repeated_roles,
)
from hotset.gateway.endpoints import ANTHROPIC, CHAT, LLAMA, OPENAI, RESPONSES

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}


def prepared(dialect: Dialect, body: dict[str, Any], **more: bool) -> dict[str, Any]:
    """What the engine would get; the given body stays as it is."""
    mended = copy.deepcopy(body)
    changed = dialect.prepare(mended, has_vision=more.get("has_vision", False))
    assert changed == (mended != body)
    return mended


def chat_with(**more: Any) -> dict[str, Any]:
    return {"messages": [USER], **more}


def test_a_plain_request_is_passed_on_untouched() -> None:
    for dialect in (CHAT, ANTHROPIC):
        assert prepared(dialect, chat_with(max_tokens=5)) == chat_with(max_tokens=5)
    assert prepared(RESPONSES, {"input": "Hi"}) == {"input": "Hi"}


REFUSED_CHATS = [
    ("messages", {"messages": "Hi"}),
    ("messages", {"messages": []}),
    ("messages", {}),
    ("messages[0]", {"messages": ["Hi"]}),
    ("messages[0].role", {"messages": [{"content": "Hi"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content", {"messages": [{"role": "user", "content": 3}]}),
    ("messages[0].content[0].type", {"messages": [{"role": "user", "content": [{"text": "x"}]}]}),
    (
        "messages[0].content[0].type",
        {"messages": [{"role": "user", "content": [{"type": "file"}]}]},
    ),
    ("messages[0].content[0]", {"messages": [{"role": "user", "content": [IMAGE]}]}),
    ("messages[0].tool_call_id", {"messages": [{"role": "tool", "content": "x"}]}),
    (
        "messages[1].tool_call_id",
        {"messages": [USER, {"role": "tool", "tool_call_id": "c9", "content": "x"}]},
    ),
    ("messages[0].tool_calls", {"messages": [{"role": "assistant", "tool_calls": {}}]}),
    (
        "messages[0].tool_calls[0].function.name",
        {"messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": ""}}]}]},
    ),
    (
        "messages[0].tool_calls[0].function.arguments",
        {
            "messages": [
                {
                    "role": "assistant",
                    "tool_calls": [{"function": {"name": "f", "arguments": "{bad"}}],
                }
            ]
        },
    ),
    (
        "messages[0].tool_calls[0].function.arguments",
        {
            "messages": [
                {"role": "assistant", "tool_calls": [{"function": {"name": "f", "arguments": "3"}}]}
            ]
        },
    ),
    ("max_tokens", chat_with(max_tokens=-5)),
    ("max_tokens", chat_with(max_tokens="10")),
    ("max_completion_tokens", chat_with(max_completion_tokens=1.5)),
    ("temperature", chat_with(temperature="warm")),
    ("stream", chat_with(stream="true")),
    ("stop[0]", chat_with(stop=[3])),
    ("tools", chat_with(tools={})),
    ("tools[0].type", chat_with(tools=[{"type": "web_search"}])),
    ("tools[0].function", chat_with(tools=[{"type": "function"}])),
    ("tools[0].function.name", chat_with(tools=[{"type": "function", "function": {}}])),
    (
        "tools[0].function.description",
        chat_with(tools=[{"type": "function", "function": {"name": "f", "description": 3}}]),
    ),
    (
        "tools[0].function.parameters",
        chat_with(tools=[{"type": "function", "function": {"name": "f", "parameters": "x"}}]),
    ),
    (
        "tools[0].function.parameters.type",
        chat_with(
            tools=[
                {"type": "function", "function": {"name": "f", "parameters": {"type": "string"}}}
            ]
        ),
    ),
    (
        "tools[0].function.parameters.properties.a",
        chat_with(
            tools=[
                {
                    "type": "function",
                    "function": {"name": "f", "parameters": {"properties": {"a": "string"}}},
                }
            ]
        ),
    ),
    ("tool_choice", chat_with(tools=[TOOL], tool_choice="always")),
    ("tool_choice", chat_with(tool_choice="required")),
    (
        "tool_choice.function.name",
        chat_with(tools=[TOOL], tool_choice={"type": "function", "function": {"name": "other"}}),
    ),
    ("response_format", chat_with(response_format="json")),
    ("response_format.type", chat_with(response_format={"type": "yaml"})),
    ("response_format.json_schema", chat_with(response_format={"type": "json_schema"})),
    (
        "response_format.json_schema.schema",
        chat_with(response_format={"type": "json_schema", "json_schema": {"name": "x"}}),
    ),
    (
        "response_format.json_schema.schema.properties.a.pattern",
        chat_with(
            response_format={
                "type": "json_schema",
                "json_schema": {"schema": {"properties": {"a": {"pattern": "(?=x)"}}}},
            }
        ),
    ),
]


@pytest.mark.parametrize(("path", "body"), REFUSED_CHATS)
def test_a_wrong_chat_request_is_refused_with_its_place(path: str, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        prepared(CHAT, body)
    assert caught.value.path == path
    assert caught.value.http_status == 400
    assert caught.value.message.startswith(f"{path}: ")


def message(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}


REFUSED_MESSAGES = [
    ("messages", {}),
    ("messages[0].role", {"messages": [{"role": "tool", "content": "x"}]}),
    ("messages[0].content", {"messages": [{"role": "user"}]}),
    ("messages[0].content[0]", message(PICTURE)),
    ("messages[0].content[0].tool_use_id", message(RESULT)),
    ("messages[0].content[0].type", message({"type": "server_tool_use"})),
    ("messages[0].content[0].type", message(USE)),
    ("messages[0].content[0].name", message({"type": "tool_use", "id": "c"}, role="assistant")),
    ("messages[0].content[0].input", message({**USE, "input": "{}"}, role="assistant")),
    (
        "messages[0].content[0].source.type",
        message({"type": "document", "source": {"type": "base64", "data": "AA"}}),
    ),
    ("system[0].type", {"messages": [USER], "system": [{"type": "image"}]}),
    ("tools[0].type", chat_with(tools=[{"type": "web_search_20250305", "name": "web_search"}])),
    ("tools[0].input_schema", chat_with(tools=[{"name": "f"}])),
    (
        "tools[0].input_schema.type",
        chat_with(tools=[{"name": "f", "input_schema": {"type": "array"}}]),
    ),
    ("tool_choice.type", chat_with(tool_choice={"type": "any"})),
    (
        "tool_choice.name",
        chat_with(
            tools=[{"name": "f", "input_schema": {}}], tool_choice={"type": "tool", "name": "g"}
        ),
    ),
    ("output_format", chat_with(output_format={"type": "json_schema"})),
    ("max_tokens", chat_with(max_tokens="many")),
]


@pytest.mark.parametrize(("path", "body"), REFUSED_MESSAGES)
def test_a_wrong_message_is_refused_with_its_place(path: str, body: dict[str, Any]) -> None:
    with pytest.raises(BadRequest) as caught:
        prepared(ANTHROPIC, body)
    assert caught.value.path == path


REFUSED_RESPONSES = [
    ("input", {}),
    ("input", {"input": 3}),
    ("input[0].type", {"input": [{"type": "local_shell_call"}]}),
    ("input[0].arguments", {"input": [{"type": "function_call", "call_id": "c", "name": "f"}]}),
    (
        "input[0].call_id",
        {"input": [{"type": "function_call_output", "call_id": "c", "output": ""}]},
    ),
    (
        "input[0].content[0]",
        {"input": [{"role": "user", "content": [{"type": "input_image", "image_url": "data:"}]}]},
    ),
    ("previous_response_id", {"input": "Hi", "previous_response_id": "resp_1"}),
    ("text.format.type", {"input": "Hi", "text": {"format": {"type": "xml"}}}),
    ("text.format.schema", {"input": "Hi", "text": {"format": {"type": "json_schema"}}}),
    ("max_output_tokens", {"input": "Hi", "max_output_tokens": -9}),
]


@pytest.mark.parametrize(("path", "body"), REFUSED_RESPONSES)
def test_a_wrong_response_request_is_refused_with_its_place(
    path: str, body: dict[str, Any]
) -> None:
    with pytest.raises(BadRequest) as caught:
        prepared(RESPONSES, body)
    assert caught.value.path == path


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(("max_tokens", "stop", "temperature", "tools", "response_format"))
    for dialect in (CHAT, ANTHROPIC):
        assert prepared(dialect, chat_with(**nulls)) == chat_with()
    function = {"name": "f", "description": None, "parameters": None}
    mended = prepared(CHAT, chat_with(tools=[{"type": "function", "function": function}]))
    assert mended["tools"][0]["function"] == {"name": "f"}


def test_a_named_tool_becomes_the_only_one_and_must_be_called() -> None:
    other = {"type": "function", "function": {"name": "other"}}
    choice = {"type": "function", "function": {"name": "look"}}
    mended = prepared(CHAT, chat_with(tools=[other, TOOL], tool_choice=choice))
    assert mended["tools"] == [TOOL]
    assert mended["tool_choice"] == "required"
    tools = [{"name": name, "input_schema": {"type": "object"}} for name in ("other", "look")]
    choice = {"type": "tool", "name": "look"}
    mended = prepared(ANTHROPIC, chat_with(tools=tools, tool_choice=choice))
    assert mended["tools"] == tools[1:]
    tools = [{"type": "function", "name": name} for name in ("other", "look")]
    choice = {"type": "function", "name": "look"}
    mended = prepared(RESPONSES, {"input": "Hi", "tools": tools, "tool_choice": choice})
    assert (mended["tools"], mended["tool_choice"]) == (tools[1:], "required")


def test_switched_off_tools_and_thinking_of_anthropic_reach_the_engine() -> None:
    tools = [{"name": "f", "input_schema": {"type": "object"}}]
    mended = prepared(ANTHROPIC, chat_with(tools=tools, tool_choice={"type": "none"}))
    assert mended == chat_with()
    mended = prepared(ANTHROPIC, chat_with(thinking={"type": "disabled"}))
    assert mended["chat_template_kwargs"] == {"enable_thinking": False}


def test_empty_arguments_of_an_earlier_call_are_an_empty_object() -> None:
    call = {"id": "c1", "function": {"name": "look", "arguments": ""}}
    body = {"messages": [USER, {"role": "assistant", "content": None, "tool_calls": [call]}]}
    mended = prepared(CHAT, body)["messages"][1]["tool_calls"][0]
    assert mended == {
        "id": "c1",
        "type": "function",
        "function": {"name": "look", "arguments": "{}"},
    }


def test_a_tools_result_comes_before_the_words_that_came_with_it() -> None:
    words = {"type": "text", "text": "and now?"}
    body = {
        "messages": [
            USER,
            {"role": "assistant", "content": [USE]},
            {"role": "user", "content": [words, RESULT]},
        ]
    }
    assert prepared(ANTHROPIC, body)["messages"][2:] == [
        {"role": "user", "content": [RESULT]},
        {"role": "user", "content": [words]},
    ]


def test_a_text_document_becomes_text() -> None:
    source = {"type": "text", "media_type": "text/plain", "data": "the words"}
    body = message({"type": "document", "title": "A title", "source": source})
    (block,) = prepared(ANTHROPIC, body)["messages"][0]["content"]
    assert block == {"type": "text", "text": "A title\n\nthe words"}


def test_images_pass_where_the_model_sees_and_only_if_the_request_carries_them() -> None:
    body = {"messages": [{"role": "user", "content": [IMAGE]}]}
    assert prepared(CHAT, body, has_vision=True) == body
    assert prepared(ANTHROPIC, message(PICTURE), has_vision=True) == message(PICTURE)
    far = {"type": "image_url", "image_url": {"url": "http://10.0.0.1/secret.png"}}
    with pytest.raises(BadRequest, match="not fetched") as caught:
        prepared(CHAT, {"messages": [{"role": "user", "content": [far]}]}, has_vision=True)
    assert caught.value.code == "image_not_supported"
    for dialect, refused in ((CHAT, body), (ANTHROPIC, message(PICTURE))):
        with pytest.raises(BadRequest) as caught:
            prepared(dialect, refused)
        assert caught.value.code == "image_not_supported"


def test_the_form_of_a_response_is_asked_for_in_the_engines_words() -> None:
    schema = {"type": "object", "properties": {"n": {"type": "string", "pattern": "^\\d{3}$"}}}
    form = {"type": "json_schema", "name": "x", "schema": schema}
    mended = prepared(RESPONSES, {"input": "Hi", "text": {"format": form}})
    held = mended["response_format"]["json_schema"]["schema"]
    assert held["properties"]["n"]["pattern"] == "^[0-9]{3}$"


def test_an_assistants_item_without_type_and_a_bare_summary_are_completed() -> None:
    items = [
        {"role": "user", "content": "Hi"},
        {"type": "reasoning", "summary": [{"type": "summary_text", "text": "thought"}]},
        {"type": "reasoning", "summary": [], "encrypted_content": "x"},
        {"role": "assistant", "content": "Hello"},
    ]
    mended = prepared(RESPONSES, {"input": items})["input"]
    assert [item.get("type") for item in mended] == [None, "reasoning", "message"]
    assert mended[1]["content"] == [{"type": "reasoning_text", "text": "thought"}]


@pytest.mark.parametrize(
    ("pattern", "held"),
    [
        ("^\\d+$", "^[0-9]+$"),
        ("^[\\w.-]+@x$", "^[A-Za-z0-9_.-]+@x$"),
        ("^a\\.b$", "^a\\.b$"),
        ("^(?:a|b){2,3}$", "^(?:a|b){2,3}$"),
        ("^[$^]$", "^[$^]$"),
    ],
)
def test_a_pattern_is_spelled_out_for_the_engine(pattern: str, held: str) -> None:
    schema = {"type": "json_schema", "json_schema": {"schema": {"pattern": pattern}}}
    mended = prepared(CHAT, chat_with(response_format=schema))
    assert mended["response_format"]["json_schema"]["schema"]["pattern"] == held


@pytest.mark.parametrize("pattern", ["\\d+", "^a", "^a|b$|^c$", "^\\bword$", "^(?!x)y$", "^a+?$"])
def test_a_pattern_that_cannot_be_held_is_refused_for_answers_and_left_to_tools(
    pattern: str,
) -> None:
    schema = {"type": "object", "properties": {"a": {"type": "string", "pattern": pattern}}}
    form = {"type": "json_schema", "json_schema": {"schema": schema}}
    with pytest.raises(BadRequest) as caught:
        prepared(CHAT, chat_with(response_format=form))
    assert caught.value.code == "schema_not_supported"
    tool = {"type": "function", "function": {"name": "f", "parameters": schema}}
    prepared(CHAT, chat_with(tools=[tool]))


def billing(cch: str) -> str:
    return f"x-anthropic-billing-header: cc_version=2.1.9.e51; cc_entrypoint=cli; cch={cch};"


def test_a_changing_billing_line_becomes_the_same_in_every_request() -> None:
    texts = []
    for cch in ("a5145", "00000f"):
        blocks = [
            {"type": "text", "text": billing(cch)},
            {"type": "text", "text": "You are an agent; think=yes."},
        ]
        mended = prepared(ANTHROPIC, chat_with(system=blocks))
        joined = prepared(ANTHROPIC, chat_with(system=billing(cch) + "You are; a=b; agent"))
        system = {"role": "system", "content": billing(cch) + "\nYou are."}
        chat = prepared(CHAT, {"messages": [system, USER]})
        texts.append((mended["system"], joined["system"], chat["messages"][0]["content"]))
    assert texts[0] == texts[1]
    blocks, joined, chat = texts[0]
    assert blocks[1]["text"] == "You are an agent; think=yes."
    assert joined.endswith("You are; a=b; agent")
    assert chat.endswith("\nYou are.")


@given(st.text())
def test_texts_without_a_billing_line_stay_as_they_are(text: str) -> None:
    if not text.startswith("x-anthropic-billing-header:"):
        assert steady_billing(text) == text


ROLES = st.sampled_from(["system", "developer", "user", "assistant"])
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {
            "role": ROLES,
            "content": st.one_of(
                st.text("abc", max_size=3),
                st.lists(
                    st.text("abc", min_size=1, max_size=3).map(
                        lambda text: {"type": "text", "text": text}
                    ),
                    max_size=2,
                ),
            ),
        }
    ),
    max_size=8,
)


def letters_of(messages: list[dict[str, Any]]) -> list[str]:
    found = []
    for each in messages:
        content = each["content"]
        parts = [content] if isinstance(content, str) else [part["text"] for part in content]
        found += [letter for part in parts for letter in part if letter != "\n"]
    return found


@given(MESSAGES)
def test_rearranging_loses_no_text_and_ends_in_an_order_that_templates_take(
    messages: list[dict[str, Any]],
) -> None:
    before = copy.deepcopy(messages)
    arranged = without_repeated_roles(with_one_system_message(messages))
    assert messages == before
    assert sorted(letters_of(arranged)) == sorted(letters_of(messages))
    roles = [each["role"] for each in arranged]
    assert "developer" not in roles
    assert "system" not in roles[1:]
    assert all(a != b for a, b in itertools.pairwise(roles))
    others = [each for each in messages if each["role"] in ("user", "assistant")]
    kept = [each for each in arranged if each["role"] != "system"]
    if all(each["role"] in ("user", "assistant") for each in messages):
        assert letters_of(kept) == letters_of(others)
    assert letters_of(without_empty_end(arranged)) == letters_of(arranged)


@given(MESSAGES.filter(bool))
def test_anthropics_conversations_are_rearranged_without_loss(
    messages: list[dict[str, Any]],
) -> None:
    body = {"messages": messages}
    other = ANTHROPIC.rearranged(body)
    if other is None:
        return
    system = [{"content": other["system"]}] if other.get("system") else []
    assert sorted(letters_of(system + other["messages"])) == sorted(letters_of(messages))
    assert all(each["role"] in ("user", "assistant") for each in other["messages"])


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
        b'event: response.completed\ndata: {"type":"response.completed","response":{}}\n\n',
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
    start = {"type": "content_block_start", "index": 0, "content_block": {**USE}}
    del start["content_block"]["input"]
    out = stream.feed(b"event: content_block_start\ndata: " + encode(start) + b"\n\n")
    assert json.loads(out.split(b"data: ")[1])["content_block"]["input"] == {}


def test_an_answer_ended_by_a_stop_text_says_so() -> None:
    delta = {"stop_reason": "end_turn", "stop_sequence": "END"}
    event = {"type": "message_delta", "delta": delta, "usage": {"output_tokens": 3}}
    stream = ANTHROPIC.stream(rename=None, wants_usage=True)
    out = stream.feed(b"event: message_delta\ndata: " + encode(event) + b"\n\n")
    assert json.loads(out.split(b"data: ")[1])["delta"]["stop_reason"] == "stop_sequence"
    whole = ANTHROPIC.answer(encode({"type": "message", **delta}))
    assert json.loads(whole)["stop_reason"] == "stop_sequence"
    assert stream.usage.completion_tokens == 3
