"""What each block keeps of the tokens it has seen: one row of the table, applied to one file.

Mirrors llama.cpp src/llama-hparams.cpp (sizes), `llama_model_base::load_hparams` (defaults) and
`llama_model::create_memory` (which blocks), both in src/llama-model.cpp.
"""

from __future__ import annotations

from dataclasses import dataclass

from hotset.core.families.metadata import Metadata
from hotset.core.families.rules import Attention, Family, Indexer, Recurrent, State, Where, Window
from hotset.core.modelspec import CacheKind

__all__ = ["BlockCache", "Caches", "block_caches"]

# From this trained context on, a glm-dsa file without ``attention.indexer.types`` has the layout
# of GLM 5.2: the first two blocks and every fourth from the third on (src/models/glm-dsa.cpp).
_GLM_5_2_CONTEXT = 1_048_576

_STATE_KEYS = ("conv_kernel", "group_count", "inner_size", "state_size")


@dataclass(frozen=True, slots=True)
class BlockCache:
    """One block; the fields are those of `LayerSpec`."""

    cache: CacheKind
    k_elements: int = 0
    v_elements: int = 0
    indexer_elements: int = 0
    indexer_v_elements: int = 0
    state_r_elements: int = 0
    state_s_elements: int = 0


@dataclass(frozen=True, slots=True)
class Caches:
    """All blocks as the main context has them, and those of an MTP head as the one has them that
    drafts with it; the other fields are those of `ModelSpec`."""

    blocks: tuple[BlockCache, ...]
    head: tuple[BlockCache, ...]
    window_tokens: int
    v_padded_elements: int
    k_head_elements: tuple[int, ...]
    v_head_elements: tuple[int, ...]
    n_heads: int


@dataclass(frozen=True, slots=True)
class _Heads:
    """Per block: attention heads, KV heads, and the width of one K and one V head."""

    n: tuple[int, ...]
    n_kv: tuple[int, ...]
    k: tuple[int, ...]
    v: tuple[int, ...]


def block_caches(family: Family | None, meta: Metadata, n_all: int, n_layers: int) -> Caches:
    """What the engine's contexts keep per block.

    Args:
        family: None for an unknown architecture: every block full attention, and a recurrent
            state as well if the file has the keys for one.
        meta: the file's metadata.
        n_all: blocks in the file.
        n_layers: blocks that run for a token; those behind them belong to an MTP head.

    Raises:
        FileProblem: for missing or impossible values.
    """
    if family is None:
        has_state = all(meta.has(f"ssm.{key}") for key in _STATE_KEYS)
        recurrent = Recurrent(Where.BESIDE_ATTENTION, State.GROUPED_SSM) if has_state else None
        family = Family((meta.architecture,), recurrent=recurrent)
        n_layers = n_all
    n_window, is_window = _windows(family.window, meta, n_all, n_layers)
    heads = _heads(meta, n_all, is_window)
    is_recurrent = _recurrent(family.recurrent, meta, heads, n_all, n_layers)
    has_kv = _with_kv(family, meta, is_recurrent, n_all, n_layers)
    is_latent = family.attention is Attention.LATENT and _has_latent_keys(meta)
    has_indexer = _with_indexer(family.indexer, meta, has_kv, n_layers)
    width = _indexer_width(family.indexer, meta, n_all)
    state_r, state_s = _state(family.recurrent, meta, heads) if family.recurrent else (0, 0)
    history = _conv_history(meta) if family.has_conv_history else {}
    blocks = []
    for i in range(n_all):
        blocks.append(
            BlockCache(
                cache=_kind(has_kv[i], is_window[i], is_recurrent[i], is_latent),
                k_elements=heads.k[i] * heads.n_kv[i] if has_kv[i] else 0,
                v_elements=heads.v[i] * heads.n_kv[i] if has_kv[i] and not is_latent else 0,
                indexer_elements=width if has_indexer[i] else 0,
                indexer_v_elements=heads.v[i]
                if has_indexer[i] and not is_latent and family.indexer is not Indexer.POOLED
                else 0,
                state_r_elements=state_r + history.get(i, 0) if is_recurrent[i] else 0,
                state_s_elements=state_s if is_recurrent[i] else 0,
            )
        )
    # The context that drafts has full attention in these blocks, or a window, and no states. Of
    # the indexers only the pooled one goes with it (qwen4exp).
    indexer_width = width if family.indexer is Indexer.POOLED else 0
    head = tuple(
        BlockCache(
            cache=_kind(True, is_window[i], False, is_latent),
            k_elements=heads.k[i] * heads.n_kv[i],
            v_elements=0 if is_latent else heads.v[i] * heads.n_kv[i],
            indexer_elements=indexer_width,
        )
        for i in range(n_layers, n_all)
    )
    return Caches(
        blocks=tuple(blocks),
        head=head,
        window_tokens=n_window,
        v_padded_elements=max(v * n for v, n in zip(heads.v, heads.n_kv, strict=True)),
        k_head_elements=tuple(sorted(set(heads.k[:n_layers]))),
        v_head_elements=tuple(sorted(set(heads.v[:n_layers]))),
        n_heads=max(heads.n),
    )


