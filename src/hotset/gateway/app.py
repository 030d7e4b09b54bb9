"""The gateway as an ASGI application: who comes in, where it goes, what is noted.

request -> front (id, host, origin, key) -> route -> model request -> relay -> engine
                                                  \\-> operations (lists, health, load ...)
"""

from __future__ import annotations

import logging
import secrets
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from hotset.core.errors import ClientProblem, HotsetError
from hotset.gateway.activity import ActivityStore
from hotset.gateway.auth import Gate
from hotset.gateway.dialects.base import Dialect, encode
from hotset.gateway.dialects.failure import BadRequest, Failure, failure_of
from hotset.gateway.endpoints import ENDPOINTS, PEEKS, Endpoint, dialect_of
from hotset.gateway.events import EventHub
from hotset.gateway.journal import Journal
from hotset.gateway.metrics import Metrics
from hotset.gateway.operations import Operations
from hotset.gateway.pool import Pool, ServedModel, State
from hotset.gateway.relay import Call, Relay, make_session
from hotset.gateway.reply import Reply
from hotset.gateway.requests import (
    ClientGone,
    make_call,
    make_raw_call,
    query_of,
    read_body,
    resolve,
    split_upstream,
)
from hotset.gateway.settings import GatewaySettings, validate_gateway_settings

__all__ = ["create_app"]

_log = logging.getLogger("hotset.gateway")

_MAX_ID_CHARACTERS = 128


def create_app(pool: Pool, settings: GatewaySettings) -> Starlette:
    """The application. `app.state.hub` is its event hub, to be closed before the server stops;
    `app.state.cut()` ends all running answers.

    Raises:
        ConfigProblem: the settings are not safe, or out of range.
        FileProblem: the activity's file cannot be used.
    """
    validate_gateway_settings(settings)
    hub = EventHub()
    store = ActivityStore(
        settings.activity_path, days=settings.activity_days, rows=settings.activity_rows
    )
    journal = Journal(store, Metrics(pool), hub)
    operations = Operations(pool, journal, settings)
    requests = _ModelRequests(pool, journal, settings)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        def on_change(model: ServedModel) -> None:
            hub.publish("model", model=operations.row(model))

        unwatch = pool.watch(on_change)
        try:
            async with make_session() as session:
                requests.relay = Relay(pool, session, settings)
                yield
        finally:
            unwatch()
            hub.close()
            await operations.finish()
            store.close()

    own = {"/props": operations.props, "/metrics": operations.metrics}
    routes: Sequence[BaseRoute] = [
        *(Route(path, _Endpoint(requests, e), methods=["POST"]) for path, e in ENDPOINTS.items()),
        *operations.routes(),
        *(Route(path, _Peek(requests, own.get(path)), methods=["GET"]) for path in PEEKS),
        Route("/slots/{slot}", _Peek(requests, None), methods=["POST"]),
        Route("/upstream/{rest:path}", _Upstream(requests)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _on_http, HotsetError: _on_hotset, Exception: _on_any},
    )
    app.state.hub = hub
    app.state.cut = requests.cut
    app.add_middleware(_Front, gate=Gate(settings), metrics=journal.metrics)
    return app


class _Front:
    """Outermost: an id for the request, the gate, and headers that every answer has."""

    def __init__(self, app: ASGIApp, gate: Gate, metrics: Metrics) -> None:
        self._app = app
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
            await _refuse(scope, send_more, problem)
            return
        await self._app(scope, receive, send_more)


def _request_id(given: str) -> str:
    """The client's own, if it is one that a log can hold."""
    if 0 < len(given) <= _MAX_ID_CHARACTERS and given.replace("-", "").replace("_", "").isalnum():
        return given if given.isascii() else f"req_{secrets.token_hex(12)}"
    return f"req_{secrets.token_hex(12)}"


async def _refuse(scope: Scope, send: Send, problem: HotsetError) -> None:
    reply = Reply(send, dialect_of(scope["path"]), scope["hotset.request_id"], is_stream=False)
    await reply.fail(failure_of(problem))


