"""What OpenAI's endpoints share, and llama.cpp's own forms, which are close to them."""

from __future__ import annotations

import json
import re
from typing import Any

from hotset.gateway.dialects.base import Dialect
from hotset.gateway.dialects.checks import (
    check_limit,
    check_word,
    drop_nulls,
    limits,
    mend_stops,
)
from hotset.gateway.dialects.failure import Failure, failure_from_engine
from hotset.gateway.dialects.streams import Event, EventStream, Rename, Usage, count, event_bytes

__all__ = ["LlamaDialect", "OpenAIDialect", "RawDialect"]

_TYPES = {
    401: "authentication_error",
    403: "permission_error",
    429: "rate_limit_error",
}
_NUMBERS = {
    "temperature": "a number",
    "top_p": "a number",
    "presence_penalty": "a number",
    "frequency_penalty": "a number",
    "n": "a whole number",
    "stream": "true or false",
    "stream_options": "an object",
    "parallel_tool_calls": "true or false",
    "chat_template_kwargs": "an object",
    "grammar": "a text",
    "reasoning_effort": "a text",
}
# common_reasoning_format_from_name in llama.cpp's common/chat.cpp; it throws at another.
_REASONING_FORMATS = ("none", "auto", "deepseek", "deepseek-legacy")
_LIMITS = ("max_tokens", "max_completion_tokens", "n_predict")


class _OpenAIStream(EventStream):
    """Chunks until `[DONE]`.

    The engine sends usage as a chunk without choices. A client that did not ask for it may not
    expect such a chunk, so for that one it goes into the chunk before, which ends the answer.
    """

    marks = (b'"finish_reason":"', b'"usage":', b'"timings":', b'"error":', b"data: [DONE]")

    def __init__(self, rename: Rename | None, *, wants_usage: bool) -> None:
        super().__init__(rename)
        self._wants_usage = wants_usage
        self._kept: dict[str, Any] | None = None

    def take(self, event: Event) -> bytes:
        if event.data.strip() == "[DONE]":
            self.is_complete = True
            return self.flush() + event.raw + b"\n\n"
        chunk = event.json()
        if "error" in chunk:
            self.failure = failure_from_engine(_status(chunk["error"]), event.data)
            return self.flush()
        self._note(chunk)
        if self._wants_usage:
            return event.raw + b"\n\n"
        if self._kept is not None and chunk.get("choices") == [] and "usage" in chunk:
            self._kept |= {key: chunk[key] for key in ("usage", "timings") if key in chunk}
            return b""
        before = self.flush()
        if any(choice.get("finish_reason") for choice in chunk.get("choices") or []):
            self._kept = chunk
            return before
        return before + event.raw + b"\n\n"

    def _note(self, chunk: dict[str, Any]) -> None:
        if isinstance(chunk.get("usage"), dict):
            take_usage(self.usage, chunk["usage"])
        self.usage.take_timings(chunk.get("timings"))

    def flush(self) -> bytes:
        kept, self._kept = self._kept, None
        return b"" if kept is None else event_bytes(kept)


class _LlamaStream(EventStream):
    """llama.cpp's own completions: the last event says `"stop":true`; there is no `[DONE]`."""

    marks = (b'"stop":true', b'"timings":', b'"error":', b"data: [DONE]")

    def take(self, event: Event) -> bytes:
        chunk = event.json()
        if "error" in chunk:
            self.failure = failure_from_engine(_status(chunk["error"]), event.data)
            return b""
        self.usage.take_timings(chunk.get("timings"))
        self.is_complete = self.is_complete or chunk.get("stop") is True
        return event.raw + b"\n\n"


def _status(error: object) -> int:
    code = error.get("code") if isinstance(error, dict) else None
    return code if isinstance(code, int) and 400 <= code <= 599 else 502


