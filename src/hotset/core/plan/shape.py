"""What decides the size of an engine's compute buffers, as a short text.

Two starts of one model by one engine with the same shape take the same buffers.
"""

from __future__ import annotations

from hotset.core.memory import CacheSettings

__all__ = ["device_shape", "ram_shape"]


def device_shape(settings: CacheSettings, *, is_hosted: bool, n_blocks_in_ram: int = 0) -> str:
    """On a device; `is_hosted`: weights that it computes with stay in RAM: `n_blocks_in_ram` whole
    blocks, or only experts."""
    if n_blocks_in_ram:
        return f"{_batch(settings)}, {n_blocks_in_ram} blocks in RAM"
    return f"{_batch(settings)}, {'experts in RAM' if is_hosted else 'whole blocks'}"


def ram_shape(settings: CacheSettings, *, is_alone: bool, has_store: bool = False) -> str:
    """In RAM; `is_alone`: no device computes; `has_store`: the expert store computes experts."""
    stored = ", experts in the store" if has_store else ""
    return f"{_batch(settings)}, {'alone' if is_alone else 'beside devices'}{stored}"


def _batch(settings: CacheSettings) -> str:
    kv = f"{settings.type_k.name}/{settings.type_v.name}"
    tokens = f"{settings.context_tokens} tokens in {settings.slots} slots"
    return f"{tokens}, batch of {settings.ubatch_tokens}, KV {kv}"
