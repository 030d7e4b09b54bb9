"""What the relay asks of the side that owns the models: names, and an engine to talk to."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Protocol

from hotset.core.settings import Secret

__all__ = ["Capability", "Pool", "ServedModel", "State", "Upstream", "Waiting"]


class Capability(StrEnum):
    """What a model can be asked for."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    RERANK = "rerank"
    VISION = "vision"


class State(StrEnum):
    """Where a model stands."""

    UNLOADED = "unloaded"
    QUEUED = "queued"
    LOADING = "loading"
    READY = "ready"
    DRAINING = "draining"
    FAILED = "failed"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedModel:
    """A model that clients can ask for.

    Attributes:
        id: the canonical name; unique.
        aliases: other names that mean it.
        context_tokens: what one request may use; None before the first plan.
        n_bytes: of the file or its shards.
        created_s: of the file, seconds since 1970.
        why: one line about the state, for people ("left at 13:05 to make room for ...").
    """

    id: str
    aliases: tuple[str, ...] = ()
    capabilities: frozenset[Capability] = frozenset({Capability.CHAT})
    context_tokens: int | None = None
    n_bytes: int = 0
    created_s: int = 0
    state: State = State.UNLOADED
    why: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Waiting:
    """News for a client that waits.

    Attributes:
        position: in the queue, 1 is next; 0 while its model loads.
        reason: one line.
        fraction: of the load, 0 to 1; None where unknown.
    """

    position: int
    reason: str
    fraction: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Upstream:
    """A running engine, held for one request.

    Attributes:
        url: base address, `http://127.0.0.1:<port>`.
        api_key: what it asks for; None if nothing.
    """

    model: ServedModel
    url: str
    api_key: Secret | None


class Pool(Protocol):
    """The models and their engines. All methods are for one event loop."""

    def models(self) -> list[ServedModel]:
        """All of them, sorted by id, with their present state."""

    def resolve(self, name: str) -> ServedModel:
        """The model that a client's name means; loads nothing.

        Raises:
            ClientProblem: 404, with the nearest known names.
        """

    def hold(
        self, model_id: str, on_wait: Callable[[Waiting], None] | None = None
    ) -> AbstractAsyncContextManager[Upstream]:
        """Use of a model for one request: queued, loaded, and kept from eviction until left.

        Cancelling the wait takes the demand with it. Leaving the context marks the end of the use.

        Raises (on entering):
            ClientProblem: 404; or 429 when the queue is full (it has `retry_after_s`).
            HotsetError: the start failed, or there is no room for it; says why.
        """

    async def load(self, model_id: str) -> None:
        """Load it without a request. Raises as `hold`."""

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Let it drain and leave; with `force` cut its answers off."""