class _ModelRequests:
    """Requests that an engine answers. `relay` is there while the application runs."""

    relay: Relay

    def __init__(self, pool: Pool, journal: Journal, settings: GatewaySettings) -> None:
        self.pool = pool
        self._journal = journal
        self._settings = settings

    def cut(self) -> None:
        self.relay.cut()

    async def body(self, scope: Scope, receive: Receive) -> bytes:
        return await read_body(receive, Headers(scope=scope), self._settings.max_body_bytes)

    async def pass_on(self, call: Call, receive: Receive, send: Send) -> None:
        self._journal.note(await self.relay.run(call, receive, send))

    async def refuse(self, scope: Scope, send: Send, problem: HotsetError) -> None:
        self._journal.metrics.note_refused(problem.http_status)
        await _refuse(scope, send, problem)


class _Endpoint:
    """A POST whose body names the model."""

    def __init__(self, requests: _ModelRequests, endpoint: Endpoint) -> None:
        self._requests = requests
        self._endpoint = endpoint

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self._requests
        try:
            data = await requests.body(scope, receive)
            call = make_call(
                requests.pool,
                self._endpoint,
                data,
                Headers(scope=scope),
                scope["hotset.request_id"],
                _client(scope),
            )
        except ClientProblem as problem:
            await requests.refuse(scope, send, problem)
        except ClientGone:
            return
        else:
            await requests.pass_on(call, receive, send)


class _Peek:
    """An engine's own state, with `?model=`; without it, the gateway's where it has one."""

    def __init__(self, requests: _ModelRequests, own: Callable[[], Response] | None) -> None:
        self._requests = requests
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self._requests
        name = query_of(scope).get("model")
        if name is None and self._own is not None:
            await self._own()(scope, receive, send)
            return
        try:
            model = resolve(requests.pool, name)
            if model.state is not State.READY:
                raise BadRequest(
                    f"'{model.id}' is not loaded, and looking at it does not load it; ask it"
                    " something, or post to /api/load",
                    "model",
                    code="model_not_loaded",
                    http_status=409,
                )
            query = scope["query_string"].decode("latin-1")
            target = f"{scope['path']}?{query}"
            data = await requests.body(scope, receive)
            call = make_raw_call(
                model, target, scope, data, scope["hotset.request_id"], _client(scope)
            )
        except ClientProblem as problem:
            await requests.refuse(scope, send, problem)
        except ClientGone:
            return
        else:
            await requests.pass_on(call, receive, send)


class _Upstream:
    """`/upstream/MODEL/PATH`: any path of a model's engine, as it is."""

    def __init__(self, requests: _ModelRequests) -> None:
        self._requests = requests

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        requests = self._requests
        raw = scope.get("raw_path", scope["path"].encode()).decode("latin-1")
        try:
            model, target = split_upstream(requests.pool, raw.partition("/upstream/")[2])
            if query := scope["query_string"].decode("latin-1"):
                target = f"{target}?{query}"
            data = await requests.body(scope, receive)
            call = make_raw_call(
                model, target, scope, data, scope["hotset.request_id"], _client(scope)
            )
        except ClientProblem as problem:
            await requests.refuse(scope, send, problem)
        except ClientGone:
            return
        else:
            await requests.pass_on(call, receive, send)


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""


def _error(request: Request, failure: Failure) -> Response:
    dialect: Dialect = dialect_of(request.url.path)
    request_id = request.scope.get("hotset.request_id", "")
    headers = {}
    if failure.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(failure.retry_after_s)))
    return Response(
        encode(dialect.error(failure, request_id)),
        failure.status,
        headers,
        media_type="application/json",
    )


async def _on_http(request: Request, error: Exception) -> Response:
    if not isinstance(error, HTTPException):
        raise error
    path = request.url.path
    if error.status_code == 405:
        message = f"{path} does not take {request.method}"
        return _error(request, Failure(status=405, code="method_not_allowed", message=message))
    message = f"there is nothing at {path}; docs/gateway.md lists what there is"
    return _error(request, Failure(status=error.status_code, code="not_found", message=message))


async def _on_hotset(request: Request, error: Exception) -> Response:
    if not isinstance(error, HotsetError):
        raise error
    return _error(request, failure_of(error))


async def _on_any(request: Request, error: Exception) -> Response:
    _log.error("request %s: internal error", request.scope.get("hotset.request_id"), exc_info=error)
    return _error(
        request,
        Failure(status=500, code="internal_error", message="an error in the gateway itself"),
    )
