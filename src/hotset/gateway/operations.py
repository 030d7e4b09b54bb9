"""What the gateway answers itself: lists, health, loading and unloading, logs, events, figures.

Nothing here but a POST (and llama-swap's `GET /unload`) changes what is loaded.

hotset's own, in JSON; `version` is 1 and rises when a field changes its meaning or goes:

- `GET /api/models`: `{"version", "models": [ROW]}`. ROW: `id`, `aliases`, `capabilities`,
  `context_tokens` (or null), `n_bytes`, `created_s`, `state` (unloaded, queued, loading, ready,
  draining, failed), `why` (one line), `pid` (or null), `since_s` (of the state, seconds since
  1970), `num_busy`, `num_queued`, `slots`, `leaves_in_s` (or null), `memory_bytes` (by device),
  `load_s` (or null), `num_loads`, `num_failures`, `num_evictions`, `num_expert_hits`,
  `num_expert_requests`.
- `POST /api/load`: `{"model": NAME, "wait": true}`. 200 `{"version", "model": ROW}` once it is
  ready; with `wait` false 202 at once.
- `POST /api/unload`: `{"model": NAME or null for all, "force": false}`. 200 `{"version", "models":
  [ROW]}` once they have left; running answers end first, unless forced.
- `GET /api/why?model=NAME`: `{"version", "model": ROW, "lines": [TEXT]}`.
- `GET /api/logs?model=NAME`: the engine's last lines as text; `&follow=1` goes on until the client
  leaves.
- `GET /api/activity?limit=100&model=NAME`: `{"version", "requests": [...]}`, newest first; the
  fields of `hotset.gateway.activity.Activity`, and `id`.
- `GET /api/events`: see `hotset.gateway.events`.
- `GET /api/version`: `{"version", "hotset"}`.
- `GET /api/config`: `{"version", "path", "read_s", "problem"}`: the configuration file, when it was
  read last, and why it was not taken over; empty where there is none.

Errors are `{"error": {"message", "type", "param", "code"}, "request_id"}` everywhere here.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import AsyncIterator, Coroutine
from dataclasses import asdict, dataclass
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.requests import Request
from starlette.responses import JSONResponse, PlainTextResponse, Response, StreamingResponse
from starlette.routing import Route

import hotset
from hotset.core.errors import ClientProblem, HotsetError
from hotset.gateway.catalog import listed_row, router_events, router_props, running_row
from hotset.gateway.dialects.checks import check_kind
from hotset.gateway.dialects.failure import BadRequest
from hotset.gateway.events import VERSION
from hotset.gateway.journal import Journal
from hotset.gateway.metrics import CONTENT_TYPE
from hotset.gateway.pool import Pool, ServedModel, State
from hotset.gateway.requests import ClientGone, read_body, read_json, resolve
from hotset.gateway.settings import GatewaySettings

__all__ = ["ConfigReport", "Operations"]

_log = logging.getLogger("hotset.gateway")

_FOLLOW_EVERY_S = 0.3
_MAX_ROWS = 1000
_SMALL_BODY_BYTES = 64 * 1024


@dataclass(frozen=True, slots=True)
class ConfigReport:
    """What has become of the configuration file.

    Attributes:
        path: empty without one.
        read_s: when it was looked at last, seconds since 1970.
        problem: why it was not taken over; empty if it was.
    """

    path: str = ""
    read_s: float = 0.0
    problem: str = ""


class Operations:
    """The handlers. For one event loop; `finish` ends what they have left running.

    Attributes:
        config: told by `GET /api/config`.
    """

    def __init__(self, pool: Pool, journal: Journal, settings: GatewaySettings) -> None:
        self._pool = pool
        self._journal = journal
        self._settings = settings
        self._tasks: set[asyncio.Task[None]] = set()
        self.config = ConfigReport()

    def routes(self) -> list[Route]:
        get = [
            ("/v1/models", self.models),
            ("/models", self.models),
            ("/models/sse", self.router_events),
            ("/v1/models/{name:path}", self.model),
            ("/health", self.health),
            ("/v1/health", self.health),
            ("/ready", self.ready),
            ("/running", self.running),
            ("/unload", self.unload_all),
            ("/logs", self.all_logs),
            ("/logs/stream/{name:path}", self.follow_logs),
            ("/api/models", self.api_models),
            ("/api/why", self.api_why),
            ("/api/logs", self.api_logs),
            ("/api/activity", self.api_activity),
            ("/api/events", self.api_events),
            ("/api/version", self.api_version),
            ("/api/config", self.api_config),
        ]
        post = [
            ("/models/load", self.router_load),
            ("/models/unload", self.router_unload),
            ("/api/load", self.api_load),
            ("/api/unload", self.api_unload),
            ("/api/models/load/{name:path}", self.swap_load),
            ("/api/models/unload/{name:path}", self.swap_unload),
            ("/api/models/unload", self.swap_unload_all),
        ]
        return [Route(path, handler, methods=["GET"]) for path, handler in get] + [
            Route(path, handler, methods=["POST"]) for path, handler in post
        ]

    async def finish(self) -> None:
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)

    def row(self, model: ServedModel) -> dict[str, Any]:
        """ROW of the table above."""
        row = {
            "id": model.id,
            "aliases": list(model.aliases),
            "capabilities": sorted(model.capabilities),
            "context_tokens": model.context_tokens,
            "n_bytes": model.n_bytes,
            "created_s": model.created_s,
            "state": model.state.value,
            "why": model.why,
        }
        residence = asdict(self._pool.residence(model.id))
        return row | residence | {"memory_bytes": dict(residence["memory_bytes"])}

    def _rows(self) -> list[dict[str, Any]]:
        return [self.row(model) for model in self._pool.models()]

    # Lists and health.

    async def models(self, _: Request) -> Response:
        rows = [listed_row(model) for model in self._pool.models()]
        return JSONResponse(
            {
                "object": "list",
                "data": rows,
                "has_more": False,
                "first_id": rows[0]["id"] if rows else None,
                "last_id": rows[-1]["id"] if rows else None,
            }
        )

    async def model(self, request: Request) -> Response:
        return JSONResponse(listed_row(self._pool.resolve(request.path_params["name"])))

    async def health(self, _: Request) -> Response:
        return JSONResponse({"status": "ok"})

    async def ready(self, _: Request) -> Response:
        """Whether there is a model to ask: one that has not failed; not while the gateway ends."""
        if self._pool.is_closing:
            return JSONResponse({"status": "the gateway is being ended"}, 503)
        able = [m for m in self._pool.models() if m.state is not State.FAILED]
        status = "ready" if able else "no model can be served"
        return JSONResponse({"status": status}, 200 if able else 503)

    async def running(self, _: Request) -> Response:
        rows = []
        for model in self._pool.models():
            if row := running_row(model, self._pool.residence(model.id)):
                rows.append(row)
        return JSONResponse({"running": rows})

    def props(self) -> Response:
        return JSONResponse(router_props(f"hotset {hotset.__version__}"))

    def metrics(self) -> Response:
        return Response(self._journal.metrics.text(), headers={"Content-Type": CONTENT_TYPE})

    # hotset's own.

    async def api_models(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION, "models": self._rows()})

    async def api_version(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION, "hotset": hotset.__version__})

    async def api_config(self, _: Request) -> Response:
        return JSONResponse({"version": VERSION, **asdict(self.config)})

    async def api_why(self, request: Request) -> Response:
        model = self._asked(request)
        lines = list(self._pool.why(model.id))
        return JSONResponse({"version": VERSION, "model": self.row(model), "lines": lines})

    async def api_load(self, request: Request) -> Response:
        body = await self._body(request)
        model = resolve(self._pool, body.get("model"))
        if _flag(body, "wait", default=True):
            await self._pool.load(model.id)
            return JSONResponse({"version": VERSION, "model": self._row_of(model)})
        self._in_background(self._pool.load(model.id), f"load {model.id}")
        return JSONResponse({"version": VERSION, "model": self._row_of(model)}, 202)

    async def api_unload(self, request: Request) -> Response:
        body = await self._body(request)
        name = body.get("model")
        models = self._pool.models() if name is None else [resolve(self._pool, name)]
        await self._unload(models, force=_flag(body, "force", default=False))
        rows = [self._row_of(model) for model in models]
        return JSONResponse({"version": VERSION, "models": rows})

    async def api_activity(self, request: Request) -> Response:
        text = request.query_params.get("limit", "100")
        if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= _MAX_ROWS:
            raise BadRequest(f"is '{text}'; it must be 1 to {_MAX_ROWS}", "limit")
        name = request.query_params.get("model")
        model = self._pool.resolve(name).id if name else None
        rows = await run_in_threadpool(self._journal.store.recent, limit=int(text), model=model)
        return JSONResponse({"version": VERSION, "requests": rows})

    async def api_events(self, _: Request) -> Response:
        def first() -> dict[str, Any]:
            return {"type": "models", "models": self._rows()}

        return _streaming(self._journal.hub.stream(first, self._settings.keep_alive_s))

    async def api_logs(self, request: Request) -> Response:
        model = self._asked(request)
        if request.query_params.get("follow", "") in ("1", "true"):
            return self._followed(model)
        lines = "".join(f"{line}\n" for _, line in self._pool.log_lines(model.id))
        return PlainTextResponse(lines)

    # llama-swap's.

    async def unload_all(self, _: Request) -> Response:
        await self._unload(self._pool.models(), force=False)
        return PlainTextResponse("OK")

    async def swap_unload_all(self, _: Request) -> Response:
        await self._unload(self._pool.models(), force=False)
        return JSONResponse({"msg": "ok"})

    async def swap_unload(self, request: Request) -> Response:
        await self._unload([self._pool.resolve(request.path_params["name"])], force=False)
        return PlainTextResponse("OK")

    async def swap_load(self, request: Request) -> Response:
        await self._pool.load(self._pool.resolve(request.path_params["name"]).id)
        return PlainTextResponse("OK")

    async def all_logs(self, _: Request) -> Response:
        lines = [
            f"{model.id}: {line}\n"
            for model in self._pool.models()
            for _, line in self._pool.log_lines(model.id)
        ]
        return PlainTextResponse("".join(lines))

    async def follow_logs(self, request: Request) -> Response:
        return self._followed(self._pool.resolve(request.path_params["name"]))

    # llama-server's router.

    async def router_load(self, request: Request) -> Response:
        model = resolve(self._pool, (await self._body(request)).get("model"))
        self._in_background(self._pool.load(model.id), f"load {model.id}")
        return JSONResponse({"success": True})

    async def router_unload(self, request: Request) -> Response:
        model = resolve(self._pool, (await self._body(request)).get("model"))
        if model.state in (State.UNLOADED, State.FAILED):
            raise BadRequest(f"'{model.id}' is not loaded", "model", code="model_not_loaded")
        self._in_background(self._pool.unload(model.id), f"unload {model.id}")
        return JSONResponse({"success": True})

    async def router_events(self, _: Request) -> Response:
        def none() -> dict[str, Any]:
            return {"type": "models"}

        return _streaming(
            self._journal.hub.stream(none, self._settings.keep_alive_s, router_events)
        )

    # Shared.

    def _asked(self, request: Request) -> ServedModel:
        return resolve(self._pool, request.query_params.get("model"))

    def _row_of(self, model: ServedModel) -> dict[str, Any]:
        """The row as it is now, not as it was when the request came."""
        return self.row(self._pool.resolve(model.id))

    async def _body(self, request: Request) -> dict[str, Any]:
        try:
            data = await read_body(request.receive, request.headers, _SMALL_BODY_BYTES)
        except ClientGone:
            raise ClientProblem("the client left", 408) from None
        return read_json(data) if data.strip() else {}

    async def _unload(self, models: list[ServedModel], *, force: bool) -> None:
        loaded = [m for m in models if m.state not in (State.UNLOADED, State.FAILED)]
        await asyncio.gather(*(self._pool.unload(model.id, force=force) for model in loaded))

    def _in_background(self, work: Coroutine[Any, Any, None], what: str) -> None:
        async def run() -> None:
            try:
                await work
            except HotsetError as error:
                _log.warning("%s failed: %s", what, error.message)

        task = asyncio.create_task(run())
        self._tasks.add(task)
        task.add_done_callback(self._tasks.discard)

    def _followed(self, model: ServedModel) -> Response:
        return StreamingResponse(self._follow(model.id), media_type="text/plain; charset=utf-8")

    async def _follow(self, model_id: str) -> AsyncIterator[str]:
        number = -1
        while not self._journal.hub.is_closed:
            fresh = [(n, line) for n, line in self._pool.log_lines(model_id) if n > number]
            if fresh:
                number = fresh[-1][0]
                yield "".join(f"{line}\n" for _, line in fresh)
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._journal.hub.closed(), _FOLLOW_EVERY_S)


def _streaming(events: AsyncIterator[bytes]) -> Response:
    return StreamingResponse(
        events, media_type="text/event-stream", headers={"Cache-Control": "no-cache"}
    )


def _flag(body: dict[str, Any], key: str, *, default: bool) -> bool:
    value = body.get(key, default)
    check_kind(value, "true or false", key)
    return bool(value)
