"""qwen4exp: gated delta nets, sparse attention with an indexer, hyper-connections, and hashed
n-gram embeddings (llama.cpp src/models/qwen4exp.cpp)."""

from __future__ import annotations

from dataclasses import replace

from hotset.gguf.synth.parts import decoder_keys, expert_ffn, expert_keys, mtp_head, shared_ffn
from hotset.gguf.synth.qwens import (
    delta_net,
    delta_net_keys,
    gated_attention,
    is_full,
    rope_sections,
)
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe, Ssm
from hotset.gguf.synth.writer import Typed, ValueType

__all__ = ["RECIPES"]

_STREAMS = 4  # copies of the residual stream
_POOLED_CELLS = 4  # cells of a block that the indexer judges as one
_NGRAM = 3  # the longest; 2 is the other length
_HASH_LAYER = 0  # must be a linear layer: its convolution state lives in the recurrent cache
_HASH_CONV = 4


def _n_hash_heads(d: Dims) -> int:
    return (_NGRAM - 1) * d.sparse.heads_per_ngram


def _keys(b: Builder) -> None:
    d, sparse = b.d, b.d.sparse
    n_hash_heads = _n_hash_heads(d)
    decoder_keys(b)
    expert_keys(b)
    b.key("expert_shared_feed_forward_length", d.n_ff_shexp)
    rope_sections(b)
    delta_net_keys(b)
    b.key("hyper_connection.count", _STREAMS)
    b.key("hyper_connection.low_rank", sparse.mixer_rank)
    b.key("attention.indexer.head_count", sparse.indexer_heads)
    b.key("attention.indexer.key_length", sparse.indexer_dim)
    b.key("attention.indexer.top_k", sparse.top_k)
    b.key("attention.compress_ratios", [_POOLED_CELLS] * (d.n_layers + d.n_mtp))
    b.key("ple.layers", [_HASH_LAYER])
    b.key("ple.ngram_size", _NGRAM)
    b.key("ple.heads_per_ngram", sparse.heads_per_ngram)
    b.key("ple.conv_kernel", _HASH_CONV)
    b.key("ple.eos_token_id", d.n_vocab - 1)
    b.key("ple.layer_multipliers", Typed(ValueType.UINT64, [1, 3, 5]))
    starts = [head * sparse.rows_per_head for head in range(n_hash_heads)]
    b.key("ple.head_offsets", Typed(ValueType.UINT64, starts))
    rows = [sparse.rows_per_head] * n_hash_heads
    b.key("ple.head_vocab_sizes", Typed(ValueType.UINT64, rows))
    b.key("embedding_length_per_layer_input", d.n_embd // n_hash_heads)


def _mixer(b: Builder, prefix: str) -> None:
    """A norm over all streams and the low-rank mixing of them."""
    n_all, rank = _STREAMS * b.d.n_embd, b.d.sparse.mixer_rank
    b.norm(f"{prefix}_norm.weight", n_all)
    b.matrix(f"{prefix}_down.weight", n_all, rank, b.mix.attention)
    b.matrix(f"{prefix}_up.weight", rank, n_all, b.mix.attention)


def _injection(b: Builder, prefix: str) -> None:
    b.matrix(f"{prefix}_inject.weight", _STREAMS * b.d.n_embd, _STREAMS, b.mix.attention)


def _indexer(b: Builder, i: int) -> None:
    n_embd, sparse, kind = b.d.n_embd, b.d.sparse, b.mix.attention
    blk = f"blk.{i}.indexer."
    b.matrix(f"{blk}q_proj.weight", n_embd, sparse.indexer_heads * sparse.indexer_dim, kind)
    b.matrix(f"{blk}k_proj.weight", n_embd, sparse.indexer_dim, kind)
    b.norm(f"{blk}q_norm.weight", sparse.indexer_dim)
    b.norm(f"{blk}k_norm.weight", sparse.indexer_dim)


def _hashed_ngrams(b: Builder, i: int) -> None:
    n_all = _STREAMS * b.d.n_embd
    blk = f"blk.{i}.ple_"
    b.matrix(f"{blk}key.weight", b.d.n_embd, n_all, b.mix.attention)
    b.matrix(f"{blk}value.weight", b.d.n_embd, b.d.n_embd, b.mix.attention)
    for name in ("norm_key", "norm_query", "norm_conv"):
        b.norm(f"{blk}{name}.weight", n_all)
    b.values(f"{blk}conv1d.weight", _HASH_CONV, n_all, gain=0.5)


def _block(b: Builder, i: int) -> None:
    blk = f"blk.{i}."
    for part in ("attn", "ffn"):
        _mixer(b, f"{blk}hc_{part}")
        _injection(b, f"{blk}hc_{part}")
    if is_full(b.d, i):
        gated_attention(b, i, norm="")
        _indexer(b, i)
    else:
        delta_net(b, i, norm="")
    if i == _HASH_LAYER:
        _hashed_ngrams(b, i)
    expert_ffn(b, i, norm="")
    shared_ffn(b, i, has_gate=True)


def _qwen4exp(b: Builder) -> None:
    d = b.d
    _keys(b)
    b.embedding("token_embd.weight", d.n_embd, d.n_vocab)
    b.output(d.n_embd, d.n_vocab, gain=3.0)  # the last mixer leaves values of about a third
    _mixer(b, "output_hc")
    n_hash_heads = _n_hash_heads(d)
    n_rows = n_hash_heads * d.sparse.rows_per_head
    b.embedding("per_layer_token_embd.weight", d.n_embd // n_hash_heads, n_rows)
    for i in range(d.n_layers + d.n_mtp):
        _block(b, i)
        if i >= d.n_layers:
            mtp_head(b, i, n_streams=_STREAMS)
            _mixer(b, f"blk.{i}.nextn.hc_head")


_TINY = Dims(rope_dims=32, interval=2, ssm=Ssm(state=64, inner=256, rank=4, groups=2))

RECIPES = (
    FamilyRecipe("qwen4exp", "qwen4exp", _qwen4exp, _TINY, can_fuse=True),
    FamilyRecipe("qwen4exp-mtp", "qwen4exp", _qwen4exp, replace(_TINY, n_mtp=1), can_fuse=True),
)
