"""What the engine's compute buffers take: the worst graph that it reserves memory for.

Mirrors llama.cpp: llama_context::sched_reserve in src/llama-context.cpp (a batch of the physical
size, one output for each slot), the inputs in src/llama-graph.cpp. Within a block
`core/families/working.py` says what is held at once; here are the terms beside it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from hotset.core.memory import (
    CONTEXT_STEP_TOKENS,
    CacheSettings,
    cache_bytes,
    context_cells,
    n_snapshots,
    window_cells,
)
from hotset.core.modelspec import CacheKind, ModelSpec

__all__ = ["batch_tokens", "compute_bytes_estimate", "input_bytes", "largest_context", "mask_bytes"]

_F16_BYTES = 2
_F32_BYTES = 4
_MAX_CONTEXT_TOKENS = 1 << 24  # beyond any model; bounds the search where a file names no limit

# Rows of the model's width beside what a block holds: two inputs that stay (embeddings given from
# outside, alone or mixed with tokens), the residual, the block's normalized input, and the gap
# that the former residual has left.
_ROWS_BESIDE = 5
# Embeddings in RAM for a card: those two, the rows of mixed tokens, and those that go on.
_ROWS_OF_INPUT = 4
# Copies of experts smaller than this part of what a block holds leave no gap that is of use.
_SMALL_COPY_SHARE = 4
# Numbers, positions, places in the caches of a token: int32 and int64 inputs.
_INDEX_BYTES = 64
# A sparse-attention indexer has inputs of its own: pooled keys as F32 and their places, a mask of
# them, and for every token the cells behind the last pool. Its logits find no gap.
_POOLED_KEY_SHARE = 0.75
_POOL_MASK_SHARE = 0.5
_POOL_TOKEN_BYTES = 2048


def batch_tokens(settings: CacheSettings) -> int:
    """Tokens of the largest batch: whole ones for every slot."""
    n_tokens = min(settings.ubatch_tokens, settings.context_tokens)
    return -(-n_tokens // settings.slots) * settings.slots


def mask_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """The attention masks of a batch: one for each kind of cache."""
    element_bytes = _F16_BYTES if settings.has_flash_attention else _F32_BYTES
    kinds = {layer.cache for layer in spec.layers}
    n_cells = window_cells(spec, settings) if CacheKind.WINDOW in kinds else 0
    if kinds - {CacheKind.WINDOW, CacheKind.RECURRENT}:
        n_cells += context_cells(settings)
    return batch_tokens(settings) * n_cells * element_bytes


def compute_bytes_estimate(
    spec: ModelSpec,
    settings: CacheSettings,
    *,
    copied_bytes: int = 0,
    has_experts: bool = True,
) -> int:
    """What the engine's compute buffers take on the device that computes the blocks.

    Not exact to the byte, and meant to be too much rather than too little.

    Args:
        copied_bytes: of experts in RAM, what is on the device at once to compute them there.
        has_experts: whether it computes the routed experts, too, if there are any.
    """
    n_tokens = batch_tokens(settings)
    working = spec.working
    beside = n_tokens * (_ROWS_BESIDE * spec.n_embd + working.lasting_elements)
    ffn = n_tokens * working.ffn_elements * _F32_BYTES
    if not has_experts:
        beside += n_tokens * working.parted_elements
        ffn = n_tokens * working.unrouted_elements * _F32_BYTES
    if copied_bytes < ffn // _SMALL_COPY_SHARE:
        ffn += copied_bytes
    else:  # what they leave closes the gaps between the others
        ffn = max(ffn, n_tokens * working.routed_elements * _F32_BYTES + copied_bytes)
    largest = max(
        ffn,
        n_tokens * working.setup_elements * _F32_BYTES,
        n_tokens * working.projected_elements * _F32_BYTES,
        _attention_bytes(spec, settings),
        _recurrent_elements(spec, settings) * _F32_BYTES,
        # one output for each slot and each token that is drafted for it
        spec.n_vocab * settings.slots * (1 + settings.draft_tokens) * _F32_BYTES,
    )
    return _index_bytes(spec, settings) + beside * _F32_BYTES + largest


def input_bytes(spec: ModelSpec, settings: CacheSettings, *, stored_bytes: int = 0) -> int:
    """What RAM holds of a batch that cards compute: masks, numbers, embeddings.

    Args:
        stored_bytes: what comes back from the cards for caches in RAM, at once. It takes the place
            of all embeddings but those that were given from outside.
    """
    n_tokens = batch_tokens(settings)
    row = n_tokens * spec.n_embd * _F32_BYTES
    lasting = n_tokens * spec.working.lasting_elements * _F32_BYTES
    rows = row + max((_ROWS_OF_INPUT - 1) * row, stored_bytes)
    return _index_bytes(spec, settings) + lasting + rows


def largest_context(
    spec: ModelSpec,
    settings: CacheSettings,
    budget_bytes: int,
    *,
    compute_bytes: Callable[[ModelSpec, CacheSettings], int] = compute_bytes_estimate,
) -> int:
    """The largest context that fits, up to the trained one for every slot.

    Args:
        spec: the model.
        settings: everything but `context_tokens`, which is ignored.
        budget_bytes: for caches (`cache_bytes`) and compute buffers.
        compute_bytes: of those buffers; where earlier starts correct them, it need not grow with
            the context, and then what is found fits, but a larger one may, too.

    Returns:
        Tokens for all slots together, a multiple of 256; 0 if not even 256 fit.

    Raises:
        ConfigProblem: as `cache_bytes`.
    """

    def fits(n_steps: int) -> bool:
        tried = replace(settings, context_tokens=n_steps * CONTEXT_STEP_TOKENS)
        return cache_bytes(spec, tried).total + compute_bytes(spec, tried) <= budget_bytes

    trained_steps = -(-spec.context_tokens // CONTEXT_STEP_TOKENS) * settings.n_streams
    low, high = 0, trained_steps or _MAX_CONTEXT_TOKENS // CONTEXT_STEP_TOKENS
    while low < high:  # `low` steps fit, `high + 1` do not
        middle = (low + high + 1) // 2
        low, high = (middle, high) if fits(middle) else (low, middle - 1)
    return low * CONTEXT_STEP_TOKENS


def _index_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """Inputs that last for the whole batch: masks, positions, places; rotations of heads."""
    masks = mask_bytes(spec, settings)
    lasting = masks + batch_tokens(settings) * _INDEX_BYTES + _rotation_bytes(spec, settings)
    keys = max((layer.indexer_elements for layer in spec.layers), default=0)
    if keys:
        n_cells, n_tokens = context_cells(settings), batch_tokens(settings)
        lasting += int(n_cells * (keys * _POOLED_KEY_SHARE + n_tokens * _POOL_MASK_SHARE))
        lasting += n_tokens * _POOL_TOKEN_BYTES + spec.n_vocab * settings.slots * _F32_BYTES
    return lasting


def _attention_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    n_tokens, working = batch_tokens(settings), spec.working
    elements = n_tokens * (working.attention_elements + working.selection.elements)
    if not settings.has_flash_attention:
        elements += _score_elements(spec, settings)
    scores = n_tokens * context_cells(settings) * working.selection.score_bytes
    masks = working.selection.masks * mask_bytes(spec, settings)
    if working.selection.masks:  # an indexer's buffers close no gap that a recurrent block left
        elements += 2 * _state_elements(spec)
    return elements * _F32_BYTES + scores + masks


def _score_elements(spec: ModelSpec, settings: CacheSettings) -> int:
    """Without flash attention: every head's weight of every cell, and where each V row goes.

    The V cache is transposed then, and every element of a row has a place of its own, an int64.
    """
    kinds = {layer.cache for layer in spec.layers}
    is_window_only = CacheKind.WINDOW in kinds and CacheKind.FULL not in kinds
    n_cells = window_cells(spec, settings) if is_window_only else context_cells(settings)
    n_caches = len(kinds & {CacheKind.WINDOW, CacheKind.FULL})
    n_places = 2 * n_caches * spec.v_padded_elements
    n_beside = n_places + spec.n_embd
    return batch_tokens(settings) * (spec.n_heads * n_cells + n_beside)


def _recurrent_elements(spec: ModelSpec, settings: CacheSettings) -> int:
    """A recurrent block with its states as they are read, and what comes out: values of tokens and
    new states in one tensor.

    That one takes the place of what is done with, if it fits there: in a batch large enough. No
    smaller batch is counted as more, though.
    """
    work, n_tokens = spec.working.recurrent, batch_tokens(settings)
    states = _state_elements(spec) * settings.slots
    new = states * n_snapshots(spec, settings)
    spare = work.gap_elements - work.result_elements  # of a token, for the new states
    if spare > 0 and n_tokens * spare >= new:
        n_apart = new // spare  # tokens up to which it does not fit
        return max(
            n_tokens * work.held_elements + states,
            n_apart * (work.held_elements + work.result_elements) + states + new,
        )
    return n_tokens * (work.held_elements + work.result_elements) + states + new


def _state_elements(spec: ModelSpec) -> int:
    """The largest state of a block, for one sequence."""
    sizes = (layer.state_r_elements + layer.state_s_elements for layer in spec.layers)
    return max(sizes, default=0)


def _rotation_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """Heads are rotated before they are stored as blocks: a square matrix for every width."""
    sides = ((settings.type_k, spec.k_head_elements), (settings.type_v, spec.v_head_elements))
    return sum(
        width * width * _F32_BYTES
        for type_, widths in sides
        if type_.block_elements > 1
        for width in widths
    )
