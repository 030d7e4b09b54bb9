"""The gateway as an ASGI application: who comes in, where it goes, what is noted.

request -> front (id, host, origin, key) -> call -> relay -> engine
                                        \\-> operations (lists, health, load ...)
"""

from __future__ import annotations

import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from functools import partial

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from hotset.core.errors import ClientProblem, HotsetError
from hotset.gateway.activity import ActivityStore
from hotset.gateway.auth import Gate
from hotset.gateway.calls import Call
from hotset.gateway.counting import Tokenizers
from hotset.gateway.dialects.base import encode
from hotset.gateway.dialects.failure import Failure, failure_of
from hotset.gateway.endpoints import ENDPOINTS, PEEKS, dialect_of
from hotset.gateway.events import EventHub
from hotset.gateway.front import Front, refuse
from hotset.gateway.journal import Journal
from hotset.gateway.metrics import Metrics
from hotset.gateway.operations import Operations
from hotset.gateway.pool import Pool, ServedModel
from hotset.gateway.relay import Relay
from hotset.gateway.requests import CallMaker, ClientGone, read_body
from hotset.gateway.settings import GatewaySettings, validate_gateway_settings

__all__ = ["GatewayApp", "create_app"]

_log = logging.getLogger("hotset.gateway")

_INTERNAL = Failure(status=500, code="internal_error", message="an error in the gateway itself")


class GatewayApp:
    """The application.

    Attributes:
        hub: its events; to be closed before the server stops, because their readers never end.
        operations: what it answers itself.
        cut: ends all running answers, each with an error that says so.
    """

    def __init__(
        self, front: Front, hub: EventHub, operations: Operations, cut: Callable[[], None]
    ) -> None:
        self.hub = hub
        self.operations = operations
        self.cut = cut
        self._front = front

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._front(scope, receive, send)


def create_app(
    pool: Pool, settings: GatewaySettings, tokenizers: Tokenizers | None = None
) -> GatewayApp:
    """The application.

    Args:
        tokenizers: count tokens while a model is not loaded; the application ends them with itself.

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
    relay = Relay(pool, settings, tokenizers)
    calls = CallMaker(pool, takes_any_name=settings.takes_any_name)

    def answering(make: Callable[[Scope, bytes], Call]) -> _Answering:
        return _Answering(make, relay, journal, settings.max_body_bytes)

    @asynccontextmanager
    async def lifespan(_: Starlette) -> AsyncIterator[None]:
        def on_change(model: ServedModel) -> None:
            hub.publish("model", model=operations.row(model))

        unwatch = pool.watch(on_change)
        try:
            yield
        finally:
            unwatch()
            hub.close()
            await operations.finish()
            if tokenizers:
                await tokenizers.close()
            store.close()

    posts = {path: answering(partial(calls.posted, each)) for path, each in ENDPOINTS.items()}
    peek = answering(calls.peeked)
    own = {"/props": operations.props, "/metrics": operations.metrics}
    routes: Sequence[BaseRoute] = [
        # POSTs do not come here; a wrong method does, and is told so.
        *(Route(path, post, methods=["POST"]) for path, post in posts.items()),
        *operations.routes(),
        *(Route(path, _OwnOr(peek, own.get(path)), methods=["GET"]) for path in PEEKS),
        Route("/slots/{slot}", peek, methods=["POST"]),
        Route("/upstream/{rest:path}", answering(calls.passed)),
    ]
    app = Starlette(
        routes=routes,
        lifespan=lifespan,
        exception_handlers={HTTPException: _on_http, HotsetError: _on_hotset, Exception: _on_any},
    )
    front = Front(app, posts, Gate(settings), journal.metrics)
    return GatewayApp(front, hub, operations, relay.cut)


class _Answering:
    """A route whose requests an engine answers. `make` reads the call out of a request."""

    def __init__(
        self,
        make: Callable[[Scope, bytes], Call],
        relay: Relay,
        journal: Journal,
        max_body_bytes: int,
    ) -> None:
        self._make = make
        self._relay = relay
        self._journal = journal
        self._max_body_bytes = max_body_bytes

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            data = await read_body(receive, Headers(scope=scope), self._max_body_bytes)
            call = self._make(scope, data)
        except ClientProblem as problem:
            self._journal.metrics.note_refused(problem.http_status)
            await refuse(scope, send, problem)
        except ClientGone:
            return
        except Exception as error:
            _note(scope, error)
            await refuse(scope, send, _INTERNAL)
        else:
            self._journal.note(await self._relay.run(call, receive, send))


class _OwnOr:
    """An engine's own state with `?model=`; without it, the gateway's where it has one."""

    def __init__(self, peek: _Answering, own: Callable[[], Response] | None) -> None:
        self._peek = peek
        self._own = own

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._own is not None and "model" not in Request(scope).query_params:
            await self._own()(scope, receive, send)
        else:
            await self._peek(scope, receive, send)


def _note(scope: Scope, error: Exception) -> None:
    _log.error("request %s: internal error", scope.get("hotset.request_id"), exc_info=error)


def _error(request: Request, failure: Failure) -> Response:
    request_id = request.scope.get("hotset.request_id", "")
    headers = {}
    if failure.retry_after_s is not None:
        headers["Retry-After"] = str(max(1, round(failure.retry_after_s)))
    return Response(
        encode(dialect_of(request.url.path).error(failure, request_id)),
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
    _note(request.scope, error)
    return _error(request, _INTERNAL)
