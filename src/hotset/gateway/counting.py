"""Counting tokens of a model that is not loaded: its tokenizer and its template, without weights.

An engine that has only these starts in a second, takes little memory and no place of a model's. It
is the engine itself, so its counts are the model's own. It stays while it is asked, and a little
longer: agents count before each request.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from functools import partial

from hotset.gateway.offers import EngineHandle
from hotset.gateway.pool import ServedModel, Upstream

__all__ = ["TokenizerStarter", "Tokenizers"]

TokenizerStarter = Callable[[str], EngineHandle]
"""Starts the tokenizer of a model, by id. Blocks; called on a thread of its own.

Raises HotsetError: it cannot be started; nothing of it is left.
"""

_IDLE_S = 60.0
_MAX_LIVING = 2


@dataclass(slots=True)
class _Tokenizer:
    """One that starts or answers; `num_users` counts who waits for it or asks it."""

    starting: asyncio.Future[EngineHandle]
    num_users: int = 0
    used_at: float = field(default_factory=time.monotonic)

    @property
    def is_over(self) -> bool:
        """Whether its start has failed, or it has ended."""
        if not self.starting.done():
            return False
        return self.starting.exception() is not None or not self.starting.result().is_alive()


class Tokenizers:
    """At most two at a time, unless more are asked at once. For one event loop.

    Args:
        idle_s: how long one stays unasked.
    """

    def __init__(self, start: TokenizerStarter, *, idle_s: float = _IDLE_S) -> None:
        self._start = start
        self._idle_s = idle_s
        self._threads = ThreadPoolExecutor(2 * _MAX_LIVING, thread_name_prefix="tokenizers")
        self._living: dict[str, _Tokenizer] = {}
        self._ends: set[asyncio.Task[None]] = set()

    @asynccontextmanager
    async def hold(self, model: ServedModel) -> AsyncIterator[Upstream]:
        """The tokenizer of a model for one request.

        Raises:
            HotsetError: it cannot be started.
        """
        tokenizer = self._of(model.id)
        tokenizer.num_users += 1
        try:
            # A client that leaves does not end the start: others may wait for it.
            handle = await asyncio.shield(tokenizer.starting)
            yield Upstream(model=model, url=handle.url, api_key=handle.api_key)
        finally:
            tokenizer.num_users -= 1
            tokenizer.used_at = time.monotonic()
            asyncio.get_running_loop().call_later(self._idle_s, self._end_idle)

    def _of(self, model_id: str) -> _Tokenizer:
        tokenizer = self._living.get(model_id)
        if tokenizer and tokenizer.is_over:
            self._end(model_id)
            tokenizer = None
        if tokenizer is None:
            for other_id in self._idle_ones()[: max(0, len(self._living) - _MAX_LIVING + 1)]:
                self._end(other_id)
            starting = asyncio.get_running_loop().run_in_executor(
                self._threads, partial(self._start, model_id)
            )
            tokenizer = self._living[model_id] = _Tokenizer(starting)
        return tokenizer

    def _idle_ones(self) -> list[str]:
        """Those that nobody uses, the longest unused first."""
        idle = [id_ for id_, tokenizer in self._living.items() if not tokenizer.num_users]
        return sorted(idle, key=lambda id_: self._living[id_].used_at)

    def _end_idle(self) -> None:
        now = time.monotonic()
        for model_id in self._idle_ones():
            if now - self._living[model_id].used_at >= self._idle_s:
                self._end(model_id)

    def _end(self, model_id: str) -> None:
        end = asyncio.create_task(self._stop(self._living.pop(model_id)))
        self._ends.add(end)
        end.add_done_callback(self._ends.discard)

    async def _stop(self, tokenizer: _Tokenizer) -> None:
        with suppress(Exception):  # a start that failed has left nothing to end
            handle = await tokenizer.starting
            await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(handle.stop, grace_s=0.0)
            )

    async def close(self) -> None:
        """End them all; returns once they are gone."""
        for model_id in list(self._living):
            self._end(model_id)
        await asyncio.gather(*self._ends, return_exceptions=True)
        self._threads.shutdown()