def _kind(has_kv: bool, is_window: bool, is_recurrent: bool, is_latent: bool) -> CacheKind:
    if not has_kv:
        return CacheKind.RECURRENT if is_recurrent else CacheKind.NONE
    if is_window:
        return CacheKind.WINDOW
    return CacheKind.LATENT if is_latent else CacheKind.FULL


def _windows(
    window: Window | None, meta: Metadata, n_all: int, n_layers: int
) -> tuple[int, tuple[bool, ...]]:
    """Tokens of the window, and which blocks have it."""
    nowhere = (False,) * n_all
    if window is None or window.only_with_blocks not in (0, n_layers):
        return 0, nowhere
    n_tokens = meta.number("attention.sliding_window", window.default_tokens)
    if n_tokens == 0:
        return 0, nowhere
    pattern_key = "attention.sliding_window_pattern"
    where = meta.flags(pattern_key, n_all)
    if where is None:
        if window.period is None:
            raise meta.problem(pattern_key, "is no array, and the engine needs one")
        period = meta.number(pattern_key, window.period)
        kept = 0 if window.is_full_first else period - 1
        where = tuple(i < n_layers and (period == 0 or i % period != kept) for i in range(n_all))
    return window.fixed_tokens or n_tokens, where


def _heads(meta: Metadata, n_all: int, is_window: tuple[bool, ...]) -> _Heads:
    n = meta.per_block("attention.head_count", n_all, (0,) * n_all)
    n_kv = meta.per_block("attention.head_count_kv", n_all, n)
    k = v = 0
    if n[0] > 0:  # the engine asks the first block only
        default = meta.number("embedding_length", low=1) // n[0]
        k = meta.number("attention.key_length", default)
        v = meta.number("attention.value_length", default)
    k_window = meta.number("attention.key_length_swa", k)
    v_window = meta.number("attention.value_length_swa", v)
    return _Heads(
        n=n,
        n_kv=n_kv,
        k=tuple(k_window if w else k for w in is_window),
        v=tuple(v_window if w else v for w in is_window),
    )


def _has_latent_keys(meta: Metadata) -> bool:
    k = meta.number("attention.key_length_mla", 0)
    v = meta.number("attention.value_length_mla", 0)
    if (k == 0) != (v == 0):
        raise meta.problem(
            "attention.key_length_mla", f"is {k} but attention.value_length_mla is {v}"
        )
    return k > 0


def _recurrent(
    rule: Recurrent | None, meta: Metadata, heads: _Heads, n_all: int, n_layers: int
) -> tuple[bool, ...]:
    """Which blocks have a recurrent state; MTP blocks never have one."""
    if rule is None:
        return (False,) * n_all
    match rule.where:
        case Where.INTERVAL:
            listed = meta.per_block("attention.recurrent_layers", n_all, ())
            interval = meta.number("full_attention_interval", rule.interval, low=1)
            on = [bool(v) for v in listed] or [(i + 1) % interval != 0 for i in range(n_all)]
        case Where.NO_KV_HEADS:
            on = [n == 0 for n in heads.n_kv]
        case Where.NO_KV_HEADS_NOR_FFN:
            n_ff = _ffn_lengths(meta, n_all)
            on = [n == 0 and f == 0 for n, f in zip(heads.n_kv, n_ff, strict=True)]
        case _:
            on = [True] * n_all
    return tuple(on[:n_layers]) + (False,) * (n_all - n_layers)


