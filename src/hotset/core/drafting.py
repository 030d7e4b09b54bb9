"""What it takes to draft with a model's own multi-token-prediction (MTP) head.

An engine that is told to (`--spec-type draft-mtp`) loads the MTP blocks, makes a second context for
them, and keeps the recurrent states of the main one once more for every token that it drafts. Read
off llama.cpp: common_speculative_init_result and common_base_params_to_speculative in
common/speculative.cpp (the second context has the main one's length and batch, and cache types of
its own), `create_memory` in src/llama-model.cpp (its caches cover the MTP blocks and no others),
common_context_params_to_llama in common/common.cpp (the states), `graph_mtp` in src/models (what is
computed).

Weights and caches of a block lie where its unit lies (`core/parts.py`): MTP blocks are units like
any, right before the output.

An engine from before a family's head was written (b10434 for glm4moe) loads none of it, drafts or
not, and keeps a KV cache for it all the same, in both contexts. No file says which engine it will
meet, so that is told as a bound of its own.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotset.core.compute import batch_tokens, compute_bytes_estimate, mask_bytes
from hotset.core.heap import Held
from hotset.core.memory import (
    CacheSettings,
    cache_bytes,
    context_cells,
    layer_cache_bytes,
    window_cells,
)
from hotset.core.modelspec import CacheKind, LayerSpec, ModelSpec
from hotset.core.replay import Card, ReplayBlock, can_replay
from hotset.core.tensortypes import TensorType, tensor_type_named

__all__ = [
    "DRAFT_CACHE_TYPE",
    "DRAFT_TOKENS",
    "Drafting",
    "drafting",
    "head_spec",
    "main_settings",
    "second_settings",
]

DRAFT_TOKENS = 3
"""Tokens drafted at once where nobody says otherwise (`--spec-draft-n-max`)."""

DRAFT_CACHE_TYPE = "F16"
"""Of the second context's K and V, whatever the main one has (`--spec-draft-type-k`, `-v`)."""


_F32_BYTES = 4
_PLACE_BYTES = 8
_MASK = "mask"
# What the replay of a head may miss: on a CPU the engine takes up to one row of the model's width
# more for each token than the order of a card's tensors explains (36 dry starts on a CPU).
_ROWS_MISSED = 1


@dataclass(frozen=True, slots=True, kw_only=True)
class Drafting:
    """What drafting adds to a start, bytes.

    Attributes:
        first_unit: of the MTP blocks.
        weights_bytes: of each MTP block, in their order.
        cache_bytes: of each MTP block in the second context.
        state_bytes: more for the states of the main context.
        main_compute_bytes: more for its buffers: states and outputs of the drafted tokens.
        compute_bytes: of the second context; an estimate, meant to be too much.
        unknown_head_cache_bytes: what an engine that does not know this head keeps instead of
            `cache_bytes`, in both contexts together; 0 for heads that no such engine is known of.
    """

    first_unit: int
    weights_bytes: tuple[int, ...]
    cache_bytes: tuple[int, ...]
    state_bytes: int
    main_compute_bytes: int
    compute_bytes: int
    unknown_head_cache_bytes: int

    def share(self, units: range) -> tuple[int, int]:
        """Weights and caches of the MTP blocks among these units."""
        own = range(self.first_unit, self.first_unit + len(self.weights_bytes))
        blocks = [unit - self.first_unit for unit in own if unit in units]
        weights, caches = self.weights_bytes, self.cache_bytes
        return sum(weights[i] for i in blocks), sum(caches[i] for i in blocks)

    @property
    def total_bytes(self) -> int:
        """In an engine that knows the head."""
        caches = sum(self.cache_bytes) + self.state_bytes
        return sum(self.weights_bytes) + caches + self.compute_bytes + self.main_compute_bytes


def drafting(
    spec: ModelSpec,
    settings: CacheSettings,
    *,
    draft_tokens: int = DRAFT_TOKENS,
    cache_type: TensorType | None = None,
) -> Drafting | None:
    """What it adds to a start with `settings`; None where the model has no head, or the engine has
    no graph for it.

    Args:
        settings: of a start that does not draft.
        draft_tokens: at once; at least 1.
        cache_type: of the second context; None for the engine's default.
    """
    head = head_spec(spec)
    if head is None:
        return None
    second = second_settings(settings, cache_type)
    more = main_settings(settings, draft_tokens)
    states = cache_bytes(spec, more).recurrent - cache_bytes(spec, settings).recurrent
    compute = compute_bytes_estimate(spec, more) - compute_bytes_estimate(spec, settings)
    return Drafting(
        first_unit=spec.n_layers,
        weights_bytes=tuple(layer.n_bytes for layer in head.layers),
        cache_bytes=layer_cache_bytes(head, second),
        state_bytes=states,
        main_compute_bytes=compute,
        compute_bytes=_compute_bytes(head, second),
        unknown_head_cache_bytes=_unknown_cache_bytes(spec, head, settings, second),
    )


