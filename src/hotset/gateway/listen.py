"""The HTTP server around the application."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from contextlib import contextmanager

import uvicorn

from hotset.gateway.app import GatewayApp
from hotset.gateway.settings import GatewaySettings

__all__ = ["GatewayServer", "make_server"]

# Clients keep connections for their next request; the usual five seconds end just when an agent
# comes back from running a tool.
_KEEP_ALIVE_S = 75


class GatewayServer(uvicorn.Server):
    """Leaves signals to the command that runs it; ends event streams when it stops.

    `await server.serve()` listens until `should_exit` is set and running answers have ended;
    `end_now` ends them with an error.
    """

    def __init__(self, app: GatewayApp, config: uvicorn.Config) -> None:
        super().__init__(config)
        self._hub = app.hub
        self._cut = app.cut

    def end_now(self) -> None:
        self.should_exit = True
        self._cut()

    @contextmanager
    def capture_signals(self) -> Iterator[None]:
        yield

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        # They have no end of their own, and uvicorn waits for all answers.
        self._hub.close()
        await super().shutdown(sockets)

    @property
    def port(self) -> int:
        """Where it listens, once `started` is set."""
        return int(self.servers[0].sockets[0].getsockname()[1])


def make_server(app: GatewayApp, settings: GatewaySettings) -> GatewayServer:
    """A server for `create_app(...)`."""
    config = uvicorn.Config(
        app,
        host=settings.listen_host,
        port=settings.listen_port,
        http="httptools",
        loop="uvloop",
        ws="none",
        lifespan="on",
        log_config=None,
        # What is no HTTP, or asks for another protocol, is the client's affair: whoever reaches the
        # port could fill the log with it.
        log_level="error",
        access_log=False,
        server_header=False,
        timeout_keep_alive=_KEEP_ALIVE_S,
    )
    return GatewayServer(app, config)
