"""What the engine refuses: each rule with its source, and the reason for people.

The planner never combines what is here, and a wish for it is refused before a start. An engine that
took it would end while it loads, some of them without a word. What is refused whatever the model is
(ranges, names of types, V quantized without flash attention) is in `core/settings.py`.
"""

from __future__ import annotations

from collections.abc import Callable

from hotset.core.cachesettings import CacheSettings
from hotset.core.errors import ConfigProblem
from hotset.core.modelspec import ModelSpec

__all__ = ["check_cache_types", "refusal"]

# llama_init_from_model switches flash attention off for it (src/llama-context.cpp).
_WITHOUT_FLASH_ATTENTION = frozenset({"grok"})
# llama_context::graph_max_nodes: slots of the graph's table for each tensor of the model. Families
# with longer graphs have four times as many and more, which never fill.
_SLOTS_PER_TENSOR = 8
_LEAST_SLOTS = 1024
# Nodes of a block with routed experts, by the engine's own count in dry starts: those of mixtral,
# more for norms of heads (qwen3moe) and for scaled residuals (granite), two for each expert in use;
# 6 each for turning keys with queries, and values with what comes out of attention, where heads are
# turned before they are stored as blocks. Beside the blocks, 8, and as many inputs.
_BLOCK_NODES = 43
_NORM_NODES = 4
_SCALE_NODES = 2
_EXPERT_NODES = 2
_TURNING_NODES = 6
_TURNED_MULTIPLE = 64
_NODES_BESIDE = 16
_CACHES_PER_BLOCK = 2


def check_cache_types(spec: ModelSpec, settings: CacheSettings) -> None:
    """Refuse what the engine refuses of `settings` for this model.

    Raises:
        ConfigProblem: naming the type, what is in its way, and what to use.
    """
    reason = refusal(spec, settings)
    if reason:
        raise ConfigProblem(reason)


def refusal(spec: ModelSpec, settings: CacheSettings) -> str | None:
    """The first rule that `settings` break, as a sentence; None where the engine takes them."""
    reasons = (rule(spec, settings) for rule in _RULES)
    return next((reason for reason in reasons if reason), None)


def _latent_types_differ(spec: ModelSpec, settings: CacheSettings) -> str | None:
    """llama_init_from_model: "model does not support different K and V cache types"."""
    k, v = settings.type_k, settings.type_v
    if not spec.is_latent or k == v:
        return None
    return (
        f"V cache type {v.name}: differs from the K cache type {k.name}, but {spec.name} keeps "
        "both in one latent cache; set both alike"
    )


def _has_no_flash_attention(spec: ModelSpec, settings: CacheSettings) -> str | None:
    """llama_init_from_model: "quantized V cache requires flash_attn to be enabled"."""
    v = settings.type_v
    if v.block_elements == 1:
        return None
    if spec.architecture in _WITHOUT_FLASH_ATTENTION:
        return (
            f"V cache type {v.name}: needs flash attention, which the engine has not for"
            f" {spec.architecture}; use F16"
        )
    if not settings.has_flash_attention:
        return f"V cache type {v.name}: needs flash attention, which is off; turn it on or use F16"
    return None


def _blocks_do_not_divide(spec: ModelSpec, settings: CacheSettings) -> str | None:
    """llama_init_from_model: "cache type with block size does not divide n_embd_head"; without
    flash attention whole rows must be divided (ggml_row_size)."""
    k, v = settings.type_k, settings.type_v
    k_widths = list(spec.k_head_elements) if settings.has_flash_attention else []
    k_widths += [w for layer in spec.layers for w in (layer.k_elements, layer.indexer_elements)]
    for side, type_, widths in (("K", k, k_widths), ("V", v, spec.v_head_elements)):
        misfit = next((w for w in widths if w % type_.block_elements), None)
        if misfit is not None:
            return (
                f"{side} cache type {type_.name}: stores blocks of {type_.block_elements}, which "
                f"do not divide the {misfit} elements that {spec.name} puts there; use F16"
            )
    return None


def _graph_outgrows_its_table(spec: ModelSpec, settings: CacheSettings) -> str | None:
    """ggml_hash_find_or_insert: aborts where the scheduler's table is full (ggml/src/ggml-impl.h,
    its size in ggml_hash_size and llama_context::graph_max_nodes). Models with few tensors in a
    block and many experts in use come that far, and only with a quantized cache.
    """
    turned = sum(
        type_.block_elements > 1 and all(width % _TURNED_MULTIPLE == 0 for width in widths)
        for type_, widths in (
            (settings.type_k, spec.k_head_elements),
            (settings.type_v, spec.v_head_elements),
        )
    )
    if not turned or spec.is_latent or spec.experts is None:
        return None
    per_block = _BLOCK_NODES + _EXPERT_NODES * spec.experts.used + _TURNING_NODES * turned
    if any("attn_q_norm" in layer.matrices for layer in spec.layers):
        per_block += _NORM_NODES
    if spec.architecture.startswith("granite"):
        per_block += _SCALE_NODES
    nodes = len(spec.experts.layers) * per_block + _NODES_BESIDE
    entries = nodes + spec.n_tensors + _CACHES_PER_BLOCK * spec.n_layers
    size = _prime_from(max(_LEAST_SLOTS, _SLOTS_PER_TENSOR * spec.n_tensors))
    if entries <= size:
        return None
    types = " and ".join(dict.fromkeys((settings.type_k.name, settings.type_v.name)))
    return (
        f"KV cache type {types}: makes the graph of {spec.name} larger than the engine's table for"
        " it, and the engine ends; use F16"
    )


def _prime_from(least: int) -> int:
    """The engine's sizes of tables: the first prime behind a power of two, from `least` on."""
    candidate = 1
    while True:
        candidate *= 2
        prime = candidate + 1
        while any(prime % divisor == 0 for divisor in range(2, int(prime**0.5) + 1)):
            prime += 1
        if prime >= least:
            return prime


_RULES: tuple[Callable[[ModelSpec, CacheSettings], str | None], ...] = (
    _latent_types_differ,
    _has_no_flash_attention,
    _blocks_do_not_divide,
    _graph_outgrows_its_table,
)
