"""What a model keeps of the tokens it has seen: its caches, to the byte.

Mirrors llama.cpp: src/llama-context.cpp (context and batch sizes), src/llama-kv-cache.cpp,
src/llama-kv-cache-iswa.cpp (window), src/llama-memory-recurrent.cpp (state).
"""

from __future__ import annotations

from dataclasses import dataclass

from hotset.core.cachesettings import CacheSettings
from hotset.core.modelspec import CacheKind, LayerSpec, ModelSpec
from hotset.core.refusals import check_cache_types

__all__ = [
    "CONTEXT_STEP_TOKENS",
    "CacheBytes",
    "CacheSettings",
    "cache_bytes",
    "cell_bytes",
    "context_cells",
    "layer_cache_bytes",
    "n_snapshots",
    "window_cells",
]

CONTEXT_STEP_TOKENS = 256
"""The engine rounds every context and every window up to a multiple of it."""

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class CacheBytes:
    """Bytes by kind of cache, all blocks and slots together.

    Attributes:
        full: K and V of full-attention blocks.
        window: K and V of sliding-window blocks.
        latent: compressed K of MLA blocks.
        indexer: keys of a sparse-attention indexer.
        recurrent: convolution and recurrent state.
    """

    full: int
    window: int
    latent: int
    indexer: int
    recurrent: int

    @property
    def total(self) -> int:
        return self.full + self.window + self.latent + self.indexer + self.recurrent


def context_cells(settings: CacheSettings) -> int:
    """Tokens that one pool of cells holds: the context, or a slot's part of it, rounded up."""
    n_cells = _round_up(settings.context_tokens)
    return n_cells if settings.is_unified else _round_up(n_cells // settings.slots)


def window_cells(spec: ModelSpec, settings: CacheSettings) -> int:
    """Tokens that one pool holds for sliding-window blocks: the window and one batch."""
    n_cells = context_cells(settings)
    if settings.has_full_window:
        return n_cells
    sharers = settings.slots if settings.is_unified else 1
    n_batch = min(settings.ubatch_tokens, settings.context_tokens)
    return _round_up(min(n_cells, spec.window_tokens * sharers + n_batch))


def cache_bytes(spec: ModelSpec, settings: CacheSettings) -> CacheBytes:
    """What the engine allocates for caches and states.

    Raises:
        ConfigProblem: when the cache types do not fit the model (see `check_cache_types`).
    """
    check_cache_types(spec, settings)
    n_context = context_cells(settings) * settings.n_streams
    n_window = window_cells(spec, settings) * settings.n_streams
    by_kind = dict.fromkeys(CacheKind, 0)
    indexer = state = 0
    for layer in spec.layers:
        n_cells = n_window if layer.cache is CacheKind.WINDOW else n_context
        by_kind[layer.cache] += n_cells * cell_bytes(spec, layer, settings)
        indexer += n_context * _indexer_cell_bytes(layer, settings)
        state += layer.state_r_elements + layer.state_s_elements
    return CacheBytes(
        full=by_kind[CacheKind.FULL],
        window=by_kind[CacheKind.WINDOW],
        latent=by_kind[CacheKind.LATENT],
        indexer=indexer,
        recurrent=state * _F32_BYTES * settings.slots * n_snapshots(spec, settings),
    )


def layer_cache_bytes(spec: ModelSpec, settings: CacheSettings) -> tuple[int, ...]:
    """The same bytes by block: caches, indexer and state of each, in the order of `spec.layers`.

    Where a block is placed, they are placed, too (llama-kv-cache.cpp, llama-memory-recurrent.cpp).
    """
    n_context = context_cells(settings) * settings.n_streams
    n_window = window_cells(spec, settings) * settings.n_streams
    n_states = settings.slots * n_snapshots(spec, settings)
    return tuple(
        (n_window if layer.cache is CacheKind.WINDOW else n_context)
        * cell_bytes(spec, layer, settings)
        + n_context * _indexer_cell_bytes(layer, settings)
        + (layer.state_r_elements + layer.state_s_elements) * _F32_BYTES * n_states
        for layer in spec.layers
    )


def n_snapshots(spec: ModelSpec, settings: CacheSettings) -> int:
    """How often each recurrent state is kept: once, and once for each drafted token where the
    family can go back to it."""
    return 1 + (settings.draft_tokens if spec.can_roll_back_state else 0)


def cell_bytes(spec: ModelSpec, layer: LayerSpec, settings: CacheSettings) -> int:
    """K and V of one token in one block, bytes, without the indexer's."""
    n_v = layer.v_elements
    if n_v and not settings.has_flash_attention:
        n_v = spec.v_padded_elements  # the transposed V cache has one width for all blocks
    return settings.type_k.row_bytes(layer.k_elements) + settings.type_v.row_bytes(n_v)


def _indexer_cell_bytes(layer: LayerSpec, settings: CacheSettings) -> int:
    keys = settings.type_k.row_bytes(layer.indexer_elements)
    return keys + settings.type_v.row_bytes(layer.indexer_v_elements)


def _round_up(n_tokens: int) -> int:
    return -(-n_tokens // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS
