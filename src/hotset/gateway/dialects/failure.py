"""What went wrong with a request, apart from how a dialect writes it down."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

from hotset.core.errors import (
    ClientProblem,
    ConfigProblem,
    EngineProblem,
    FileProblem,
    HotsetError,
    MachineProblem,
)

__all__ = ["BadRequest", "Failure", "failure_from_engine", "failure_of"]


class BadRequest(ClientProblem):
    """A client problem that a place in the request's JSON causes.

    Args:
        message: one line; the path is put before it.
        path: `messages[2].content`; empty for the body as a whole.
        code: stable, for programs.
        http_status: 4xx.
    """

    def __init__(
        self, message: str, path: str = "", *, code: str = "invalid_request", http_status: int = 400
    ) -> None:
        super().__init__(f"{path}: {message}" if path else message, http_status)
        self.path = path
        self.code = code


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """One failed request.

    Attributes:
        status: HTTP.
        code: stable, for programs; docs/gateway.md lists them.
        message: one line for people.
        path: the place in the request's JSON; empty if there is none.
        retry_after_s: when asking again is worth it; None if unknown or never.
        prompt_tokens, context_tokens: of a context overflow.
    """

    status: int
    code: str
    message: str
    path: str = ""
    retry_after_s: float | None = None
    prompt_tokens: int | None = None
    context_tokens: int | None = None


_CLIENT_CODES = {
    401: "invalid_api_key",
    403: "forbidden",
    404: "model_not_found",
    405: "method_not_allowed",
    408: "timeout",
    413: "request_too_large",
    429: "queue_full",
    431: "headers_too_large",
}
_KIND_CODES: dict[type[HotsetError], str] = {
    FileProblem: "model_file_unusable",
    MachineProblem: "no_room",
    ConfigProblem: "configuration_wrong",
    EngineProblem: "engine_failed",
}


def failure_of(error: HotsetError) -> Failure:
    """The failure that one of hotset's own errors means."""
    if isinstance(error, BadRequest):
        return Failure(
            status=error.http_status, code=error.code, message=error.message, path=error.path
        )
    if isinstance(error, ClientProblem):
        return Failure(
            status=error.http_status,
            code=_CLIENT_CODES.get(error.http_status, "invalid_request"),
            message=error.message,
            retry_after_s=error.retry_after_s,
        )
    return Failure(
        status=error.http_status,
        code=_KIND_CODES.get(type(error), "internal_error"),
        message=error.message,
    )


def failure_from_engine(status: int, body: bytes | str) -> Failure:
    """The failure that an engine's error answer, or error event, means.

    llama.cpp writes `{"error": {"code", "message", "type"}}`, with `n_prompt_tokens` and `n_ctx`
    for a context overflow (`format_error_response` in tools/server/server-common.cpp).
    """
    error: dict[str, Any] = {}
    try:
        parsed = json.loads(body)
        given = parsed.get("error", parsed)
        error = given if isinstance(given, dict) else {"message": given}
    except (ValueError, AttributeError):
        text = body if isinstance(body, str) else body.decode(errors="replace")
        error = {"message": text[:300]}
    # The same cleaning that hotset's own messages get: one line, printable.
    message = ClientProblem(str(error.get("message") or "no reason given")[:2000]).message
    kind = error.get("type")
    failure = Failure(status=status, code="invalid_request", message=message)
    if kind == "exceed_context_size_error":
        return replace(
            failure,
            status=400,
            code="context_length_exceeded",
            prompt_tokens=_count(error.get("n_prompt_tokens")),
            context_tokens=_count(error.get("n_ctx")),
        )
    if kind == "not_supported_error":
        return replace(failure, status=400, code="not_supported")
    if status == 401 or kind == "authentication_error":
        # The gateway's own key was refused: nothing that the client could mend.
        return replace(
            failure, status=502, code="engine_failed", message="the engine refused the gateway"
        )
    if status == 404:
        return replace(failure, code="not_found")
    if status >= 500:
        code = "engine_busy" if status == 503 else "engine_failed"
        return replace(
            failure,
            status=503 if status == 503 else 502,
            code=code,
            message=f"the engine failed on the request: {message}",
        )
    return failure


def _count(value: object) -> int | None:
    return value if isinstance(value, int) else None
