"""From a client's HTTP request to a call: the body, the model's name, the dialect's checks."""

from __future__ import annotations

import json
import re
from typing import Any
from urllib.parse import unquote

from starlette.datastructures import Headers, QueryParams
from starlette.types import Receive, Scope

from hotset.core.errors import ClientProblem
from hotset.gateway.calls import Call
from hotset.gateway.dialects.base import encode
from hotset.gateway.dialects.failure import BadRequest
from hotset.gateway.endpoints import RAW, Endpoint
from hotset.gateway.pool import Capability, Pool, Reach, ServedModel, State

__all__ = ["CallMaker", "ClientGone", "read_body", "read_json", "resolve"]

_FORM_MODEL = re.compile(rb'name="model"\r\n(?:[^\r\n]+\r\n)*\r\n([^\r\n]{1,300})\r\n')
# Of the client's headers an engine gets these; neither keys nor cookies, and not
# `X-Conversation-Id`, with which llama.cpp goes on computing after the client has left.
_PASSED = ("content-type", "accept", "user-agent")
# Anything like an image: a question about one is answered by a model that sees.
_IMAGE = re.compile(rb'"(?:image|image_url|input_image)"')
_WHAT = {
    Capability.CHAT: "chat",
    Capability.EMBEDDING: "make embeddings",
    Capability.RERANK: "rerank",
    Capability.VISION: "see images",
}


class ClientGone(Exception):
    """The client left before its request was complete; nobody is there to be told."""


async def read_body(receive: Receive, headers: Headers, max_bytes: int) -> bytes:
    """The whole body.

    Raises:
        ClientProblem: 413.
        ClientGone: the connection ended first.
    """
    stated = headers.get("content-length", "")
    num_bytes = int(stated) if stated.isascii() and stated.isdigit() else 0
    parts: list[bytes] = []
    while num_bytes <= max_bytes:
        message = await receive()
        if message["type"] == "http.disconnect":
            raise ClientGone
        parts.append(message.get("body", b""))
        num_bytes = sum(map(len, parts)) if len(parts) > 1 else len(parts[0])
        if not message.get("more_body", False):
            break
    if num_bytes > max_bytes:
        raise ClientProblem(
            f"the request's body has {num_bytes} bytes or more; at most {max_bytes} are taken", 413
        )
    return parts[0] if len(parts) == 1 else b"".join(parts)


def read_json(data: bytes) -> dict[str, Any]:
    """The body as an object, whatever content type it was sent with.

    Raises:
        BadRequest: not JSON, or not an object.
    """
    try:
        body = json.loads(data, parse_constant=_no_constant)
    except RecursionError:
        raise BadRequest("the body is nested too deeply", code="invalid_json") from None
    except ValueError as error:
        raise BadRequest(f"the body is not JSON: {error}", code="invalid_json") from None
    if not isinstance(body, dict):
        raise BadRequest("the body must be a JSON object", code="invalid_json")
    return body


def _no_constant(name: str) -> None:
    raise ValueError(f"{name} is not a JSON value")


def resolve(pool: Pool, name: object, *, takes_any_name: bool = False) -> ServedModel:
    """The model that a request means; without a name, the only one or the pool's default.

    Args:
        takes_any_name: any other name means the only model, too.

    Raises:
        BadRequest: no name, and several models; or it is not a text.
        ClientProblem: 404.
    """
    if name is not None and not isinstance(name, str):
        raise BadRequest("must be a text", "model")
    if name and not takes_any_name:
        return pool.resolve(name)
    models = pool.models()
    if len(models) == 1:
        return models[0]
    try:
        return pool.resolve(name or "")
    except ClientProblem:
        if name:
            raise
        known = ", ".join(model.id for model in models) or "none"
        raise BadRequest(
            f"is missing; name one of: {known}", "model", code="model_missing"
        ) from None


