"""OpenAI's responses. The engine turns them into chat itself; this mends what it takes wrongly.

Read off `server_chat_convert_responses_to_chatcmpl` in llama.cpp's tools/server/server-chat.cpp:
`text.format` is not read, so that an answer would not be constrained; an assistant's message needs
its `type`; a reasoning item needs `content`; a chosen tool is taken for "auto".
"""

from __future__ import annotations

from typing import Any

from hotset.gateway.dialects.chat import check_arguments, chosen_tool
from hotset.gateway.dialects.checks import (
    check_kind,
    check_limit,
    check_schema,
    drop_nulls,
    limits,
    need_list,
    need_object,
    need_text,
    refuse_images,
    shown,
)
from hotset.gateway.dialects.collect import Collector, ResponseCollector
from hotset.gateway.dialects.failure import BadRequest, Failure, failure_from_engine
from hotset.gateway.dialects.openai import OpenAIDialect
from hotset.gateway.dialects.patterns import mend_patterns
from hotset.gateway.dialects.streams import Event, EventStream, Rename, count, event_bytes

__all__ = ["ResponsesDialect"]

_FIELDS = {
    "temperature": "a number",
    "top_p": "a number",
    "stream": "true or false",
    "instructions": "a text",
    "text": "an object",
    "reasoning": "an object",
}
_OF_A_PART = ("response.content_part.", "response.output_text.", "response.reasoning_text.")
_ENDS = ("response.completed", "response.incomplete", "response.failed")


class _ResponsesStream(EventStream):
    """Events until `response.completed`.

    llama.cpp leaves out the numbers that clients put the pieces together by: of the event, of the
    item, of the part. So each event of this dialect is read and written again.
    """

    marks = (b"event: response.", b'"error":')

    def __init__(self, rename: Rename | None) -> None:
        super().__init__(rename)
        self._num_events = 0
        self._places: dict[str, int] = {}

    def take(self, event: Event) -> bytes:
        data = event.json()
        if not event.name.startswith("response."):
            if "error" not in data:
                return event.raw + b"\n\n"
            error = data["error"]
            code = error.get("code") if isinstance(error, dict) else None
            self.failure = failure_from_engine(code if isinstance(code, int) else 502, event.data)
            return b""
        if event.name in _ENDS:
            self.is_complete = True
            self._take_usage(data.get("response"))
        self._number(event.name, data)
        return event_bytes(data, event.name)

    def _number(self, name: str, data: dict[str, Any]) -> None:
        data.setdefault("sequence_number", self._num_events)
        self._num_events += 1
        item = data.get("item")
        item_id = data.get("item_id") or (item.get("id") if isinstance(item, dict) else None)
        if isinstance(item_id, str):
            place = self._places.setdefault(item_id, len(self._places))
            data.setdefault("output_index", place)
        if name.startswith(_OF_A_PART):
            data.setdefault("content_index", 0)
        if name.startswith("response.output_text."):
            data.setdefault("logprobs", [])
        response = data.get("response")
        if isinstance(response, dict):
            response.setdefault("output", [])

    def _take_usage(self, response: object) -> None:
        usage = response.get("usage") if isinstance(response, dict) else None
        if not isinstance(usage, dict):
            return
        self.usage.prompt_tokens = count(usage.get("input_tokens"))
        self.usage.completion_tokens = count(usage.get("output_tokens"))
        details = usage.get("input_tokens_details")
        if isinstance(details, dict):
            self.usage.cached_tokens = count(details.get("cached_tokens"))


