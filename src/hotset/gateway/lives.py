"""The engine of one model, from start to end, again and again."""

from __future__ import annotations

import asyncio
import threading
import time
from concurrent.futures import Executor
from contextlib import suppress
from functools import partial

from hotset.core.errors import EngineProblem, HotsetError
from hotset.gateway.enginelog import EngineLog
from hotset.gateway.ledger import Bytes
from hotset.gateway.offers import EngineHandle, Starter, StartWatch

__all__ = ["Life"]


class Life:
    """For one event loop. What blocks runs on `threads`.

    Attributes:
        handle: the engine while it answers.
        pid: of its process, from its very start; 0 without one.
        fraction: of the weights in memory while it starts; None where unknown.
        log: what its engines have printed.
    """

    def __init__(self, model_id: str, threads: Executor) -> None:
        self.handle: EngineHandle | None = None
        self.pid = 0
        self.fraction: float | None = None
        self.log = EngineLog()
        self.num_loads = self.num_failures = self.num_evictions = 0
        self._model_id = model_id
        self._threads = threads
        self._cancel: threading.Event | None = None
        self._starting: asyncio.Future[EngineHandle] | None = None
        self._ending: EngineHandle | None = None

    @property
    def is_starting(self) -> bool:
        return self._starting is not None

    @property
    def is_called_off(self) -> bool:
        return self._cancel is not None and self._cancel.is_set()

    async def start(self, starter: Starter, bytes_by_device: Bytes) -> EngineHandle:
        """Start an engine.

        Raises:
            HotsetError: it did not start, or was called off; nothing of it is left.
        """
        cancel = self._cancel = threading.Event()
        watch = StartWatch(self.log.add, self._set_fraction, self._set_pid, cancel)
        self.note("start")
        self._starting = asyncio.get_running_loop().run_in_executor(
            self._threads, partial(starter.start, self._model_id, bytes_by_device, watch)
        )
        problem: HotsetError = EngineProblem(f"{self._model_id}: the start was called off")
        try:
            # If this wait is cancelled, `end` finds the start where it was.
            handle = await asyncio.shield(self._starting)
        except HotsetError as why_not:
            problem = why_not
        except Exception as bug:
            what = f"{self._model_id}: internal error in the start: {type(bug).__name__}: {bug}"
            problem = EngineProblem(what)
        else:
            self.handle, self.fraction, self._starting = handle, None, None
            if not cancel.is_set():
                self.num_loads += 1
                self.note("ready")
                return handle
            await self.end(grace_s=0.0)
        self.fraction, self._starting, self.pid = None, None, 0
        self.num_failures += not cancel.is_set()
        self.note(problem.message)
        raise problem

    def call_off(self) -> None:
        """End a start that is under way; `start` raises soon."""
        if self._cancel:
            self._cancel.set()

    async def end(self, *, grace_s: float) -> None:
        """Whatever there is of an engine, starting or ready, is gone afterwards."""
        self.call_off()
        handle, self.handle = self.handle, None
        if self._starting:
            with suppress(Exception):  # it failed: then there is nothing to end
                handle = await self._starting
            self._starting = None
        if handle:
            self._ending = handle
            await asyncio.get_running_loop().run_in_executor(
                self._threads, partial(handle.stop, grace_s=grace_s)
            )
            self._ending = None
            self.note("ended")
        self.pid = 0

    def hurry(self) -> None:
        """An end that is under way takes no more time for politeness."""
        if self._ending:
            self._threads.submit(self._ending.kill)

    def note(self, text: str) -> None:
        """A line of the gateway's own in the log."""
        self.log.add(f"hotset {time.strftime('%H:%M:%S')}: {text}")

    def _set_fraction(self, fraction: float | None) -> None:
        self.fraction = fraction

    def _set_pid(self, pid: int) -> None:
        self.pid = pid
