"""A gateway for tests: real server, a scriptable engine behind it, a pool that does as told."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any

import httpx
import uvloop

from hotset.core.errors import ClientProblem, HotsetError, MachineProblem
from hotset.core.settings import Secret
from hotset.gateway.app import create_app
from hotset.gateway.counting import Tokenizers
from hotset.gateway.listen import GatewayServer, make_server
from hotset.gateway.pool import (
    Capability,
    Pool,
    Reach,
    Residence,
    ServedModel,
    State,
    Upstream,
    Waiting,
)
from hotset.gateway.settings import GatewaySettings

PATIENCE_S = 10.0


def await_true(condition: Callable[[], object], timeout_s: float = PATIENCE_S) -> bool:
    """Whether the condition came true in time."""
    deadline = time.monotonic() + timeout_s
    while time.monotonic() < deadline:
        if condition():
            return True
        time.sleep(0.01)
    return bool(condition())


@dataclass
class Exchange:
    """One request at the fake engine, and the means to answer it."""

    method: str
    target: str
    headers: dict[str, str]
    body: bytes
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter
    is_chunked: bool = False
    is_gone: bool = False
    num_events: int = 0

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    async def head(
        self, status: int = 200, kind: str = "text/event-stream", length: int | None = None
    ) -> None:
        self.is_chunked = length is None
        size = "Transfer-Encoding: chunked" if length is None else f"Content-Length: {length}"
        self._writer.write(
            f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nServer: fake\r\n"
            f"Access-Control-Allow-Origin: *\r\nX-Engine: yes\r\n{size}\r\n\r\n".encode()
        )
        await self._writer.drain()

    def write(self, data: bytes) -> None:
        """Bytes as they are, head included."""
        self._writer.write(data)

    async def send(self, data: bytes) -> None:
        if self.is_chunked:
            data = b"%x\r\n%s\r\n" % (len(data), data)
        self._writer.write(data)
        await self._writer.drain()

    async def event(self, data: object, name: str = "") -> None:
        text = data if isinstance(data, str) else json.dumps(data, separators=(",", ":"))
        head = f"event: {name}\n" if name else ""
        await self.send(f"{head}data: {text}\n\n".encode())
        self.num_events += 1

    async def end(self) -> None:
        if self.is_chunked:
            self._writer.write(b"0\r\n\r\n")
        await self._writer.drain()

    async def answer(self, body: object, status: int = 200) -> None:
        data = body if isinstance(body, bytes) else json.dumps(body, separators=(",", ":")).encode()
        await self.head(status, "application/json", len(data))
        await self.send(data)

    def die(self) -> None:
        """Close the connection as a killed process would."""
        transport = self._writer.transport
        transport.abort()

    async def wait_until_gone(self) -> None:
        await self._reader.read(1)
        self.is_gone = True


Script = Callable[[Exchange], Awaitable[None]]


def chunk(text: str | None = None, **more: Any) -> dict[str, Any]:
    """A chat chunk as llama.cpp writes it."""
    delta = {} if text is None else {"content": text}
    choice = {"finish_reason": more.pop("finish_reason", None), "index": 0, "delta": delta}
    return {"choices": [choice], "id": "chatcmpl-1", "model": "small", **more}


USAGE = {
    "completion_tokens": 2,
    "prompt_tokens": 7,
    "total_tokens": 9,
    "prompt_tokens_details": {"cached_tokens": 3},
}


async def chat(exchange: Exchange, words: Sequence[str] = ("Hello", " there")) -> None:
    """Answer like llama.cpp: a stream or not, usage as an event where it was asked for."""
    body = exchange.json
    if not body.get("stream"):
        message = {"role": "assistant", "content": "".join(words)}
        choice = {"finish_reason": "stop", "index": 0, "message": message}
        await exchange.answer({"choices": [choice], "model": "small", "usage": USAGE})
        return
    await exchange.head()
    for word in words:
        await exchange.event(chunk(word))
    await exchange.event(chunk(finish_reason="stop"))
    if body.get("stream_options", {}).get("include_usage"):
        await exchange.event({"choices": [], "model": "small", "usage": USAGE})
    await exchange.event("[DONE]")
    await exchange.end()


class FakeEngine:
    """An HTTP server that answers by a script, one request per connection."""

    def __init__(self) -> None:
        self.script: Script = chat
        self.exchanges: list[Exchange] = []
        self.url = ""
        self._server: asyncio.Server | None = None

    async def start(self) -> None:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"

    async def stop(self) -> None:
        if self._server is not None:
            self._server.close()

    @property
    def last(self) -> Exchange:
        return self.exchanges[-1]

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
            method, target, _ = head[0].split(" ")
            pairs = (line.partition(": ") for line in head[1:] if line)
            headers = {name.lower(): value for name, _, value in pairs}
            body = await reader.readexactly(int(headers.get("content-length", "0")))
            exchange = Exchange(method, target, headers, body, reader, writer)
            self.exchanges.append(exchange)
            await self.script(exchange)
        except (ConnectionError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


@dataclass
class FakePool:
    """Models that are ready at once, unless told otherwise.

    Attributes:
        on_hold: awaited before a hold succeeds; may wait, tell news, or raise.
        num_held, num_waiting: now.
        holds: (model, reach, is_light) of all holds so far.
        leaving: exceptions that holds were left with.
    """

    engines: dict[str, tuple[str, Secret | None]]
    served: list[ServedModel] = field(default_factory=list)
    on_hold: Callable[[Callable[[Waiting], None] | None], Awaitable[None]] | None = None
    num_held: int = 0
    num_waiting: int = 0
    holds: list[tuple[str, Reach, bool]] = field(default_factory=list)
    leaving: list[BaseException | None] = field(default_factory=list)
    loads: list[str] = field(default_factory=list)
    unloads: list[tuple[str, bool]] = field(default_factory=list)
    lines: list[tuple[int, str]] = field(default_factory=list)
    watchers: list[Callable[[ServedModel], None]] = field(default_factory=list)
    problem: HotsetError | None = None
    is_closing: bool = False

    def models(self) -> list[ServedModel]:
        return sorted(self.served, key=lambda model: model.id)

    def resolve(self, name: str) -> ServedModel:
        for model in self.served:
            if name == model.id or name in model.aliases:
                return model
        known = ", ".join(model.id for model in self.models())
        raise ClientProblem(f"there is no model '{name}'; the models are: {known}", 404)

    @asynccontextmanager
    async def hold(
        self,
        model_id: str,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        reach: Reach = Reach.ANY,
        is_light: bool = False,
    ) -> AsyncIterator[Upstream]:
        model = self.resolve(model_id)
        self.holds.append((model_id, reach, is_light))
        if reach is not Reach.ANY and model.state is not State.READY:
            raise MachineProblem(f"'{model_id}' is not loaded, and there is no room for it now")
        self.num_waiting += 1
        try:
            if self.on_hold is not None:
                await self.on_hold(on_wait)
        finally:
            self.num_waiting -= 1
        self.num_held += 1
        url, key = self.engines[model_id]
        try:
            yield Upstream(model=model, url=url, api_key=key)
        except BaseException as error:
            self.leaving.append(error)
            raise
        else:
            self.leaving.append(None)
        finally:
            self.num_held -= 1

    async def load(self, model_id: str) -> None:
        if self.problem is not None:
            raise self.problem
        self.loads.append(model_id)
        self.change(model_id, State.READY)

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        self.unloads.append((model_id, force))
        self.change(model_id, State.UNLOADED)

    def residence(self, model_id: str) -> Residence:
        self.resolve(model_id)
        return Residence(num_busy=self.num_held, num_queued=self.num_waiting)

    def why(self, model_id: str) -> Sequence[str]:
        return [f"{model_id} is ready"]

    def log_lines(self, model_id: str) -> Sequence[tuple[int, str]]:
        self.resolve(model_id)
        return list(self.lines)

    def watch(self, on_change: Callable[[ServedModel], None]) -> Callable[[], None]:
        self.watchers.append(on_change)
        return lambda: self.watchers.remove(on_change)

    def change(self, model_id: str, state: State) -> None:
        changed = replace(self.resolve(model_id), state=state)
        self.served = [m for m in self.served if m.id != model_id] + [changed]
        for watcher in self.watchers:
            watcher(changed)


def model(name: str = "small", **changes: Any) -> ServedModel:
    fields: dict[str, Any] = {"id": name, "state": State.READY, "context_tokens": 512}
    return ServedModel(**(fields | changes))


CHAT = frozenset({Capability.CHAT})


class Served:
    """A gateway that runs in a thread of its own; clients ask it from the test's thread."""

    def __init__(self, pool: Pool, settings: GatewaySettings) -> None:
        self.tokenizers: Tokenizers | None = None
        self.server: GatewayServer
        self.to_close: list[socket.socket] = []
        self._pool = pool
        self._settings = settings
        self._loop = uvloop.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, daemon=True)
        self._serving: Any = None

    def run(self, work: Coroutine[Any, Any, Any]) -> Any:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(PATIENCE_S)

    def loop_call(self, action: Callable[[], None]) -> None:
        self._loop.call_soon_threadsafe(action)

    async def begin(self) -> None:
        """What comes before the server; on the gateway's loop, as `finish`."""

    async def finish(self) -> None:
        """What comes after it."""

    def start(self) -> None:
        self._thread.start()
        self.run(self.begin())

        async def build() -> None:
            app = create_app(self._pool, self._settings, self.tokenizers)
            self.server = make_server(app, self._settings)

        self.run(build())
        self._serving = asyncio.run_coroutine_threadsafe(self.server.serve(), self._loop)
        assert await_true(lambda: self.server.started or self._serving.done())
        if self._serving.done():
            self._serving.result()

    def stop(self) -> None:
        for connection in self.to_close:
            connection.close()
        self.loop_call(self.server.end_now)
        self._serving.result(PATIENCE_S)
        self.run(self.finish())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join(PATIENCE_S)
        self._loop.close()

    @property
    def port(self) -> int:
        return self.server.port

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def get(self, path: str, **more: Any) -> httpx.Response:
        return httpx.get(self.url + path, timeout=PATIENCE_S, trust_env=False, **more)

    def post(self, path: str, body: object = None, **more: Any) -> httpx.Response:
        return httpx.post(self.url + path, json=body, timeout=PATIENCE_S, trust_env=False, **more)

    def chat(self, **more: Any) -> httpx.Response:
        body = {"model": "small", "messages": [{"role": "user", "content": "Hi"}], **more}
        return self.post("/v1/chat/completions", body)