def main_settings(settings: CacheSettings, draft_tokens: int = DRAFT_TOKENS) -> CacheSettings:
    """Of the main context of an engine that drafts."""
    return replace(settings, draft_tokens=draft_tokens)


def second_settings(settings: CacheSettings, cache_type: TensorType | None = None) -> CacheSettings:
    """Of the context that drafts."""
    kind = cache_type or tensor_type_named(DRAFT_CACHE_TYPE)
    return replace(settings, type_k=kind, type_v=kind, draft_tokens=0)


def head_spec(spec: ModelSpec) -> ModelSpec | None:
    """The head as a model of its own, as the second context sees it; None without one."""
    if spec.head is None:
        return None
    return replace(
        spec,
        n_layers=len(spec.head.layers),
        n_mtp_layers=0,
        layers=spec.head.layers,
        working=spec.head.working,
        can_roll_back_state=False,
        head=None,
    )


def _unknown_cache_bytes(
    spec: ModelSpec, head: ModelSpec, settings: CacheSettings, second: CacheSettings
) -> int:
    """Caches of every block in the second context, and of the head's in the main one, too."""
    if not spec.head or not spec.head.is_unknown_to_some:
        return 0
    in_both = cache_bytes(head, settings).total + cache_bytes(head, second).total
    return in_both + cache_bytes(spec, second).total


def _compute_bytes(head: ModelSpec, settings: CacheSettings) -> int:
    """Of one batch in the second context. A head of several blocks computes one at a time."""
    is_plain = not head.working.lasting_elements and not head.working.selection.masks
    if not is_plain or not all(can_replay(layer.matrices) for layer in head.layers):
        return compute_bytes_estimate(head, settings)
    row = batch_tokens(settings) * head.n_embd * _F32_BYTES
    most = max(_replayed_bytes(head, layer, settings) for layer in head.layers)
    return most + _ROWS_MISSED * row


def _replayed_bytes(head: ModelSpec, layer: LayerSpec, settings: CacheSettings) -> int:
    n_tokens = batch_tokens(settings)
    is_window = layer.cache is CacheKind.WINDOW
    n_cells = window_cells(head, settings) if is_window else context_cells(settings)
    scores = places = 0
    if not settings.has_flash_attention:
        scores = head.n_heads * n_tokens * n_cells * _F32_BYTES
        places = n_tokens * head.v_padded_elements * _PLACE_BYTES
    graph = _Head(n_tokens, head.n_embd, head.experts.used if head.experts else 0)
    graph.join(mask_bytes(head, settings))
    graph.run(
        ReplayBlock(
            matrices=layer.matrices,
            is_in_ram=False,
            k_elements=layer.k_elements,
            scores_bytes=scores,
            mask_name=_MASK,
        )
    )
    graph.output(head.n_vocab * settings.slots * _F32_BYTES)
    return graph.peak_bytes + places


class _Head(Card):
    """One block between what joins it to the main model and the output.

    Its inputs leave their place when they have been used. In a graph of many blocks they are still
    there while a block is at its fullest; here the feed-forward part takes the mask's place.
    """

    def join(self, mask_bytes: int) -> None:
        """The main model's last state, given from outside, and the embeddings of tokens, normed and
        side by side, through one matrix."""
        heap, state = self._heap, self._residual
        self._arrive(*self._inputs)
        self._mask = heap.take(mask_bytes)
        embeddings = heap.take(self._row_bytes)
        both = heap.take(2 * self._row_bytes)
        heap.drop(state, embeddings)
        self._residual = heap.take(self._row_bytes)
        heap.drop(both)
        self._arrived |= {_MASK}

    def _mixed(self, block: ReplayBlock, q: Held, n_elements: int) -> Held:
        out = super()._mixed(block, q, n_elements)
        self._heap.drop(self._mask)
        return out
