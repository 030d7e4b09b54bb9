"""Anthropic's messages and token counting. The engine serves them itself; this mends what it
takes wrongly, and writes errors in Anthropic's form.

Read off `server_chat_convert_anthropic_to_oai` in llama.cpp's tools/server/server-chat.cpp: unknown
content blocks are dropped without a word; text before a tool's result, in one message, comes out
before the result, although the result must follow its call; a named tool becomes "any tool";
"none" and switched-off thinking are ignored; structured output is not passed on.
"""

from __future__ import annotations

import json
import secrets
from typing import Any

from hotset.gateway.dialects.base import Dialect
from hotset.gateway.dialects.blocks import has_results, mend_messages
from hotset.gateway.dialects.checks import (
    check_choice,
    check_kind,
    check_limit,
    check_schema,
    drop_nulls,
    limits,
    mend_stops,
    need_list,
    need_object,
    need_text,
    shown,
    steady_billing,
)
from hotset.gateway.dialects.collect import Collector, MessageCollector
from hotset.gateway.dialects.failure import BadRequest, Failure, failure_from_engine
from hotset.gateway.dialects.order import join_contents, without_empty_end, without_repeated_roles
from hotset.gateway.dialects.patterns import mend_patterns
from hotset.gateway.dialects.streams import Event, EventStream, Rename, Usage, count, event_bytes

__all__ = ["AnthropicDialect"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    404: "not_found_error",
    413: "request_too_large",
    429: "rate_limit_error",
    503: "overloaded_error",
}
_NUMBERS = {
    "temperature": "a number",
    "top_p": "a number",
    "top_k": "a whole number",
    "stream": "true or false",
    "thinking": "an object",
    "metadata": "an object",
    "chat_template_kwargs": "an object",
}


class _AnthropicStream(EventStream):
    """Events until `message_stop`."""

    marks = (b"event: message_", b"event: error", b'"tool_use"', b'"error":', b'data: {"code"')

    def __init__(self, rename: Rename | None) -> None:
        super().__init__(rename)
        self._has_begun = False

    def lacks_start(self, data: bytes) -> bool:
        """llama.cpp writes `message_start` with the first token, and not at all where that one is
        held back: the first bytes of a sign that takes several tokens, or of a stop text."""
        if self._has_begun or not data.strip() or data.startswith(b":"):
            return False
        self._has_begun = True
        return data.startswith((b"event: content_block_", b"event: message_delta"))

    def start(self, model: str, prompt_tokens: int) -> bytes:
        message: dict[str, Any] = {
            "id": f"msg_{secrets.token_hex(12)}",
            "type": "message",
            "role": "assistant",
            "content": [],
            "model": model,
            "stop_reason": None,
            "stop_sequence": None,
            "usage": {"input_tokens": prompt_tokens, "output_tokens": 0},
        }
        return event_bytes({"type": "message_start", "message": message}, "message_start")

    def take(self, event: Event) -> bytes:
        data = event.json()
        kind = data.get("type")
        if event.name == "error" or "error" in data:
            error = data.get("error", data)
            code = error.get("code") if isinstance(error, dict) else None
            self.failure = failure_from_engine(code if isinstance(code, int) else 502, event.data)
            return b""
        if kind == "message_start":
            self._take_usage(data.get("message", {}).get("usage"))
        elif kind == "message_delta":
            self._take_usage(data.get("usage"))
            if _mend_stop(data.get("delta")):
                return event_bytes(data, event.name)
        elif kind == "message_stop":
            self.is_complete = True
        elif kind == "content_block_start" and data["content_block"].get("type") == "tool_use":
            # Clients add the pieces of the input to what the block begins with.
            data["content_block"].setdefault("input", {})
            return event_bytes(data, event.name)
        return event.raw + b"\n\n"

    def _take_usage(self, given: object) -> None:
        if isinstance(given, dict):
            take_usage(self.usage, given)


def take_usage(usage: Usage, given: dict[str, Any]) -> None:
    """From Anthropic's `usage`, whose `input_tokens` leaves out what was cached."""
    if "input_tokens" in given:
        usage.cached_tokens = count(given.get("cache_read_input_tokens"))
        usage.prompt_tokens = usage.cached_tokens + count(given["input_tokens"])
    usage.completion_tokens = count(given.get("output_tokens"))


def _mend_stop(holder: object) -> bool:
    """The engine says "end_turn" where one of the client's own stop texts ended the answer."""
    if not isinstance(holder, dict) or not holder.get("stop_sequence"):
        return False
    if holder.get("stop_reason") != "end_turn":
        return False
    holder["stop_reason"] = "stop_sequence"
    return True


