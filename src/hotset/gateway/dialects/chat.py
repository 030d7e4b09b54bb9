"""OpenAI's chat completions: messages, tools and the form of the answer, checked and mended."""

from __future__ import annotations

import json
from typing import Any

from hotset.gateway.dialects.checks import (
    check_choice,
    check_image_url,
    check_kind,
    check_schema,
    drop_nulls,
    need_list,
    need_object,
    need_text,
    refuse_images,
    shown,
    steady_billing,
)
from hotset.gateway.dialects.collect import ChatCollector, Collector
from hotset.gateway.dialects.failure import BadRequest
from hotset.gateway.dialects.openai import OpenAIDialect
from hotset.gateway.dialects.order import (
    with_one_system_message,
    without_empty_end,
    without_repeated_roles,
)
from hotset.gateway.dialects.patterns import mend_patterns

__all__ = ["ChatDialect", "check_arguments", "chosen_tool", "mend_format"]


class ChatDialect(OpenAIDialect):
    """Chat completions."""

    def prepare(self, body: dict[str, Any], *, has_vision: bool) -> bool:
        changed = super().prepare(body, has_vision=has_vision)
        changed = _mend_tools(body) or changed
        changed = mend_format(body) or changed
        return _mend_messages(body, has_vision=has_vision) or changed

    def collector(self, body: dict[str, Any]) -> Collector | None:
        # With tools the engine gives no probabilities in a stream.
        if body.get("logprobs") and body.get("tools"):
            return None
        return ChatCollector()

    def rearranged(self, body: dict[str, Any]) -> dict[str, Any] | None:
        messages = body["messages"]
        kept = without_empty_end(without_repeated_roles(with_one_system_message(messages)))
        changed: dict[str, Any] = {}
        if kept != messages:
            changed["messages"] = kept
        if kept and kept[-1]["role"] == "assistant" and "chat_template_kwargs" not in body:
            # Going on from the beginning of an answer: thinking comes before it, so it is over.
            changed["chat_template_kwargs"] = {"enable_thinking": False}
        return {**body, **changed} if changed else None


def mend_format(body: dict[str, Any]) -> bool:
    """`response_format`: a form that the engine would not know constrains nothing."""
    if "response_format" not in body:
        return False
    path = "response_format"
    given = need_object(body[path], path)
    kind = need_text(given, "type", path)
    if kind == "json_schema":
        wrapper = need_object(given.get("json_schema"), f"{path}.json_schema")
        schema = need_object(wrapper.get("schema"), f"{path}.json_schema.schema")
        return mend_patterns(schema, f"{path}.json_schema.schema", is_strict=True)
    if kind == "json_object":
        if given.get("schema") is not None:
            schema = need_object(given["schema"], f"{path}.schema")
            return mend_patterns(schema, f"{path}.schema", is_strict=True)
    elif kind != "text":
        raise BadRequest(
            f"is {shown(kind)}; it must be 'text', 'json_object' or 'json_schema'", f"{path}.type"
        )
    return False


def _mend_tools(body: dict[str, Any]) -> bool:
    """Tools and the choice among them, in the form that the engine reads."""
    changed = False
    names = []
    for i, tool in enumerate(need_list(body.get("tools", []), "tools")):
        path = f"tools[{i}]"
        need_object(tool, path)
        if "type" not in tool and "function" in tool:
            tool["type"] = "function"
            changed = True
        if tool.get("type") != "function":
            raise BadRequest(
                f"is {shown(tool.get('type'))}; only tools of type 'function' can be called here",
                f"{path}.type",
            )
        function = need_object(tool.get("function"), f"{path}.function")
        names.append(need_text(function, "name", f"{path}.function"))
        changed = drop_nulls(function) or changed
        if "description" in function:
            check_kind(function["description"], "a text", f"{path}.function.description")
        if "parameters" in function:
            at = f"{path}.function.parameters"
            check_schema(function["parameters"], at)
            changed = mend_patterns(function["parameters"], at, is_strict=False) or changed
    return chosen_tool(body, names) or changed


