"""What the engine reports of itself after a start."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

__all__ = ["Buffer", "BufferKind", "CacheReport", "Loaded"]


class BufferKind(StrEnum):
    """The classes of memory that an engine allocates."""

    MODEL = "model"
    KV = "KV cache"
    RECURRENT = "recurrent state"
    COMPUTE = "compute"
    OUTPUT = "output"


@dataclass(frozen=True, slots=True)
class Buffer:
    """One allocation. `n_bytes` is exact to the engine's own print-out: 0.01 MiB."""

    device: str
    kind: BufferKind
    n_bytes: int


@dataclass(frozen=True, slots=True)
class CacheReport:
    """One KV cache or recurrent-state cache as the engine laid it out.

    Attributes:
        kind: KV or RECURRENT.
        cells: tokens per stream (KV) or sequences (RECURRENT).
        layers: blocks that it serves.
        type_k, type_v: storage types (of R and S for a recurrent state).
        n_bytes: K and V together (R, S and other rows together).
    """

    kind: BufferKind
    cells: int
    layers: int
    type_k: str
    type_v: str
    n_bytes: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """The engine's own account of a finished start.

    Attributes:
        build: build number or package version of the engine.
        slots, context_tokens: as the engine set them up; the context is that of one slot.
        buffers: in the order of allocation.
        caches: in the order of creation.
        start_s: from the start of the process until it was ready.
    """

    build: str
    slots: int
    context_tokens: int
    buffers: tuple[Buffer, ...]
    caches: tuple[CacheReport, ...]
    start_s: float

    def bytes_of(self, kind: BufferKind) -> int:
        """All buffers of a class, on every device."""
        return sum(b.n_bytes for b in self.buffers if b.kind is kind)

    def bytes_on(self, device: str) -> int:
        """All buffers of a device."""
        return sum(b.n_bytes for b in self.buffers if b.device == device)

    @property
    def devices(self) -> tuple[str, ...]:
        """Devices with a buffer, in the order of first use."""
        return tuple(dict.fromkeys(b.device for b in self.buffers))
