"""The paths that are passed on to an engine: whose dialect, where to, and what they need."""

from __future__ import annotations

from dataclasses import dataclass

from hotset.gateway.dialects.anthropic import AnthropicDialect
from hotset.gateway.dialects.base import Dialect
from hotset.gateway.dialects.chat import ChatDialect
from hotset.gateway.dialects.openai import LlamaDialect, OpenAIDialect, RawDialect
from hotset.gateway.dialects.responses import ResponsesDialect
from hotset.gateway.pool import Capability, Reach

__all__ = ["ENDPOINTS", "PEEKS", "RAW", "Endpoint", "dialect_of"]

OPENAI = OpenAIDialect()
CHAT = ChatDialect()
RESPONSES = ResponsesDialect()
ANTHROPIC = AnthropicDialect()
LLAMA = LlamaDialect()
RAW = RawDialect()


@dataclass(frozen=True, slots=True, kw_only=True)
class Endpoint:
    """One kind of request.

    Attributes:
        name: for logs and metrics.
        target: the engine's path.
        needs: what the model must be able to do; None if any model can.
        reach: how far the gateway goes to get the model.
        is_light: takes no slot of the model.
        is_weightless: the model's tokenizer and template are enough to answer it.
        is_counting: the answer is a number, never a stream.
        is_multipart: the body is a form with files, passed on as it is.
    """

    name: str
    target: str
    dialect: Dialect
    needs: Capability | None = None
    reach: Reach = Reach.ANY
    is_light: bool = False
    is_weightless: bool = False
    is_counting: bool = False
    is_multipart: bool = False


def _chat(name: str, target: str, dialect: Dialect) -> Endpoint:
    return Endpoint(name=name, target=target, dialect=dialect, needs=Capability.CHAT)


def _counting(name: str, target: str, dialect: Dialect) -> Endpoint:
    # Counting must not push a working model out; where memory is free the model may be loaded.
    return Endpoint(
        name=name,
        target=target,
        dialect=dialect,
        needs=Capability.CHAT,
        reach=Reach.FREE,
        is_light=True,
        is_weightless=True,
        is_counting=True,
    )


def _words(name: str) -> Endpoint:
    return Endpoint(
        name=name,
        target=f"/{name}",
        dialect=LLAMA,
        reach=Reach.FREE,
        is_light=True,
        is_weightless=True,
    )


_EMBEDDINGS = Endpoint(
    name="embeddings", target="/v1/embeddings", dialect=OPENAI, needs=Capability.EMBEDDING
)
_LLAMA_EMBEDDINGS = Endpoint(
    name="embedding", target="/embeddings", dialect=LLAMA, needs=Capability.EMBEDDING
)
_RERANK = Endpoint(name="rerank", target="/v1/rerank", dialect=OPENAI, needs=Capability.RERANK)
_TRANSCRIPTIONS = Endpoint(
    name="transcriptions",
    target="/v1/audio/transcriptions",
    dialect=OPENAI,
    is_multipart=True,
)
_COMPLETIONS = _chat("chat", "/v1/chat/completions", CHAT)
_RESPONSES = _chat("responses", "/v1/responses", RESPONSES)
_LLAMA_COMPLETION = _chat("completion", "/completion", LLAMA)

ENDPOINTS: dict[str, Endpoint] = {
    "/v1/chat/completions": _COMPLETIONS,
    "/chat/completions": _COMPLETIONS,
    "/v1/completions": _chat("completions", "/v1/completions", OPENAI),
    "/v1/responses": _RESPONSES,
    "/responses": _RESPONSES,
    "/v1/messages": _chat("messages", "/v1/messages", ANTHROPIC),
    "/v1/messages/count_tokens": _counting("count_tokens", "/v1/messages/count_tokens", ANTHROPIC),
    "/v1/chat/completions/input_tokens": _counting(
        "input_tokens", "/v1/chat/completions/input_tokens", CHAT
    ),
    "/v1/responses/input_tokens": _counting(
        "input_tokens", "/v1/responses/input_tokens", RESPONSES
    ),
    "/v1/embeddings": _EMBEDDINGS,
    "/embeddings": _LLAMA_EMBEDDINGS,
    "/embedding": _LLAMA_EMBEDDINGS,
    "/v1/rerank": _RERANK,
    "/v1/reranking": _RERANK,
    "/rerank": _RERANK,
    "/reranking": _RERANK,
    "/v1/audio/transcriptions": _TRANSCRIPTIONS,
    "/audio/transcriptions": _TRANSCRIPTIONS,
    "/completion": _LLAMA_COMPLETION,
    "/completions": _LLAMA_COMPLETION,
    "/infill": _chat("infill", "/infill", LLAMA),
    "/tokenize": _words("tokenize"),
    "/detokenize": _words("detokenize"),
    "/apply-template": _words("apply-template"),
}
"""Path of a POST, the model's name in its body, to what it means."""

PEEKS = ("/props", "/slots", "/lora-adapters", "/metrics")
"""Paths of a GET with `?model=` that show an engine's own state; they never load a model."""


def dialect_of(path: str) -> Dialect:
    """Whose form an error on a path takes."""
    if endpoint := ENDPOINTS.get(path):
        return endpoint.dialect
    return ANTHROPIC if path.startswith("/v1/messages") else OPENAI
