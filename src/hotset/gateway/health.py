"""Whether engines that are up still answer: asked now and then, and when a request found none."""

from __future__ import annotations

import time
from collections.abc import Iterable

import httpx

from hotset.gateway.ledger import Model
from hotset.gateway.offers import EngineHandle

__all__ = ["Health"]


class Health:
    """Times of the last good answers. An engine answers its health even while it computes.

    Args:
        every_s: between two questions.
        patience_s: without one good answer for so long, an engine counts as wedged.
    """

    def __init__(self, every_s: float = 5.0, patience_s: float = 30.0) -> None:
        self._every_s, self._patience_s = every_s, patience_s
        self._client = httpx.AsyncClient(timeout=every_s, trust_env=False)
        self._well_s: dict[str, float] = {}
        self._asked_s: dict[str, float] = {}

    def begin(self, model_id: str) -> None:
        """Its engine has just answered."""
        self._well_s[model_id] = self._asked_s[model_id] = time.monotonic()

    def due(self, models: Iterable[Model]) -> list[Model]:
        """Those to ask now; each is given out once per interval."""
        now_s = time.monotonic()
        due = [m for m in models if now_s - self._asked_s.get(m.id, 0.0) >= self._every_s]
        self._asked_s |= {model.id: now_s for model in due}
        return due

    async def ask(self, model_id: str, handle: EngineHandle) -> float:
        """Seconds without a good answer once that is too long, else 0."""
        begin_s = self._well_s.get(model_id, time.monotonic())
        try:
            answer = await self._client.get(f"{handle.url}/health")
            is_well = answer.status_code < 500
        except httpx.HTTPError:
            is_well = False
        now_s = time.monotonic()
        if is_well:
            self._well_s[model_id] = now_s
            return 0.0
        silent_s = now_s - begin_s
        return silent_s if silent_s >= self._patience_s else 0.0

    async def close(self) -> None:
        await self._client.aclose()