def chosen_tool(body: dict[str, Any], names: list[str]) -> bool:
    """`tool_choice`: the engine knows only words, so one named tool becomes the only one offered.

    It would take an object for "auto", and the model might call any tool or none.
    """
    choice = body.get("tool_choice")
    if choice is None:
        return False
    if isinstance(choice, str):
        if choice not in ("auto", "none", "required"):
            raise BadRequest(
                f"is {shown(choice)}; it must be 'auto', 'none', 'required' or a tool",
                "tool_choice",
            )
        if choice == "required" and not names:
            raise BadRequest("is 'required', but there are no tools", "tool_choice")
        return False
    need_object(choice, "tool_choice")
    holder, path = choice, "tool_choice"
    if isinstance(choice.get("function"), dict):
        holder, path = choice["function"], "tool_choice.function"
    if choice.get("type") != "function":
        raise BadRequest(
            f"is {shown(choice.get('type'))}; only a 'function' can be chosen", "tool_choice.type"
        )
    name = need_text(holder, "name", path)
    check_choice(name, names, f"{path}.name")
    body["tools"] = [
        tool for tool in body["tools"] if (tool.get("function") or tool).get("name") == name
    ]
    body["tool_choice"] = "required"
    return True


def _mend_messages(body: dict[str, Any], *, has_vision: bool) -> bool:
    if "messages" not in body:
        raise BadRequest("is missing; it must be a list of messages", "messages")
    messages = need_list(body["messages"], "messages")
    if not messages:
        raise BadRequest("is empty; give at least one message", "messages")
    changed = False
    called: set[str] = set()
    has_calls = False
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        need_object(message, path)
        role = need_text(message, "role", path)
        changed = _mend_content(message, path, has_vision=has_vision) or changed
        if role == "assistant":
            calls = message.get("tool_calls")
            if calls is None:
                changed = message.pop("tool_calls", 0) is None or changed
            else:
                changed = _mend_calls(calls, called, f"{path}.tool_calls") or changed
                has_calls = has_calls or bool(calls)
        elif role == "tool":
            call = message.get("tool_call_id")
            if call is not None or not has_calls:
                # Some clients number neither calls nor results; then order has to do.
                call = need_text(message, "tool_call_id", path)
                if call not in called:
                    raise BadRequest(
                        f"is {shown(call)}, but no message before has a tool call of that id",
                        f"{path}.tool_call_id",
                    )
    return changed


def _mend_content(message: dict[str, Any], path: str, *, has_vision: bool) -> bool:
    content = message.get("content")
    path = f"{path}.content"
    if content is None:
        if message["role"] == "assistant":
            # Without content and calls the message is empty; the engine wants one of the two.
            if not message.get("tool_calls"):
                message["content"] = ""
                return True
            return False
        raise BadRequest("is missing; it must be a text or a list of parts", path)
    if isinstance(content, str):
        if message["role"] in ("system", "developer"):
            steady = steady_billing(content)
            message["content"] = steady
            return steady != content
        return False
    for i, part in enumerate(need_list(content, path)):
        check_part(part, f"{path}[{i}]", has_vision=has_vision)
    return False


def check_part(part: Any, path: str, *, has_vision: bool) -> None:
    """One part of a message's content."""
    part = need_object(part, path)
    kind = need_text(part, "type", path)
    if kind == "text":
        check_kind(part.get("text"), "a text", f"{path}.text")
    elif kind == "image_url":
        refuse_images(path, has_vision=has_vision)
        image = need_object(part.get("image_url"), f"{path}.image_url")
        check_image_url(image.get("url"), f"{path}.image_url.url")
    elif kind not in ("input_audio", "input_video"):
        raise BadRequest(
            f"is {shown(kind)}; this gateway takes 'text', 'image_url' and 'input_audio'",
            f"{path}.type",
        )


def _mend_calls(calls: object, called: set[str], path: str) -> bool:
    """Tool calls of earlier answers; templates want their arguments as JSON objects."""
    changed = False
    for i, call in enumerate(need_list(calls, path)):
        at = f"{path}[{i}]"
        need_object(call, at)
        function = need_object(call.get("function"), f"{at}.function")
        need_text(function, "name", f"{at}.function")
        if "type" not in call:
            call["type"] = "function"
            changed = True
        arguments = function.get("arguments")
        if arguments in (None, ""):
            function["arguments"] = "{}"
            changed = True
        elif isinstance(arguments, str):
            check_arguments(arguments, f"{at}.function.arguments")
        else:
            need_object(arguments, f"{at}.function.arguments")
        if isinstance(call.get("id"), str):
            called.add(call["id"])
    return changed


def check_arguments(text: str, path: str) -> None:
    try:
        parsed = json.loads(text)
    except (ValueError, RecursionError):
        raise BadRequest(f"is not JSON: {shown(text)}", path, code="invalid_tool_call") from None
    if not isinstance(parsed, dict):
        raise BadRequest(
            f"is {shown(parsed)}; it must be an object", path, code="invalid_tool_call"
        )
