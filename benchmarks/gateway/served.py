"""The gateway before one engine that is always ready, in a process of its own.

`python -m benchmarks.gateway.served URL KEY` prints its port and serves until its input closes.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager

import uvloop

from hotset.cli.gateway import settle_memory
from hotset.core.errors import ClientProblem
from hotset.core.settings import Secret
from hotset.gateway.app import create_app
from hotset.gateway.listen import make_server
from hotset.gateway.pool import Reach, Residence, ServedModel, State, Upstream, Waiting
from hotset.gateway.settings import GatewaySettings

_MODEL = ServedModel(id="bench", state=State.READY)


class _OneEngine:
    is_closing = False

    """The pool's part that the relay needs, without any waiting."""

    def __init__(self, upstream: Upstream) -> None:
        self._upstream = upstream

    def models(self) -> list[ServedModel]:
        return [_MODEL]

    def resolve(self, name: str) -> ServedModel:
        if name != _MODEL.id:
            raise ClientProblem(f"there is no model '{name}'", 404)
        return _MODEL

    @asynccontextmanager
    async def hold(
        self,
        model_id: str,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        reach: Reach = Reach.ANY,
        is_light: bool = False,
    ) -> AsyncIterator[Upstream]:
        del model_id, on_wait, reach, is_light
        yield self._upstream

    async def load(self, model_id: str) -> None:
        del model_id

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        del model_id, force

    def residence(self, model_id: str) -> Residence:
        del model_id
        return Residence()

    def why(self, model_id: str) -> Sequence[str]:
        return [f"{model_id} is always ready"]

    def log_lines(self, model_id: str) -> Sequence[tuple[int, str]]:
        del model_id
        return []

    def watch(self, on_change: Callable[[ServedModel], None]) -> Callable[[], None]:
        del on_change
        return lambda: None


async def _serve(url: str, key: str) -> None:
    upstream = Upstream(model=_MODEL, url=url, api_key=Secret(key) if key else None)
    settings = GatewaySettings(listen_port=0)
    server = make_server(create_app(_OneEngine(upstream), settings), settings)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    settle_memory()
    print(server.port, flush=True)
    await asyncio.get_running_loop().run_in_executor(None, sys.stdin.read)
    server.end_now()
    await serving


if __name__ == "__main__":
    uvloop.run(_serve(sys.argv[1], sys.argv[2]))