class Gateway(Served):
    """A gateway before the fake engine."""

    def __init__(self, pool: FakePool, settings: GatewaySettings) -> None:
        super().__init__(pool, settings)
        self.pool = pool
        self.engine = FakeEngine()

    async def begin(self) -> None:
        await self.engine.start()
        for served in self.pool.served:
            self.pool.engines.setdefault(served.id, (self.engine.url, Secret("engine-key")))

    async def finish(self) -> None:
        await self.engine.stop()

    def settled(self) -> None:
        """Wait until no request is under way."""
        assert await_true(lambda: not self.pool.num_held and not self.pool.num_waiting)


@contextmanager
def gateway(*models: ServedModel, **settings: Any) -> Iterator[Gateway]:
    """A gateway with the models (default: one, `small`) before the fake engine."""
    fields: dict[str, Any] = {"listen_port": 0, "headers_after_s": 0.2, "keep_alive_s": 0.1}
    pool = FakePool({}, list(models) or [model()])
    running = Gateway(pool, GatewaySettings(**(fields | settings)))
    running.start()
    try:
        yield running
    finally:
        running.stop()


class RawClient:
    """A client that sees every byte, and can leave or stop reading at will."""

    def __init__(self, running: Served, body: object, path: str = "/v1/chat/completions") -> None:
        data = json.dumps(body).encode()
        self.socket = socket.create_connection(("127.0.0.1", running.port), timeout=PATIENCE_S)
        running.to_close.append(self.socket)
        self.socket.sendall(
            b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n"
            % (path.encode(), len(data))
            + data
        )
        self.seen = b""

    def read_until(self, text: bytes) -> bytes:
        while text not in self.seen:
            data = self.socket.recv(65536)
            assert data, f"the connection ended with {self.seen!r}"
            self.seen += data
        return self.seen

    def read_to_end(self) -> bytes:
        while not self.seen.endswith(b"0\r\n\r\n") and (data := self.socket.recv(65536)):
            self.seen += data
        return self.seen

    def leave(self) -> None:
        self.socket.close()


def events_of(text: str) -> list[tuple[str, Any]]:
    """(name, data) of each event in a stream; `[DONE]` stays a text; comments are left out."""
    found = []
    for block in text.split("\n\n"):
        name, data = "", None
        for line in block.split("\n"):
            if line.startswith("event: "):
                name = line.removeprefix("event: ")
            elif line.startswith("data: "):
                given = line.removeprefix("data: ")
                data = given if given == "[DONE]" else json.loads(given)
        if data is not None:
            found.append((name, data))
    return found
