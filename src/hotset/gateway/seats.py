"""Requests that have not ended: where their engine goes, and what they are told while they wait."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

from hotset.core.errors import HotsetError
from hotset.gateway.pool import Upstream, Waiting

__all__ = ["Seats"]


@dataclass(slots=True)
class _Seat:
    model_id: str
    upstream: asyncio.Future[Upstream]
    on_wait: Callable[[Waiting], None] | None
    told: Waiting | None = None


class Seats:
    """By the request's number. For one event loop."""

    def __init__(self) -> None:
        self._seats: dict[int, _Seat] = {}

    def take(
        self, number: int, model_id: str, on_wait: Callable[[Waiting], None] | None
    ) -> asyncio.Future[Upstream]:
        """What the request is to wait for."""
        upstream: asyncio.Future[Upstream] = asyncio.get_running_loop().create_future()
        self._seats[number] = _Seat(model_id, upstream, on_wait)
        return upstream

    def leave(self, number: int) -> None:
        del self._seats[number]

    def give(self, number: int, upstream: Upstream) -> None:
        """Its engine; without effect for one that has left."""
        seat = self._seats.get(number)
        if seat and not seat.upstream.done():
            seat.upstream.set_result(upstream)

    def refuse(self, number: int, problem: HotsetError) -> None:
        seat = self._seats.get(number)
        if seat and not seat.upstream.done():
            seat.upstream.set_exception(problem)

    @property
    def has_waiting(self) -> bool:
        return any(not seat.upstream.done() for seat in self._seats.values())

    def tell(self, places: Mapping[int, Waiting], fraction: Callable[[str], float | None]) -> None:
        """Tell those whose news have changed.

        Args:
            fraction: of a model's weights in memory while it loads.
        """
        for number, place in places.items():
            seat = self._seats[number]
            news = replace(place, fraction=fraction(seat.model_id))
            if seat.on_wait and news != seat.told:
                seat.told = news
                seat.on_wait(news)
