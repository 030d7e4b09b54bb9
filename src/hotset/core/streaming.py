"""Blocks in RAM beside a card: what it takes to compute their large batches there."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from hotset.core.compute import batch_tokens, compute_bytes_estimate
from hotset.core.memory import CacheSettings, cell_bytes, context_cells, window_cells
from hotset.core.modelspec import CacheKind, LayerSpec, ModelSpec
from hotset.core.replay import Card, Known, ReplayBlock, can_replay

__all__ = ["Streams", "stored_bytes"]

_F32_BYTES = 4
_F16_BYTES = 2
_PLACE_BYTES = 8
# A heap repeats itself once every kind of block has come so often.
_REPEATS = 3
_LEAST_ROTATION = 64


class Streams:
    """Batches of one model on cards beside which its first blocks stay in RAM.

    Keeps what it has found out, since a search for a placement asks for many numbers of blocks.
    """

    def __init__(self, spec: ModelSpec) -> None:
        self._spec = spec
        self._is_known = _is_known(spec)
        self._blocks: dict[tuple[object, ...], ReplayBlock] = {}
        self._known: dict[CacheSettings, Known] = {}
        self._orders: dict[int, list[tuple[LayerSpec, bool]]] = {}

    def compute_bytes(self, settings: CacheSettings, n_in_ram: int, copied_bytes: int) -> int:
        """What compute buffers take on the card.

        Args:
            n_in_ram: blocks in RAM, counted from the first; 1 or more.
            copied_bytes: the largest copies of weights, for blocks of which it is not known how
                they are computed.
        """
        spec = self._spec
        if not self._is_known:
            caches = max(
                _k_bytes(spec, layer, settings) + _v_bytes(spec, layer, settings)
                for layer in spec.layers[: spec.n_layers]
            )
            return compute_bytes_estimate(spec, settings) + copied_bytes + caches
        card = _card(spec, settings, self._known.setdefault(settings, {}))
        for layer, is_in_ram in self._order(n_in_ram):
            card.run(self._block(settings, layer, is_in_ram=is_in_ram))
        card.output(spec.n_vocab * settings.slots * _F32_BYTES)
        return card.peak_bytes + _place_bytes(spec, settings)

    def _order(self, n_in_ram: int) -> list[tuple[LayerSpec, bool]]:
        """The blocks of a batch that are worth a replay, and whether each is in RAM."""
        if n_in_ram not in self._orders:
            layers = self._spec.layers[: self._spec.n_layers]
            self._orders[n_in_ram] = [
                *((layer, True) for layer in _until_it_repeats(layers[:n_in_ram])),
                *((layer, False) for layer in _until_it_repeats(layers[n_in_ram:])),
            ]
        return self._orders[n_in_ram]

    def _block(self, settings: CacheSettings, layer: LayerSpec, *, is_in_ram: bool) -> ReplayBlock:
        """One object for all blocks of a kind."""
        key = settings, is_in_ram, _kind(layer)
        if key not in self._blocks:
            self._blocks[key] = _block(self._spec, layer, settings, is_in_ram=is_in_ram)
        return self._blocks[key]


def stored_bytes(spec: ModelSpec, settings: CacheSettings, n_in_ram: int) -> int:
    """What comes back to RAM of a batch, for the caches of one block there: K and V, or what goes
    into a recurrent block's convolution, with its states as they are read and written."""
    n_tokens = batch_tokens(settings)
    layers = spec.layers[: min(n_in_ram, spec.n_layers)]
    work = spec.working.recurrent
    most = 0
    for layer in layers:
        n_elements = layer.k_elements + layer.v_elements
        n_states = layer.state_r_elements + layer.state_s_elements
        if n_states:
            n_elements = work.gap_elements or work.held_elements
        most = max(most, n_tokens * n_elements + 2 * n_states * settings.slots)
    return most * _F32_BYTES + _place_bytes(spec, settings)


def _place_bytes(spec: ModelSpec, settings: CacheSettings) -> int:
    """Without flash attention every element of a V row has a place of its own, an int64."""
    if settings.has_flash_attention:
        return 0
    return batch_tokens(settings) * spec.v_padded_elements * _PLACE_BYTES


def _is_known(spec: ModelSpec) -> bool:
    """Whether all blocks can be replayed, and nothing is held beside them."""
    is_plain = not spec.working.lasting_elements and not spec.working.selection.masks
    return is_plain and all(can_replay(layer.matrices) for layer in spec.layers[: spec.n_layers])


def _kind(layer: LayerSpec) -> tuple[int, CacheKind]:
    return id(layer.matrices), layer.cache


def _until_it_repeats(layers: Sequence[LayerSpec]) -> Sequence[LayerSpec]:
    """The first of them, until every kind has come so often."""
    kinds = [_kind(layer) for layer in layers]
    missing = Counter({kind: min(n, _REPEATS) for kind, n in Counter(kinds).items()})
    n_missing = missing.total()
    for index, kind in enumerate(kinds):
        if not n_missing:
            return layers[:index]
        if missing[kind]:
            missing[kind] -= 1
            n_missing -= 1
    return layers


def _card(spec: ModelSpec, settings: CacheSettings, known: Known) -> Card:
    return Card(
        batch_tokens(settings),
        spec.n_embd,
        spec.experts.used if spec.experts else 0,
        k_rotation=_k_rotation(spec, settings),
        v_rotation=_v_rotation(spec, settings),
        known=known,
    )


def _block(
    spec: ModelSpec, layer: LayerSpec, settings: CacheSettings, *, is_in_ram: bool
) -> ReplayBlock:
    n_places = batch_tokens(settings) * _cells(spec, layer, settings)
    scores = spec.n_heads * n_places * _F32_BYTES
    return ReplayBlock(
        matrices=layer.matrices,
        is_in_ram=is_in_ram,
        k_elements=layer.k_elements,
        k_bytes=_k_bytes(spec, layer, settings),
        v_bytes=_v_bytes(spec, layer, settings),
        scores_bytes=0 if settings.has_flash_attention else scores,
        state_r_bytes=layer.state_r_elements * settings.slots * _F32_BYTES,
        state_s_bytes=layer.state_s_elements * settings.slots * _F32_BYTES,
        mask_name="window" if layer.cache is CacheKind.WINDOW else "context",
        mask_bytes=n_places * (_F16_BYTES if settings.has_flash_attention else _F32_BYTES),
    )


def _cells(spec: ModelSpec, layer: LayerSpec, settings: CacheSettings) -> int:
    if layer.cache is CacheKind.WINDOW:
        return window_cells(spec, settings)
    return context_cells(settings)


def _k_bytes(spec: ModelSpec, layer: LayerSpec, settings: CacheSettings) -> int:
    n_cells = _cells(spec, layer, settings) * settings.n_streams
    return n_cells * settings.type_k.row_bytes(layer.k_elements)


def _v_bytes(spec: ModelSpec, layer: LayerSpec, settings: CacheSettings) -> int:
    """Where K holds everything, V is a view of it, and is copied once more."""
    if layer.cache is CacheKind.LATENT:
        return _k_bytes(spec, layer, settings)
    n_cells = _cells(spec, layer, settings) * settings.n_streams
    return n_cells * cell_bytes(spec, layer, settings) - _k_bytes(spec, layer, settings)


def _k_rotation(spec: ModelSpec, settings: CacheSettings) -> int:
    """The largest power of two times 64 that divides the width of a head (llama-kv-cache.cpp)."""
    if spec.is_latent or settings.type_k.block_elements == 1 or not spec.k_head_elements:
        return 0
    head, side = spec.k_head_elements[-1], _LEAST_ROTATION
    if head % side:
        return 0
    while head % (2 * side) == 0:
        side *= 2
    return side


def _v_rotation(spec: ModelSpec, settings: CacheSettings) -> int:
    if spec.is_latent or settings.type_v.block_elements == 1 or not spec.v_head_elements:
        return 0
    return 0 if spec.v_head_elements[-1] % _LEAST_ROTATION else _LEAST_ROTATION
