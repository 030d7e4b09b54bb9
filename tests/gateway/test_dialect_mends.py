"""What the dialects mend in a request before the engine gets it."""

from __future__ import annotations

import copy
import itertools
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from dialectkit import IMAGE, PICTURE, RESULT, TOOL, USE, USER, chat_with, message, prepared
from hotset.gateway.dialects.base import Dialect
from hotset.gateway.dialects.checks import steady_billing
from hotset.gateway.dialects.failure import BadRequest
from hotset.gateway.dialects.order import (
    with_one_system_message,
    without_empty_end,
    without_repeated_roles,
)
from hotset.gateway.endpoints import ANTHROPIC, CHAT, RESPONSES


def test_null_means_absent() -> None:
    nulls = dict.fromkeys(("max_tokens", "stop", "temperature", "tools", "response_format"))
    for dialect in (CHAT, ANTHROPIC):
        assert prepared(dialect, chat_with(**nulls)) == chat_with()
    function = {"name": "f", "description": None, "parameters": None}
    mended = prepared(CHAT, chat_with(tools=[{"type": "function", "function": function}]))
    assert mended["tools"][0]["function"] == {"name": "f"}


@pytest.mark.parametrize(("dialect", "key"), [(CHAT, "stop"), (ANTHROPIC, "stop_sequences")])
def test_an_empty_text_to_stop_at_is_none(dialect: Dialect, key: str) -> None:
    assert prepared(dialect, chat_with(**{key: ""})) == chat_with()
    for stops in ([""], ["", "END", ""]):
        kept = [stop for stop in stops if stop]
        assert prepared(dialect, chat_with(**{key: stops})) == chat_with(**{key: kept})


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