class CallMaker:
    """Turns requests into calls, each route by one of its methods.

    All of them raise ClientProblem for what cannot be served as sent.
    """

    def __init__(self, pool: Pool, *, takes_any_name: bool) -> None:
        self._pool = pool
        self._takes_any_name = takes_any_name

    def _resolve(self, name: object) -> ServedModel:
        return resolve(self._pool, name, takes_any_name=self._takes_any_name)

    def posted(self, endpoint: Endpoint, scope: Scope, data: bytes) -> Call:
        """A POST whose body names the model."""
        headers = Headers(scope=scope)
        if endpoint.is_multipart:
            found = _FORM_MODEL.search(data)
            name = found[1].decode(errors="replace") if found else None
            model = self._resolve(name)
            return Call(
                request_id=scope["hotset.request_id"],
                endpoint=endpoint,
                model=model,
                asked=name or model.id,
                body=data,
                headers=_passed(headers),
                client=_client(scope),
            )
        body = read_json(data)
        model = self._resolve(body.get("model"))
        self._check_capability(endpoint, model)
        dialect = endpoint.dialect
        wants_usage = dialect.wants_usage(body)
        can_see = Capability.VISION in model.capabilities
        is_changed = dialect.prepare(body, has_vision=can_see)
        is_stream = body.get("stream") is True
        collector = None
        if not is_stream and not endpoint.is_counting:
            collector = dialect.collector(body)
        if collector is not None:
            body |= {"stream": True, "stream_options": {"include_usage": True}}
        if is_changed or collector is not None:
            data = encode(body)
        other = dialect.rearranged(body)
        return Call(
            request_id=scope["hotset.request_id"],
            endpoint=endpoint,
            model=model,
            asked=body.get("model") or model.id,
            body=data,
            other_body=None if other is None else encode(other),
            headers=(("Content-Type", "application/json"),),
            is_stream=is_stream,
            collector=collector,
            wants_usage=wants_usage or collector is not None,
            has_tools=bool(body.get("tools")) and body.get("tool_choice") != "none",
            has_images=can_see and _IMAGE.search(data) is not None,
            client=_client(scope),
        )

    def _check_capability(self, endpoint: Endpoint, model: ServedModel) -> None:
        needed = endpoint.needs
        if needed is None or needed in model.capabilities:
            return
        able = [m.id for m in self._pool.models() if needed in m.capabilities]
        others = f"; these can: {', '.join(able)}" if able else "; no served model can"
        raise BadRequest(
            f"'{model.id}' cannot {_WHAT[needed]}{others}", "model", code="not_supported"
        )

    def peeked(self, scope: Scope, data: bytes) -> Call:
        """A look at an engine's own state, with `?model=`; it loads nothing."""
        query = scope["query_string"].decode("latin-1")
        model = self._resolve(QueryParams(query).get("model"))
        if model.state is not State.READY:
            raise BadRequest(
                f"'{model.id}' is not loaded, and looking at it does not load it; ask it"
                " something, or post to /api/load",
                "model",
                code="model_not_loaded",
                http_status=409,
            )
        path = _raw_path(scope)
        return self._raw(model, f"{path}?{query}" if query else path, scope, data)

    def passed(self, scope: Scope, data: bytes) -> Call:
        """`/upstream/MODEL/PATH`: any path of a model's engine, as it is."""
        model, target = self._split_upstream(_raw_path(scope).partition("/upstream/")[2])
        if query := scope["query_string"].decode("latin-1"):
            target = f"{target}?{query}"
        return self._raw(model, target, scope, data)

    def _split_upstream(self, path: str) -> tuple[ServedModel, str]:
        """Model and remaining path; names may have slashes, and the longest one counts."""
        names = {name: m for m in self._pool.models() for name in (*m.aliases, m.id)}
        segments = path.split("/")
        for length in range(len(segments), 0, -1):
            name = unquote("/".join(segments[:length]))
            if name in names:
                return names[name], "/" + "/".join(segments[length:])
        return self._resolve(unquote(segments[0])), "/" + "/".join(segments[1:])

    def _raw(self, model: ServedModel, target: str, scope: Scope, data: bytes) -> Call:
        """A call that is passed on as it is. Reading never loads a model, anything else may."""
        is_reading = scope["method"] in ("GET", "HEAD")
        return Call(
            request_id=scope["hotset.request_id"],
            endpoint=Endpoint(
                name="upstream",
                target=target,
                dialect=RAW,
                reach=Reach.READY if is_reading else Reach.ANY,
                is_light=is_reading,
            ),
            model=model,
            asked=model.id,
            body=data,
            headers=_passed(Headers(scope=scope)),
            method=scope["method"],
            client=_client(scope),
        )


def _passed(headers: Headers) -> tuple[tuple[str, str], ...]:
    return tuple((name, headers[name]) for name in _PASSED if name in headers)


def _raw_path(scope: Scope) -> str:
    """As the client wrote it: decoded, it could hold anything, line breaks too."""
    raw: bytes = scope.get("raw_path") or scope["path"].encode()
    return raw.partition(b"?")[0].decode("latin-1")


def _client(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]) if client else ""
