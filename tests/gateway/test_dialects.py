"""What the dialects refuse, each with its place in the JSON."""

from __future__ import annotations

from typing import Any

import pytest

from dialectkit import IMAGE, PICTURE, RESULT, TOOL, USE, USER, chat_with, message, prepared
from hotset.gateway.dialects.failure import BadRequest
from hotset.gateway.endpoints import ANTHROPIC, CHAT, RESPONSES


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
    ("max_tokens", chat_with(max_tokens=10**30)),
    ("max_tokens", chat_with(max_tokens="10")),
    ("max_completion_tokens", chat_with(max_completion_tokens=1.5)),
    ("temperature", chat_with(temperature="warm")),
    ("stream", chat_with(stream="true")),
    ("stop[0]", chat_with(stop=[3])),
    ("reasoning_format", chat_with(reasoning_format="foo")),
    ("reasoning_format", chat_with(reasoning_format=["none"])),
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