def _with_kv(
    family: Family, meta: Metadata, is_recurrent: tuple[bool, ...], n_all: int, n_layers: int
) -> tuple[bool, ...]:
    """Which blocks have a KV cache in the main context.

    MTP blocks have none, with two exceptions: a file of MTP blocks alone, and the hybrid families
    for which the engine only asks whether a block is recurrent.
    """
    where = family.recurrent.where if family.recurrent else None
    if family.attention is Attention.UNCACHED or where is Where.EVERY:
        return (False,) * n_all
    n_kv_blocks = n_all
    if family.kv_blocks:
        n_kv_blocks = family.kv_blocks
    elif family.has_shared_kv_key:
        n_kv_blocks -= meta.number("attention.shared_kv_layers", 0, high=n_all)
    if where is Where.NO_KV_HEADS_NOR_FFN:
        n_ff = _ffn_lengths(meta, n_all)
        return tuple(not r and f == 0 for r, f in zip(is_recurrent, n_ff, strict=True))
    if where is Where.NO_KV_HEADS:
        return tuple(not r for r in is_recurrent)
    if where is not Where.BESIDE_ATTENTION and family.indexer is not Indexer.AFTER_DENSE:
        n_kv_blocks = min(n_kv_blocks, n_layers or n_all)
    is_both = where is Where.BESIDE_ATTENTION
    return tuple(i < n_kv_blocks and (is_both or not r) for i, r in enumerate(is_recurrent))


def _ffn_lengths(meta: Metadata, n_all: int) -> tuple[int, ...]:
    return meta.per_block("feed_forward_length", n_all, (0,) * n_all)


def _state(rule: Recurrent, meta: Metadata, heads: _Heads) -> tuple[int, int]:
    """F32 elements per sequence of a recurrent block: convolution, state."""
    n_embd = meta.number("embedding_length", low=1)
    match rule.state:
        case State.WKV:
            shifts = meta.number("token_shift_count", 2)
            return shifts * n_embd, n_embd * meta.number("wkv.head_size")
        case State.SHORT_CONVOLUTION:
            return n_embd * (meta.number("shortconv.l_cache", low=1) - 1), 0
        case State.DELTA_HEADS:
            width = meta.number("kda.head_dim")
            kernel = meta.number("ssm.conv_kernel") or 4
            return 3 * (kernel - 1) * heads.n[0] * width, width * width * heads.n[0]
        case State.LIGHTNING:
            return 0, heads.k[0] * heads.k[0] * heads.n[0]
        case _:
            n_inner = meta.number("ssm.inner_size")
            n_state = meta.number("ssm.state_size")
            is_grouped = rule.state is State.GROUPED_SSM
            n_groups = meta.number("ssm.group_count") if is_grouped else 0
            kernel = meta.number("ssm.conv_kernel") or 1
            return (kernel - 1) * (n_inner + 2 * n_groups * n_state), n_state * n_inner


def _conv_history(meta: Metadata) -> dict[int, int]:
    """F32 elements that the n-gram module's convolution keeps, by the block it sits in."""
    blocks = meta.indices("ple.layers")
    if not blocks:
        return {}
    kernel = meta.number("ple.conv_kernel", low=1)
    n_streams = meta.number("hyper_connection.count")
    n_embd = meta.number("embedding_length", low=1)
    n_elements = (kernel - 1) * meta.number("ple.ngram_size") * n_streams * n_embd
    return dict.fromkeys(blocks, n_elements)


def _with_indexer(
    indexer: Indexer | None, meta: Metadata, has_kv: tuple[bool, ...], n_layers: int
) -> tuple[bool, ...]:
    n_all = len(has_kv)
    match indexer:
        case None:
            return (False,) * n_all
        case Indexer.POOLED:
            return has_kv
        case Indexer.EVERY:
            return tuple(i < n_layers for i in range(n_all))
        case Indexer.AFTER_DENSE:
            n_dense = meta.number("leading_dense_block_count", 0)
            return tuple(i >= n_dense for i in range(n_all))
        case _:
            is_sparse = meta.number("context_length", 0) >= _GLM_5_2_CONTEXT
            default = tuple(int(not is_sparse or i < 2 or i % 4 == 2) for i in range(n_layers))
            types = meta.per_block("attention.indexer.types", n_layers, default)
            return tuple(bool(t) for t in types) + (False,) * (n_all - n_layers)


def _indexer_width(indexer: Indexer | None, meta: Metadata, n_all: int) -> int:
    """Elements that one token adds to an indexer's key cache."""
    if indexer is None:
        return 0
    width = meta.number("attention.indexer.key_length")
    if indexer is Indexer.POOLED and any(meta.per_block("attention.compress_ratios", n_all, (0,))):
        return 2 * width  # the raw key and the pooled one
    return width
