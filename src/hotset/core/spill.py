"""Memory that a driver has quietly moved off a card: what an engine took against what is there.

A driver whose card is full need not refuse: amdgpu and xe put buffers into RAM that the card
reaches over its slot (GTT), and NVIDIA's driver for Windows into shared memory. Everything then
works, at a fraction of the speed. Some RAM behind a card is normal: pinned buffers, copies on their
way. So two signs have to agree: less on the card than the engine allocated there, and more behind
it than the plan pinned. The smaller of both counts.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotset.core.units import MIB

__all__ = ["CardMemory", "Held", "Spill", "spill_of"]

# Drivers round to pages of up to 2 MiB for each buffer, and an engine's log has its own rounding.
_LEAST_BYTES = 64 * MIB
_LEAST_SHARE = 0.02


@dataclass(frozen=True, slots=True)
class CardMemory:
    """One card at one moment, all processes together.

    Attributes:
        used_bytes, free_bytes: of its own memory.
        hosted_bytes: RAM that is used through it; None where the driver does not say.
    """

    used_bytes: int
    free_bytes: int
    hosted_bytes: int | None = None


@dataclass(frozen=True, slots=True)
class Held:
    """What one engine's processes have of one card.

    Attributes:
        own_bytes: of the card's memory.
        hosted_bytes: of RAM, through the card.
        evicted_bytes: meant for the card and moved away, where the driver counts that.
    """

    own_bytes: int = 0
    hosted_bytes: int = 0
    evicted_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Spill:
    """What lies in RAM instead of on the card.

    Attributes:
        device: the engine's name of the card.
        n_bytes: at least so many.
        lasting_bytes: the part that other programs, which have grown since the start, do not
            explain: it would happen again.
        is_inferred: the driver does not say what lies in RAM; the card is full, and holds less.
    """

    device: str
    n_bytes: int
    lasting_bytes: int
    is_inferred: bool = False


def spill_of(
    device: str,
    *,
    allocated_bytes: int,
    pinned_bytes: int,
    before: CardMemory,
    after: CardMemory,
    held: Held | None,
) -> Spill | None:
    """What was moved off a card of its own memory (for one that shares RAM nothing can be).

    Args:
        allocated_bytes: what the engine says it took there. What the driver takes besides is not
            in it, so a small spill may hide behind that, and no spill is made up.
        pinned_bytes: RAM that the engine took for copies to and from cards.
        before: just before the start.
        after: once an answer has been computed, so that everything was in use once.
        held: the engine's part; None where the driver does not say whose it is. Then everything
            that has changed since `before` counts as the engine's.
    """
    grown = after.used_bytes - before.used_bytes
    if held is not None:
        own, hosted, evicted = held.own_bytes, held.hosted_bytes, held.evicted_bytes
        others = max(0, grown - own)
        short = allocated_bytes - own
        moved = min(short, hosted - pinned_bytes)
    else:
        evicted = others = 0
        short = allocated_bytes - max(0, grown)
        moved = short
        if after.hosted_bytes is not None and before.hosted_bytes is not None:
            moved = min(short, after.hosted_bytes - before.hosted_bytes - pinned_bytes)
        elif after.free_bytes > short:
            return None  # there is room for it: it was never there, or somebody else has left
    n_bytes = max(evicted, moved)
    if n_bytes <= max(_LEAST_BYTES, int(_LEAST_SHARE * allocated_bytes)):
        return None
    is_inferred = held is None and after.hosted_bytes is None
    return Spill(device, n_bytes, max(0, n_bytes - others), is_inferred)