class ResponsesDialect(OpenAIDialect):
    """Responses."""

    name = "responses"

    def prepare(self, body: dict[str, Any], *, has_vision: bool) -> bool:
        changed = drop_nulls(body)
        limits(body, _FIELDS)
        check_limit(body, "max_output_tokens")
        if body.get("previous_response_id"):
            raise BadRequest(
                "earlier responses are not kept here; send the whole conversation as input",
                "previous_response_id",
                code="not_supported",
            )
        changed = _mend_text(body) or changed
        names = []
        for i, tool in enumerate(need_list(body.get("tools", []), "tools")):
            path = f"tools[{i}]"
            if need_object(tool, path).get("type") == "function":
                names.append(need_text(tool, "name", path))
                changed = drop_nulls(tool) or changed
                if "parameters" in tool:
                    at = f"{path}.parameters"
                    check_schema(tool["parameters"], at)
                    changed = mend_patterns(tool["parameters"], at, is_strict=False) or changed
        changed = chosen_tool(body, names) or changed
        if "input" not in body:
            raise BadRequest("is missing; it must be a text or a list of items", "input")
        if isinstance(body["input"], str):
            return changed
        return _mend_items(body, has_vision=has_vision) or changed

    def collector(self, body: dict[str, Any]) -> Collector:
        del body
        return ResponseCollector()

    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        del wants_usage
        return _ResponsesStream(rename)

    def error_event(self, failure: Failure, request_id: str) -> bytes:
        # `error` besides OpenAI's own fields: clients that look only for it stop, too.
        error = self.error(failure, request_id)["error"]
        event = {
            "type": "error",
            "code": failure.code,
            "message": error["message"],
            "param": failure.path or None,
            "sequence_number": 0,
            "error": error,
        }
        return event_bytes(event, "error")


def _mend_text(body: dict[str, Any]) -> bool:
    """`text.format` as the `response_format` that the engine reads."""
    given = body.get("text", {}).get("format")
    if given is None:
        return False
    kind = need_text(need_object(given, "text.format"), "type", "text.format")
    if kind == "json_schema":
        need_object(given.get("schema"), "text.format.schema")
        mend_patterns(given["schema"], "text.format.schema", is_strict=True)
        body["response_format"] = {"type": kind, "json_schema": {"schema": given["schema"]}}
    elif kind in ("json_object", "text"):
        body["response_format"] = {"type": kind}
    else:
        raise BadRequest(f"is {shown(kind)}, which is unknown here", "text.format.type")
    return True


def _mend_items(body: dict[str, Any], *, has_vision: bool) -> bool:
    changed = False
    called: set[str] = set()
    kept = []
    for i, item in enumerate(need_list(body["input"], "input")):
        path = f"input[{i}]"
        need_object(item, path)
        kind = item.get("type", "message")
        if kind == "message":
            changed = _mend_message(item, path, has_vision=has_vision) or changed
        elif kind == "function_call":
            called.add(need_text(item, "call_id", path))
            need_text(item, "name", path)
            check_arguments(need_text(item, "arguments", path), f"{path}.arguments")
        elif kind == "function_call_output":
            if need_text(item, "call_id", path) not in called:
                raise BadRequest(
                    f"is {shown(item['call_id'])}, but no item before is a function_call of that"
                    " call_id",
                    f"{path}.call_id",
                )
        elif kind == "reasoning":
            if not _mend_reasoning(item):
                changed = True
                continue
            changed = True
        else:
            raise BadRequest(f"is {shown(kind)}, which cannot be read here", f"{path}.type")
        kept.append(item)
    body["input"] = kept
    return changed


def _mend_message(item: dict[str, Any], path: str, *, has_vision: bool) -> bool:
    role = need_text(item, "role", path)
    content = item.get("content")
    if not isinstance(content, str):
        for i, part in enumerate(need_list(content, f"{path}.content")):
            at = f"{path}.content[{i}]"
            kind = need_text(need_object(part, at), "type", at)
            if kind == "input_image":
                refuse_images(at, has_vision=has_vision)
            elif kind in ("input_text", "output_text"):
                check_kind(part.get("text"), "a text", f"{at}.text")
            elif kind != "refusal":
                raise BadRequest(f"is {shown(kind)}, which cannot be read here", f"{at}.type")
    if role == "assistant" and "type" not in item:
        item["type"] = "message"
        return True
    return False


def _mend_reasoning(item: dict[str, Any]) -> bool:
    """Give it the words that it has, as content; False if it has none (it is encrypted)."""
    for key in ("content", "summary"):
        texts = [p["text"] for p in item.get(key) or [] if isinstance(p.get("text"), str)]
        if texts:
            item["content"] = [{"type": "reasoning_text", "text": "\n".join(texts)}]
            item.setdefault("summary", [])
            return True
    return False
