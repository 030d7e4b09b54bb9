"""How an engine is asked to keep what it has seen."""

from __future__ import annotations

from dataclasses import dataclass

from hotset.core.tensortypes import TensorType

__all__ = ["CacheSettings"]


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """How an engine is asked to keep what it has seen.

    Attributes:
        context_tokens: for all slots together, as llama.cpp counts it; at least 1.
        slots: requests served at once; at least 1.
        type_k, type_v: storage types of the caches.
        ubatch_tokens: tokens computed at once; at least 1.
        is_unified: all slots share one pool of cells instead of equal parts.
        has_flash_attention: it was not switched off. The engine's `auto` counts as on: it lays
            out the caches before it decides.
        has_full_window: sliding-window blocks keep the whole context, too.
        draft_tokens: tokens drafted at once, for which the engine keeps snapshots of a recurrent
            state where the family allows it.
    """

    context_tokens: int
    slots: int
    type_k: TensorType
    type_v: TensorType
    ubatch_tokens: int
    is_unified: bool = False
    has_flash_attention: bool = True
    has_full_window: bool = False
    draft_tokens: int = 0

    @property
    def n_streams(self) -> int:
        """Separate pools of cells."""
        return 1 if self.is_unified else self.slots