def take_usage(usage: Usage, given: dict[str, Any]) -> None:
    """From OpenAI's `usage`."""
    usage.prompt_tokens = count(given.get("prompt_tokens"))
    usage.completion_tokens = count(given.get("completion_tokens"))
    details = given.get("prompt_tokens_details")
    if isinstance(details, dict):
        usage.cached_tokens = count(details.get("cached_tokens"))


class OpenAIDialect(Dialect):
    """What all of OpenAI's endpoints share: the form of errors, and plain fields."""

    name = "openai"

    def prepare(self, body: dict[str, Any], *, has_vision: bool) -> bool:
        del has_vision
        changed = drop_nulls(body)
        limits(body, _NUMBERS)
        check_limit(body, *_LIMITS)
        if "reasoning_format" in body:
            check_word(body["reasoning_format"], _REASONING_FORMATS, "reasoning_format")
        changed = mend_stops(body, "stop") or changed
        return self._ask_for_usage(body) or changed

    def _ask_for_usage(self, body: dict[str, Any]) -> bool:
        if not body.get("stream") or self.wants_usage(body):
            return False
        body["stream_options"] = body.get("stream_options", {}) | {"include_usage": True}
        return True

    def wants_usage(self, body: dict[str, Any]) -> bool:
        options = body.get("stream_options")
        return isinstance(options, dict) and options.get("include_usage") is True

    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        return _OpenAIStream(rename, wants_usage=wants_usage)

    def error(self, failure: Failure, request_id: str) -> dict[str, Any]:
        kind = _TYPES.get(failure.status)
        if kind is None:
            kind = "invalid_request_error" if failure.status < 500 else "server_error"
        message = failure.message
        if failure.code == "context_length_exceeded" and failure.context_tokens is not None:
            # Agents look for the words "maximum context length", and for the two numbers.
            message = (
                f"this model's maximum context length is {failure.context_tokens} tokens, but the"
                f" request has {failure.prompt_tokens}; shorten the conversation"
            )
        error: dict[str, Any] = {
            "message": message,
            "type": kind,
            "param": failure.path or None,
            "code": failure.code,
        }
        if failure.prompt_tokens is not None:
            error |= {"n_prompt_tokens": failure.prompt_tokens, "n_ctx": failure.context_tokens}
        return {"error": error, "request_id": request_id}

    def error_event(self, failure: Failure, request_id: str) -> bytes:
        return event_bytes(self.error(failure, request_id))

    def usage_of(self, head: bytes, tail: bytes) -> Usage:
        usage = Usage()
        for text in (head, tail):
            if given := _object_after(text, b'"usage":'):
                take_usage(usage, given)
            if given := _object_after(text, b'"timings":'):
                usage.take_timings(given)
        return usage


_FLAT = re.compile(rb"\s*(\{[^{}]*(?:\{[^{}]*\}[^{}]*)*\})")


def _object_after(text: bytes, key: bytes) -> dict[str, Any]:
    """The last small object at `key` in a piece of JSON; empty if there is none."""
    start = text.rfind(key)
    found = _FLAT.match(text, start + len(key)) if start >= 0 else None
    try:
        parsed = json.loads(found[1]) if found else {}
    except ValueError:
        return {}
    return parsed if isinstance(parsed, dict) else {}


class LlamaDialect(OpenAIDialect):
    """llama.cpp's own endpoints (`/completion`, `/infill`, `/tokenize` ...)."""

    name = "llama"

    def _ask_for_usage(self, body: dict[str, Any]) -> bool:
        del body
        return False

    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        del wants_usage
        return _LlamaStream(rename)


class _RawStream(EventStream):
    """Events of a protocol that is not known here; the end of the connection is their end."""

    marks = ()

    def __init__(self) -> None:
        super().__init__(None)
        self.is_complete = True

    def feed(self, data: bytes) -> bytes:
        return data

    def take(self, event: Event) -> bytes:
        return event.raw


class RawDialect(LlamaDialect):
    """What is passed on unread; errors in OpenAI's form."""

    name = "raw"

    def stream(self, *, rename: Rename | None, wants_usage: bool) -> EventStream:
        del rename, wants_usage
        return _RawStream()
