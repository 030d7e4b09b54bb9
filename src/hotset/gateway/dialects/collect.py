"""A whole answer put together from a stream of events.

The gateway always streams from the engine. llama.cpp looks after each event of a stream whether its
client is still there; without a stream it looks only after a second in which it had nothing to tell
anybody, which with other requests about may be never, and it computes on for nobody.
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
from typing import Any

from hotset.core.errors import EngineProblem
from hotset.gateway.dialects.streams import Event

__all__ = ["ChatCollector", "Collector", "MessageCollector", "ResponseCollector"]

_MAX_BYTES = 64 * 1024 * 1024


class Collector(ABC):
    """Takes whole events as bytes, gives the answer. For one request."""

    def __init__(self) -> None:
        self._num_bytes = 0

    def add(self, data: bytes) -> None:
        """Take events, as `EventStream.feed` returns them.

        Raises:
            EngineProblem: the answer is larger than any can be.
        """
        self._num_bytes += len(data)
        if self._num_bytes > _MAX_BYTES:
            raise EngineProblem("the engine's answer does not end")
        for raw in data.split(b"\n\n"):
            event = Event.parse(raw)
            if event.data:
                self.take(event.json())

    @abstractmethod
    def take(self, data: dict[str, Any]) -> None:
        """Note one event's data."""

    @abstractmethod
    def answer(self) -> dict[str, Any]:
        """The whole, once all events have been taken."""


class ChatCollector(Collector):
    """OpenAI's chat: deltas become messages."""

    def __init__(self) -> None:
        super().__init__()
        self._frame: dict[str, Any] = {}
        self._choices: dict[int, dict[str, Any]] = {}

    def take(self, data: dict[str, Any]) -> None:
        self._frame |= {key: value for key, value in data.items() if key != "choices"}
        for choice in data.get("choices") or []:
            index = choice.get("index", 0)
            whole = self._choices.setdefault(
                index,
                {
                    "finish_reason": None,
                    "index": index,
                    "message": {"role": "assistant", "content": ""},
                },
            )
            whole["finish_reason"] = choice.get("finish_reason") or whole["finish_reason"]
            _add_delta(whole["message"], choice.get("delta") or {})
            tokens = (choice.get("logprobs") or {}).get("content")
            if tokens:
                whole.setdefault("logprobs", {"content": []})["content"] += tokens

    def answer(self) -> dict[str, Any]:
        choices = [self._choices[index] for index in sorted(self._choices)]
        return {"choices": choices, **self._frame, "object": "chat.completion"}


def _add_delta(message: dict[str, Any], delta: dict[str, Any]) -> None:
    for key in ("content", "reasoning_content"):
        if delta.get(key):
            message[key] = message.get(key, "") + delta[key]
    for part in delta.get("tool_calls") or []:
        calls = message.setdefault("tool_calls", [])
        while len(calls) <= part.get("index", 0):
            calls.append({"type": "function", "function": {"name": "", "arguments": ""}, "id": ""})
        call = calls[part.get("index", 0)]
        call["id"] += part.get("id") or ""
        for key, text in (part.get("function") or {}).items():
            call["function"][key] = call["function"].get(key, "") + text


class MessageCollector(Collector):
    """Anthropic's messages: blocks from their pieces."""

    def __init__(self) -> None:
        super().__init__()
        self._message: dict[str, Any] = {}
        self._blocks: dict[int, dict[str, Any]] = {}
        self._inputs: dict[int, str] = {}

    def take(self, data: dict[str, Any]) -> None:
        kind, index = data.get("type"), data.get("index", 0)
        if kind == "message_start":
            self._message = data["message"]
        elif kind == "content_block_start":
            self._blocks[index] = data["content_block"]
        elif kind == "content_block_delta":
            self._add(index, data["delta"])
        elif kind == "message_delta":
            self._message |= data["delta"]
            self._message["usage"] = self._message.get("usage", {}) | data.get("usage", {})

    def _add(self, index: int, delta: dict[str, Any]) -> None:
        block = self._blocks[index]
        if delta["type"] == "input_json_delta":
            self._inputs[index] = self._inputs.get(index, "") + delta["partial_json"]
            return
        for key in ("text", "thinking", "signature"):
            if key in delta:
                block[key] = block.get(key, "") + delta[key]

    def answer(self) -> dict[str, Any]:
        for index, text in self._inputs.items():
            try:
                self._blocks[index]["input"] = json.loads(text or "{}")
            except ValueError:  # cut off by the limit of tokens
                self._blocks[index]["input"] = {}
        content = [self._blocks[index] for index in sorted(self._blocks)]
        return self._message | {"content": content}


class ResponseCollector(Collector):
    """OpenAI's responses: the last event holds the whole."""

    def __init__(self) -> None:
        super().__init__()
        self._response: dict[str, Any] = {}

    def take(self, data: dict[str, Any]) -> None:
        if isinstance(data.get("response"), dict):
            self._response = data["response"]

    def answer(self) -> dict[str, Any]:
        return self._response