class AnthropicDialect(Dialect):
    """Messages and token counting."""

    name = "anthropic"

    def prepare(self, body: dict[str, Any], *, has_vision: bool) -> bool:
        changed = drop_nulls(body)
        limits(body, _NUMBERS)
        check_limit(body, "max_tokens")
        changed = mend_stops(body, "stop_sequences") or changed
        if "output_format" in body or "format" in (body.get("output_config") or {}):
            raise BadRequest(
                "structured output is not available on this endpoint; use a tool with a schema",
                "output_format" if "output_format" in body else "output_config.format",
                code="not_supported",
            )
        changed = _mend_system(body) or changed
        changed = _mend_thinking(body) or changed
        changed = _mend_tools(body) or changed
        return mend_messages(body, has_vision=has_vision) or changed

    def rearranged(self, body: dict[str, Any]) -> dict[str, Any] | None:
        system: object = body.get("system", "")
        others = []
        has_answer = False
        for message in body["messages"]:
            has_answer = has_answer or message["role"] == "assistant"
            if message["role"] not in ("system", "developer"):
                others.append(message)
            elif has_answer:
                others.append({**message, "role": "user"})
            else:
                system = join_contents(system, message["content"])
        kept = without_empty_end(_joined_turns(others))
        changed: dict[str, Any] = {}
        if kept != body["messages"]:
            changed["messages"] = kept
        if system != body.get("system", ""):
            changed["system"] = system
        if kept and kept[-1]["role"] == "assistant" and "chat_template_kwargs" not in body:
            changed["chat_template_kwargs"] = {"enable_thinking": False}
        return {**body, **changed} if changed else None

    def collector(self, body: dict[str, Any]) -> Collector:
        del body
        return MessageCollector()

    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        del wants_usage
        return _AnthropicStream(rename)

    def error(self, failure: Failure, request_id: str) -> dict[str, Any]:
        kind = _TYPES.get(failure.status)
        if kind is None:
            kind = "invalid_request_error" if failure.status < 500 else "api_error"
        message = failure.message
        if failure.code == "context_length_exceeded" and failure.context_tokens is not None:
            # Coding agents look for "prompt is too long" and the two numbers in this form.
            message = (
                f"prompt is too long: {failure.prompt_tokens} tokens >"
                f" {failure.context_tokens} maximum"
            )
        error: dict[str, Any] = {"type": kind, "message": message, "code": failure.code}
        if failure.path:
            error["param"] = failure.path
        return {"type": "error", "error": error, "request_id": request_id}

    def error_event(self, failure: Failure, request_id: str) -> bytes:
        return event_bytes(self.error(failure, request_id), "error")

    def usage_of(self, head: bytes, tail: bytes) -> Usage:
        usage = Usage()
        for text in (head, tail):
            start = text.rfind(b'"usage":')
            end = text.find(b"}", start)
            if start >= 0 and end >= 0:
                try:
                    given = json.loads(text[start + len(b'"usage":') : end + 1])
                except ValueError:
                    continue
                if isinstance(given, dict):
                    take_usage(usage, given)
        return usage


def _joined_turns(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Neighbours of one role joined, but tool results not with the words after them."""
    groups: list[list[dict[str, Any]]] = []
    for message in messages:
        is_result = has_results(message)
        if groups and not is_result and not has_results(groups[-1][-1]):
            groups[-1].append(message)
        else:
            groups.append([message])
    return [joined for group in groups for joined in without_repeated_roles(group)]


def _mend_system(body: dict[str, Any]) -> bool:
    system = body.get("system")
    if system is None:
        return False
    if isinstance(system, str):
        steady = steady_billing(system)
        body["system"] = steady
        return steady != system
    changed = False
    for i, block in enumerate(need_list(system, "system")):
        path = f"system[{i}]"
        if need_text(need_object(block, path), "type", path) != "text":
            raise BadRequest(
                f"is {shown(block['type'])}; a system prompt is made of 'text'", f"{path}.type"
            )
        check_kind(block.get("text"), "a text", f"{path}.text")
        steady = steady_billing(block["text"])
        changed = changed or steady != block["text"]
        block["text"] = steady
    return changed


def _mend_thinking(body: dict[str, Any]) -> bool:
    """Thinking that is switched off; the engine only knows the template's own switch."""
    thinking = body.get("thinking")
    if not thinking or thinking.get("type") != "disabled":
        return False
    body["chat_template_kwargs"] = {"enable_thinking": False} | body.get("chat_template_kwargs", {})
    return True


def _mend_tools(body: dict[str, Any]) -> bool:
    changed = False
    names = []
    for i, tool in enumerate(need_list(body.get("tools", []), "tools")):
        path = f"tools[{i}]"
        kind = need_object(tool, path).get("type", "custom")
        if kind != "custom":
            raise BadRequest(
                f"is {shown(kind)}; tools that Anthropic's own service runs or defines are not"
                " available here, give one with an input_schema",
                f"{path}.type",
                code="not_supported",
            )
        names.append(need_text(tool, "name", path))
        changed = drop_nulls(tool) or changed
        if "description" in tool:
            check_kind(tool["description"], "a text", f"{path}.description")
        check_schema(tool.get("input_schema"), f"{path}.input_schema")
        at = f"{path}.input_schema"
        changed = mend_patterns(tool["input_schema"], at, is_strict=False) or changed
    choice = body.get("tool_choice")
    if choice is None:
        return changed
    kind = need_text(need_object(choice, "tool_choice"), "type", "tool_choice")
    if kind == "none":
        body.pop("tools", None)
        del body["tool_choice"]
        return True
    if kind not in ("auto", "any", "tool"):
        raise BadRequest(
            f"is {shown(kind)}; it must be 'auto', 'any', 'tool' or 'none'", "tool_choice.type"
        )
    if kind != "auto" and not names:
        raise BadRequest(f"is '{kind}', but there are no tools", "tool_choice.type")
    if kind == "tool":
        name = need_text(choice, "name", "tool_choice")
        check_choice(name, names, "tool_choice.name")
        body["tools"] = [tool for tool in body["tools"] if tool["name"] == name]
        return True
    return changed
