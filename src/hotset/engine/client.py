"""Asking a running engine for a chat answer, as a stream."""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import httpx

from hotset.core.errors import ClientProblem, EngineProblem
from hotset.engine.running import Running

__all__ = ["ChatStream", "Piece", "PromptProgress", "Timings"]

# A prompt of many thousand tokens is silent for minutes; a dead engine closes the connection.
_CONNECT_TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True)
class Piece:
    """A part of the answer: text to show, or of the model's reasoning before it."""

    text: str
    is_reasoning: bool


@dataclass(frozen=True, slots=True)
class Timings:
    """The engine's own figures for one answer; speeds in tokens per second."""

    prompt_tokens: int
    cached_tokens: int
    prompt_per_s: float
    answer_tokens: int
    answer_per_s: float


@dataclass(frozen=True, slots=True)
class PromptProgress:
    """How far the engine is with a prompt, in tokens.

    Attributes:
        num_cached: that it did not need to read again.
        num_done: these included.
    """

    num_tokens: int
    num_cached: int
    num_done: int


class ChatStream:
    """One answer. Iterate over it, then read `finish_reason` and `timings`.

    `prompt` and `timings` are also there while it comes, for who asks for it: where they stand
    after the last event, or None before the first.

    Closing it early (leaving the `with` block) closes the connection, which makes the engine stop.

    Args:
        running: the engine.
        messages: the conversation in OpenAI's form.
        options: further fields of the request, such as `max_tokens`.
        is_watched: ask the engine for `prompt` and `timings` on the way; one that does not know
            how gives the last timings only.

    Raises (while iterating):
        ClientProblem: the engine refuses the request, for instance a context overflow.
        EngineProblem: the engine died or broke off.
    """

    def __init__(
        self,
        running: Running,
        messages: Sequence[Mapping[str, Any]],
        options: Mapping[str, Any],
        *,
        is_watched: bool = False,
    ) -> None:
        self.finish_reason = ""
        self.timings: Timings | None = None
        self.prompt: PromptProgress | None = None
        self._running = running
        self._num_lines_before = running.num_lines
        self._body = {
            **options,
            "messages": list(messages),
            "stream": True,
            "stream_options": {"include_usage": True},
            # llama.cpp: tools/server/server-schema.cpp
            "return_progress": is_watched,
            "timings_per_token": is_watched,
        }
        self._client = httpx.Client(
            timeout=httpx.Timeout(None, connect=_CONNECT_TIMEOUT_S), trust_env=False
        )

    def __enter__(self) -> ChatStream:
        return self

    def __exit__(self, *_: object) -> None:
        self._client.close()

    def __iter__(self) -> Iterator[Piece]:
        try:
            with self._client.stream(
                "POST",
                f"{self._running.url}/v1/chat/completions",
                json=self._body,
                headers=self._running.headers(),
            ) as response:
                if response.status_code != httpx.codes.OK:
                    raise self._refused(response.status_code, response.read())
                yield from self._pieces(response.iter_lines())
        except httpx.TransportError as error:
            raise self._running.died() from error
        if not self.finish_reason:
            raise self._running.died()

    def _pieces(self, lines: Iterator[str]) -> Iterator[Piece]:
        for line in lines:
            name, _, data = line.partition(":")
            if name != "data" or data.strip() == "[DONE]":
                continue
            try:
                event = json.loads(data)
            except ValueError as error:
                raise EngineProblem(
                    f"{self._running.settings.alias}: the engine's stream is not the protocol:"
                    f" {data[:80]}"
                ) from error
            if "error" in event:
                raise self._refused(int(event["error"].get("code", 500)), data.encode())
            if "timings" in event:
                self.timings = _timings(event["timings"])
            if "prompt_progress" in event:
                self.prompt = _progress(event["prompt_progress"])
            for choice in event.get("choices", []):
                delta = choice.get("delta", {})
                if delta.get("reasoning_content"):
                    yield Piece(delta["reasoning_content"], is_reasoning=True)
                if delta.get("content"):
                    yield Piece(delta["content"], is_reasoning=False)
                self.finish_reason = choice.get("finish_reason") or self.finish_reason

    def _refused(self, status: int, body: bytes) -> ClientProblem | EngineProblem:
        """The engine's error as ours. It does not know why the expert store failed; we do."""
        problem = _refused(status, body)
        fault = self._running.store_fault(self._num_lines_before) if status >= 500 else ""
        return EngineProblem(f"the engine failed on the request: {fault}") if fault else problem


def _timings(given: Mapping[str, Any]) -> Timings:
    return Timings(
        prompt_tokens=int(given.get("prompt_n", 0)),
        cached_tokens=int(given.get("cache_n", 0)),
        prompt_per_s=float(given.get("prompt_per_second") or 0.0),
        answer_tokens=int(given.get("predicted_n", 0)),
        answer_per_s=float(given.get("predicted_per_second") or 0.0),
    )


def _progress(given: Mapping[str, Any]) -> PromptProgress:
    return PromptProgress(
        num_tokens=int(given.get("total", 0)),
        num_cached=int(given.get("cache", 0)),
        num_done=int(given.get("processed", 0)),
    )


def _refused(status: int, body: bytes) -> ClientProblem | EngineProblem:
    """The engine's error as ours; a context overflow with both numbers and the remedy."""
    try:
        error = json.loads(body)["error"]
        message = str(error.get("message", error))
    except (ValueError, KeyError, TypeError, AttributeError):
        error, message = {}, body.decode(errors="replace")[:300]
    if isinstance(error, dict) and error.get("type") == "exceed_context_size_error":
        return ClientProblem(
            f"the conversation has {error.get('n_prompt_tokens')} tokens, the context"
            f" {error.get('n_ctx')}; give a larger --ctx, or shorten it"
        )
    if 400 <= status <= 499:
        return ClientProblem(f"the engine refused the request: {message}", status)
    return EngineProblem(f"the engine failed on the request: {message}")
