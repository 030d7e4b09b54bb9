"""The gateway as a command: its server and its engines, until the second Ctrl-C at the latest."""

from __future__ import annotations

import asyncio
import gc
import signal
import time
from collections.abc import Callable, Coroutine, Sequence
from contextlib import suppress
from dataclasses import dataclass

import uvloop

from hotset.cli.alone import Alone
from hotset.cli.live import LiveLine
from hotset.cli.reloading import ConfigWatch
from hotset.cli.screen import LoadingLine, note
from hotset.gateway.app import GatewayApp, create_app
from hotset.gateway.counting import Tokenizers, TokenizerStarter
from hotset.gateway.engines import EnginePool
from hotset.gateway.listen import GatewayServer, make_server
from hotset.gateway.offers import Offer, Starter
from hotset.gateway.operations import ConfigReport
from hotset.gateway.pool import ServedModel, State
from hotset.gateway.settings import GatewaySettings

__all__ = ["Service", "run_gateway", "settle_memory"]

_LOOK_S = 0.05
# What a polite signal leaves running answers. `docker stop` kills after 10 s, and conversations
# are to be saved before that.
_POLITE_S = 4.0
_EXPERTS_EVERY_S = 10.0


@dataclass(frozen=True, slots=True)
class Service:
    """What a gateway is run with.

    Attributes:
        tokenizers: starts what counts tokens of models that are not loaded.
        default: the model of requests that name none.
        alone: the only model, which is loaded before the gateway listens; None for several.
        watch: of the configuration file; None without one.
    """

    offers: Sequence[Offer]
    starter: Starter
    settings: GatewaySettings
    tokenizers: TokenizerStarter
    default: str | None = None
    alone: Alone | None = None
    watch: ConfigWatch | None = None


def run_gateway(service: Service) -> None:
    """Serve until a signal ends it.

    Raises:
        HotsetError: the only model could not be started.
        SystemExit: with the usual code, for a signal other than Ctrl-C, and for one while loading.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(service))
    if code:
        raise SystemExit(code)


async def _serve(service: Service) -> int:
    settings = service.settings
    pool = EnginePool(service.offers, service.starter, default=service.default)
    app = create_app(pool, settings, Tokenizers(service.tokenizers))
    server = make_server(app, settings)
    end = _Ending(pool, server)
    try:
        async with pool:
            if service.alone and not await end.unless_told(_load(pool, service.alone)):
                return end.code
            unwatch = pool.watch(_tell)
            watching = asyncio.create_task(_watch(service.watch, pool, app))
            serving = asyncio.create_task(server.serve())
            while not server.started and not serving.done():
                await asyncio.sleep(_LOOK_S)
            if server.started:
                settle_memory()
                host = settings.listen_host
                url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
                note(f"{url}/v1 (OpenAI) · {url}/v1/messages (Anthropic) · Ctrl-C ends it")
            await _show_experts(service.alone, serving)
            await serving
            watching.cancel()
            unwatch()
    finally:
        end.forget()
    return end.code


def settle_memory() -> None:
    """What is there before the first request stays, modules above all: 50,000 objects, which the
    collector would look through every now and then, for some ten milliseconds each time."""
    gc.collect()
    gc.freeze()


async def _watch(watch: ConfigWatch | None, pool: EnginePool, app: GatewayApp) -> None:
    def on_report(report: ConfigReport) -> None:
        app.operations.config = report

    if watch:
        await watch.run(pool, on_report)


async def _load(pool: EnginePool, alone: Alone) -> None:
    with LoadingLine() as loading:
        alone.on_progress = loading.show
        try:
            await pool.load(alone.id)
        finally:
            alone.on_progress = lambda _: None
    note(f"ready in {alone.start_s:.1f} s · model id '{alone.id}'")


async def _show_experts(alone: Alone | None, serving: asyncio.Task[None]) -> None:
    """What the expert store does, below the text or as a line now and then, until the end."""
    if alone is None or not alone.has_store:
        return
    with LiveLine(alone.meter_line) as live:
        while not serving.done():
            await asyncio.wait((serving,), timeout=_EXPERTS_EVERY_S)
            if not live.is_on and (line := alone.experts_line()):
                note(line)


class _Ending:
    """The first Ctrl-C lets answers finish, and so does a polite signal, for some seconds; the
    second signal ends all at once."""

    def __init__(self, pool: EnginePool, server: GatewayServer) -> None:
        self.code = 0
        self._pool, self._server = pool, server
        self._closing: asyncio.Task[None] | None = None
        self._beginning: asyncio.Task[None] | None = None
        self._loop = asyncio.get_running_loop()
        self._handled: list[signal.Signals] = []
        self._handle(signal.SIGINT, self._interrupt)
        for number in (signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) != signal.SIG_IGN:  # `nohup` ignores one for its program
                self._handle(number, self._terminate, number)

    def _handle(self, number: signal.Signals, act: Callable[..., None], *given: object) -> None:
        self._loop.add_signal_handler(number, act, *given)
        self._handled.append(number)

    def forget(self) -> None:
        for number in self._handled:
            self._loop.remove_signal_handler(number)
        if self._closing:
            self._closing.cancel()

    async def unless_told(self, work: Coroutine[None, None, None]) -> bool:
        """Do what comes before the serving; False if a signal has ended it."""
        self._beginning = asyncio.create_task(work)
        with suppress(asyncio.CancelledError):
            await self._beginning
        is_done = not self._beginning.cancelled()
        self._beginning = None
        return is_done

    def _interrupt(self) -> None:
        busy = self._pool.num_busy
        self._end(
            signal.SIGINT,
            f"finishing {busy} answer{'s' if busy > 1 else ''}; Ctrl-C again ends at once",
            None,
        )

    def _terminate(self, number: signal.Signals) -> None:
        busy = self._pool.num_busy
        self._end(
            number,
            f"{number.name}: {busy} answer{'s have' if busy > 1 else ' has'} {_POLITE_S:.0f} s to"
            " finish; the next signal ends at once",
            _POLITE_S,
        )

    def _end(self, number: signal.Signals, news: str, patience_s: float | None) -> None:
        if self._beginning:
            self.code = 128 + number
            self._beginning.cancel()
        elif self._closing is None:
            if self._pool.num_busy:
                note(news)
            self._closing = asyncio.create_task(self._close(number, patience_s))
        else:
            if number is not signal.SIGINT:
                self.code = 128 + number
            self._closing.cancel()
            self._server.end_now()
            self._pool.hurry()

    async def _close(self, number: signal.Signals, patience_s: float | None) -> None:
        """New requests get 503 until the running ones are done, or were cut off after
        `patience_s`; then nobody listens any more."""
        closing = asyncio.ensure_future(self._pool.close())
        try:
            if (await asyncio.wait((closing,), timeout=patience_s))[1]:
                self.code = 128 + number
                self._server.end_now()
                await closing
            self._server.should_exit = True
        finally:
            closing.cancel()


def _tell(model: ServedModel) -> None:
    """A line of the console for a change that a person may want to know of."""
    if model.state is not State.QUEUED:
        note(f"{time.strftime('%H:%M:%S')} {model.id}  {model.state}: {model.why}")
