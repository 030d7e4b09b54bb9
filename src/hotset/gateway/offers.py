"""What the pool is given: models that can be served, and someone who starts them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Protocol

from hotset.core.errors import EngineProblem
from hotset.core.settings import Secret
from hotset.gateway.ledger import Bytes, Model
from hotset.gateway.names import Name
from hotset.gateway.pool import Capability

__all__ = ["Claims", "EngineHandle", "Offer", "StartWatch", "Starter"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Offer:
    """One model that clients can ask for.

    Attributes:
        need: what it takes, as planned for this machine.
        context_tokens: as planned; None where no plan could be made.
        n_bytes, created_s: of its files.
        slots: requests at the same time.
        ttl_s: idle time after which it leaves; None for never.
        is_pinned: stays once it is loaded.
    """

    name: Name
    need: Bytes
    capabilities: frozenset[Capability] = frozenset({Capability.CHAT})
    context_tokens: int | None = None
    n_bytes: int = 0
    created_s: int = 0
    slots: int = 1
    ttl_s: float | None = None
    is_pinned: bool = False

    def model(self) -> Model:
        """As the scheduler keeps it, before anything has happened."""
        return Model(
            self.name.id,
            self.need,
            slots=self.slots,
            ttl_s=self.ttl_s,
            is_pinned=self.is_pinned,
        )


class EngineHandle(Protocol):
    """An engine that answers. Its methods may block, and may be called from any thread."""

    @property
    def url(self) -> str: ...
    @property
    def api_key(self) -> Secret | None: ...
    @property
    def pid(self) -> int: ...
    @property
    def held(self) -> Bytes:
        """What it takes by its plan."""

    @property
    def context_tokens(self) -> int: ...
    def is_alive(self) -> bool: ...
    def died(self) -> EngineProblem:
        """How it ended, for people."""

    def num_expert_look_ups(self) -> tuple[int, int]:
        """Hits and requests of the expert store; zeros without it."""

    def stop(self, *, grace_s: float) -> None:
        """End it, politely for so long, and give back all that it used."""

    def kill(self) -> None:
        """End its process at once, also while `stop` is at work, which gives back the rest."""


@dataclass(frozen=True, slots=True)
class StartWatch:
    """Who looks on while an engine starts. The calls come from other threads.

    Attributes:
        on_line: each line that the engine prints, also after the start.
        on_fraction: how much of the weights is in memory, 0 to 1; None outside that phase.
        on_pid: its process, as soon as there is one.
        cancel: set to call the start off.
    """

    on_line: Callable[[str], None]
    on_fraction: Callable[[float | None], None]
    on_pid: Callable[[int], None]
    cancel: threading.Event


@dataclass(frozen=True, slots=True)
class Claims:
    """What engines have of this machine, and may still take.

    Attributes:
        pids: their processes.
        held: by their plans, all together.
    """

    pids: Sequence[int]
    held: Bytes


class Starter(Protocol):
    """Plans and starts engines; measures what they may take."""

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> EngineHandle:
        """Plan anew within these bytes and start. Blocks; called on a thread of its own.

        Raises:
            HotsetError: it cannot be started, or was called off; then nothing of it is left.
        """

    def room(self, pids: Sequence[int]) -> Bytes:
        """What all engines together may take now: what is free, and what these processes have.

        Takes about a millisecond.
        """

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        """Read the model's file into memory that nobody claims, until `cancel` is set.

        Blocks; called on a thread of its own.

        Returns:
            A line about what was done, for its log; empty for nothing.

        Raises:
            OSError: the file cannot be read.
        """
