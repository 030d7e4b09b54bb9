"""Outermost: an id for the request, the gate, and headers that every answer has."""

from __future__ import annotations

import secrets
from collections.abc import Mapping

from starlette.datastructures import Headers
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotset.core.errors import ClientProblem, HotsetError
from hotset.gateway.auth import Gate
from hotset.gateway.dialects.failure import Failure, failure_of
from hotset.gateway.endpoints import dialect_of
from hotset.gateway.metrics import Metrics
from hotset.gateway.reply import Reply

__all__ = ["Front", "refuse"]


_MAX_ID_CHARACTERS = 128


class Front:
    """Lets requests in, or not.

    Args:
        posts: by path, what answers a POST there; everything else goes to `app`. These are the
            requests that matter: past the router, an event goes through fewer hands.
    """

    def __init__(
        self, app: ASGIApp, posts: Mapping[str, ASGIApp], gate: Gate, metrics: Metrics
    ) -> None:
        self._app = app
        self._posts = posts
        self._gate = gate
        self._metrics = metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        headers = Headers(scope=scope)
        request_id = _request_id(headers.get("x-request-id", ""))
        scope["hotset.request_id"] = request_id
        extra = [
            (b"x-request-id", request_id.encode()),
            (b"request-id", request_id.encode()),  # Anthropic's name for it
            *self._gate.cors_headers(headers.get("origin")),
        ]

        async def send_more(message: Message) -> None:
            if message["type"] == "http.response.start":
                message["headers"] = [*message.get("headers", []), *extra]
            await send(message)

        try:
            self._gate.check_place(headers)
            if scope["method"] == "OPTIONS":
                asked = headers.get("access-control-request-headers", "")
                extra += self._gate.preflight_headers(asked)
                await Response(status_code=204)(scope, receive, send_more)
                return
            self._gate.check_key(scope["path"], headers)
        except ClientProblem as problem:
            self._metrics.note_refused(problem.http_status)
            await refuse(scope, send_more, problem)
            return
        post = self._posts.get(scope["path"]) if scope["method"] == "POST" else None
        await (post or self._app)(scope, receive, send_more)


def _request_id(given: str) -> str:
    """The client's own, if it is one that a log can hold."""
    if 0 < len(given) <= _MAX_ID_CHARACTERS and given.replace("-", "").replace("_", "").isalnum():
        return given if given.isascii() else f"req_{secrets.token_hex(12)}"
    return f"req_{secrets.token_hex(12)}"


async def refuse(scope: Scope, send: Send, problem: HotsetError | Failure) -> None:
    """Answer with an error in the form of the path's dialect."""
    failure = problem if isinstance(problem, Failure) else failure_of(problem)
    reply = Reply(send, dialect_of(scope["path"]), scope["hotset.request_id"], is_stream=False)
    await reply.fail(failure)
