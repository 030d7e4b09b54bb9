"""The pieces that most families share: ends, attention, dense and expert FFNs."""

from __future__ import annotations

from hotset.gguf.synth.recipe import Builder

__all__ = [
    "attention",
    "decoder_keys",
    "dense_ffn",
    "ends",
    "expert_ffn",
    "expert_keys",
    "mtp_head",
    "shared_ffn",
]


def decoder_keys(b: Builder, *, epsilon_key: str = "attention.layer_norm_rms_epsilon") -> None:
    """The keys that every decoder has. Head sizes are always stated."""
    d = b.d
    b.key("block_count", d.n_layers + d.n_mtp)
    b.key("context_length", d.context_tokens)
    b.key("embedding_length", d.n_embd)
    b.key("feed_forward_length", d.n_ff)
    b.key("attention.head_count", d.n_head)
    b.key("attention.head_count_kv", d.n_head_kv)
    b.key("attention.key_length", d.head_dim)
    b.key("attention.value_length", d.head_dim)
    b.key(epsilon_key, 1e-5)
    b.key("rope.freq_base", d.rope_base)
    b.key("rope.dimension_count", d.rope_dims or d.head_dim)
    b.key("vocab_size", d.n_vocab)
    if d.n_mtp:
        b.key("nextn_predict_layers", d.n_mtp)


def expert_keys(b: Builder) -> None:
    b.key("expert_count", b.d.n_experts)
    b.key("expert_used_count", b.d.n_used)
    b.key("expert_feed_forward_length", b.d.n_ff_exp)


def ends(b: Builder, *, norm: str = "output_norm") -> None:
    """Token embedding, final norm and output matrix (none of its own where tied)."""
    d = b.d
    if d.is_tied:
        b.tied_embedding(d.n_embd, d.n_vocab)
        b.mixed_norm(f"{norm}.weight", d.n_embd)
    else:
        b.embedding("token_embd.weight", d.n_embd, d.n_vocab)
        b.output(d.n_embd, d.n_vocab)
        b.norm(f"{norm}.weight", d.n_embd)


def attention(
    b: Builder,
    i: int,
    *,
    head_dim: int = 0,
    n_head: int = 0,
    n_head_kv: int = 0,
    q_factor: int = 1,
    qk_norm: str = "",
    has_bias: bool = False,
    norm: str = "attn_norm",
    parts: str = "qkv",
) -> None:
    """Query, key, value and output projections with the norm before them.

    Args:
        head_dim, n_head, n_head_kv: where they differ from the model's own.
        q_factor: 2 where the query carries a gate of the same size.
        qk_norm: "head" (a norm per head), "row" (over all heads), or none.
        has_bias: on query, key and value.
        norm: before it; none where empty.
        parts: which of query, key and value have a matrix.
    """
    d = b.d
    head_dim = head_dim or d.head_dim
    n_q = (n_head or d.n_head) * head_dim
    n_kv = (n_head_kv or d.n_head_kv) * head_dim
    blk = f"blk.{i}."
    if norm:
        b.norm(f"{blk}{norm}.weight", d.n_embd)
    sizes = {"q": n_q * q_factor, "k": n_kv, "v": n_kv}
    for part in parts:
        n_out = sizes[part]
        b.matrix(f"{blk}attn_{part}.weight", d.n_embd, n_out, b.mix.attention)
        if has_bias:
            b.values(f"{blk}attn_{part}.bias", n_out)
    b.matrix(f"{blk}attn_output.weight", n_q, d.n_embd, b.mix.attention)
    for part in parts.removesuffix("v") if qk_norm else "":
        n_heads_wide = n_q if part == "q" else n_kv
        b.norm(f"{blk}attn_{part}_norm.weight", head_dim if qk_norm == "head" else n_heads_wide)


def dense_ffn(b: Builder, i: int, *, n_ff: int = 0, norm: str = "ffn_norm") -> None:
    """Gate, up and down with the norm before them."""
    d = b.d
    n_ff = n_ff or d.n_ff
    blk = f"blk.{i}."
    b.norm(f"{blk}{norm}.weight", d.n_embd)
    b.matrix(f"{blk}ffn_gate.weight", d.n_embd, n_ff, b.mix.dense)
    b.matrix(f"{blk}ffn_up.weight", d.n_embd, n_ff, b.mix.dense)
    b.matrix(f"{blk}ffn_down.weight", n_ff, d.n_embd, b.mix.dense, gain=2.0)


def expert_ffn(b: Builder, i: int, *, n_ff: int = 0, norm: str = "ffn_norm") -> None:
    """Router and routed experts with the norm before them (none where `norm` is empty); gate and
    up are fused where the sizes say so."""
    d = b.d
    n_ff = n_ff or d.n_ff_exp
    blk = f"blk.{i}."
    if norm:
        b.norm(f"{blk}{norm}.weight", d.n_embd)
    b.router(f"{blk}ffn_gate_inp.weight", d.n_embd, d.n_experts)
    if d.is_fused:
        b.stack(f"{blk}ffn_gate_up_exps.weight", d.n_embd, 2 * n_ff, d.n_experts, b.mix.experts)
    else:
        b.stack(f"{blk}ffn_gate_exps.weight", d.n_embd, n_ff, d.n_experts, b.mix.experts)
        b.stack(f"{blk}ffn_up_exps.weight", d.n_embd, n_ff, d.n_experts, b.mix.experts)
    b.stack(f"{blk}ffn_down_exps.weight", n_ff, d.n_embd, d.n_experts, b.mix.down, gain=3.0)


def shared_ffn(b: Builder, i: int, *, n_ff: int = 0, has_gate: bool = False) -> None:
    """Shared experts; `has_gate` where a learned gate weighs them."""
    d = b.d
    n_ff = n_ff or d.n_ff_shexp
    blk = f"blk.{i}."
    if has_gate:
        b.values(f"{blk}ffn_gate_inp_shexp.weight", d.n_embd)
    b.matrix(f"{blk}ffn_gate_shexp.weight", d.n_embd, n_ff, b.mix.shared)
    b.matrix(f"{blk}ffn_up_shexp.weight", d.n_embd, n_ff, b.mix.shared)
    b.matrix(f"{blk}ffn_down_shexp.weight", n_ff, d.n_embd, b.mix.shared, gain=2.0)


def mtp_head(b: Builder, i: int, *, n_streams: int = 1) -> None:
    """What joins a multi-token-prediction block to the trunk; the block itself is like any.

    Args:
        n_streams: of the residual; with several, mixers take the place of the last norm.
    """
    d = b.d
    blk = f"blk.{i}.nextn."
    b.matrix(f"{blk}eh_proj.weight", 2 * d.n_embd, d.n_embd, b.mix.attention)
    b.norm(f"{blk}enorm.weight", d.n_embd)
    b.norm(f"{blk}hnorm.weight", d.n_embd * n_streams)
    if n_streams == 1:
        b.norm(f"{blk}shared_head_norm.weight", d.n_embd)
