"""The gateway as a command: its server and its engines, until the second Ctrl-C at the latest."""

from __future__ import annotations

import asyncio
import signal
import time
from collections.abc import Callable

import uvloop

from hotset.cli.fleet import Fleet
from hotset.cli.screen import note
from hotset.gateway.app import create_app
from hotset.gateway.engines import EnginePool
from hotset.gateway.listen import GatewayServer, make_server
from hotset.gateway.pool import ServedModel, State
from hotset.gateway.settings import GatewaySettings

__all__ = ["run_gateway"]

_LOOK_S = 0.05


def run_gateway(fleet: Fleet, settings: GatewaySettings, default: str | None = None) -> None:
    """Serve until a signal ends it.

    Raises:
        SystemExit: with the usual code, for a signal other than Ctrl-C.
    """
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        code = runner.run(_serve(fleet, settings, default))
    if code:
        raise SystemExit(code)


async def _serve(fleet: Fleet, settings: GatewaySettings, default: str | None) -> int:
    offers = [member.offer for member in fleet.members.values()]
    async with EnginePool(offers, fleet, default=default) as pool:
        server = make_server(create_app(pool, settings), settings)
        end = _Ending(pool, server)
        unwatch = pool.watch(_tell)
        serving = asyncio.create_task(server.serve())
        try:
            while not server.started and not serving.done():
                await asyncio.sleep(_LOOK_S)
            if server.started:
                host = settings.listen_host
                url = f"http://{f'[{host}]' if ':' in host else host}:{server.port}"
                note(f"{url}/v1 (OpenAI) · {url}/v1/messages (Anthropic) · Ctrl-C ends it")
            await serving
        finally:
            unwatch()
            end.forget()
        return end.code


class _Ending:
    """The first Ctrl-C lets answers finish, the second cuts them off; other signals do at once."""

    def __init__(self, pool: EnginePool, server: GatewayServer) -> None:
        self.code = 0
        self._pool, self._server = pool, server
        self._closing: asyncio.Task[None] | None = None
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

    def _interrupt(self) -> None:
        if self._closing:
            self._server.end_now()
            return
        busy = self._pool.num_busy
        if busy:
            note(f"finishing {busy} answer{'s' if busy > 1 else ''}; Ctrl-C again ends at once")
        self._closing = asyncio.create_task(self._close())

    async def _close(self) -> None:
        """New requests get 503 until the running ones are done; then nobody listens any more."""
        await self._pool.close()
        self._server.should_exit = True

    def _terminate(self, number: signal.Signals) -> None:
        self.code = 128 + number
        self._server.end_now()


def _tell(model: ServedModel) -> None:
    """A line of the console for a change that a person may want to know of."""
    if model.state is not State.QUEUED:
        note(f"{time.strftime('%H:%M:%S')} {model.id}  {model.state}: {model.why}")
