"""What the relay asks of the side that owns the models: names, and an engine to talk to."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Protocol

from hotset.core.settings import Secret

__all__ = [
    "Capability",
    "Pool",
    "Reach",
    "Residence",
    "ServedModel",
    "State",
    "Upstream",
    "Waiting",
]


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


class Reach(StrEnum):
    """How far a hold may go to get its model."""

    READY = "ready"
    """Only if it is ready now: nothing is loaded, nobody waits."""
    FREE = "free"
    """It may be loaded where memory is free for it; nobody has to leave."""
    ANY = "any"
    """The queue, a load, and others leaving for it."""


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


@dataclass(frozen=True, slots=True, kw_only=True)
class Residence:
    """What is known of a model besides its name, for people and for metrics.

    Attributes:
        pid: of its engine; None while there is none.
        since_s: seconds since 1970 of the last change of state.
        num_busy, num_queued: requests that hold it, and that wait for it.
        slots: requests that it computes at the same time.
        leaves_in_s: until it is unloaded if nobody asks; None if it stays or is in use.
        memory_bytes: by device name ("RAM", "Vulkan0" ...), as loaded or else as planned.
        load_s: how long its last load took; None before the first.
        num_loads, num_failures: since the gateway's start.
        num_evictions: how often it left to make room.
        num_expert_hits, num_expert_requests: of the expert store; 0 without it.
    """

    pid: int | None = None
    since_s: float = 0.0
    num_busy: int = 0
    num_queued: int = 0
    slots: int = 1
    leaves_in_s: float | None = None
    memory_bytes: Mapping[str, int] = field(default_factory=dict)
    load_s: float | None = None
    num_loads: int = 0
    num_failures: int = 0
    num_evictions: int = 0
    num_expert_hits: int = 0
    num_expert_requests: int = 0


class Pool(Protocol):
    """The models and their engines. All methods are for one event loop."""

    @property
    def is_closing(self) -> bool:
        """Whether it takes no more requests."""

    def models(self) -> list[ServedModel]:
        """All of them, sorted by id, with their present state."""

    def resolve(self, name: str) -> ServedModel:
        """The model that a client's name means; loads nothing.

        Raises:
            ClientProblem: 404, with the nearest known names.
        """

    def hold(
        self,
        model_id: str,
        on_wait: Callable[[Waiting], None] | None = None,
        *,
        reach: Reach = Reach.ANY,
        is_light: bool = False,
    ) -> AbstractAsyncContextManager[Upstream]:
        """Use of a model for one request: queued, loaded, and kept from eviction until left.

        At most `slots` requests hold a model at the same time; the others wait here, where each
        knows its position. A light one (counting tokens, a template, the engine's own state) takes
        no slot.

        Cancelling the wait takes the demand with it. Leaving the context marks the end of the use;
        leaving it with an EngineProblem says that the engine did not answer as it should.

        Raises (on entering):
            ClientProblem: 404; or 429 when the queue is full (it has `retry_after_s`).
            MachineProblem: `reach` does not go far enough; says what would be needed.
            HotsetError: the start failed, or there is no room for it; says why.
        """

    async def load(self, model_id: str) -> None:
        """Load it without a request. Raises as `hold`."""

    async def unload(self, model_id: str, *, force: bool = False) -> None:
        """Let it drain and leave; with `force` cut its answers off."""

    def residence(self, model_id: str) -> Residence:
        """What is known of it now. Raises ClientProblem (404) for an unknown id, as all below."""

    def why(self, model_id: str) -> Sequence[str]:
        """Why it is, or is not, loaded, and what asking for it now would do; lines for people."""

    def log_lines(self, model_id: str) -> Sequence[tuple[int, str]]:
        """Its engine's kept lines with rising numbers, oldest first; after its end too."""

    def watch(self, on_change: Callable[[ServedModel], None]) -> Callable[[], None]:
        """Have `on_change` called at each change of state. Returns what ends that."""
