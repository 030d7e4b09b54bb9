"""Families in the line of llama: full attention in every layer, dense or with experts."""

from __future__ import annotations

from hotset.gguf.synth.parts import (
    attention,
    decoder_keys,
    dense_ffn,
    ends,
    expert_ffn,
    expert_keys,
    shared_ffn,
)
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe

__all__ = ["RECIPES"]

_SIGMOID = 2
"""`expert_gating_func` (llama.cpp src/llama-hparams.h)."""


def _llama(b: Builder) -> None:
    decoder_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i)
        dense_ffn(b, i)


def _mixtral(b: Builder) -> None:
    # The experts' width is feed_forward_length here; there is no key of its own.
    decoder_keys(b)
    b.key("expert_count", b.d.n_experts)
    b.key("expert_used_count", b.d.n_used)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i)
        expert_ffn(b, i, n_ff=b.d.n_ff)


def _phi3(b: Builder) -> None:
    # Query, key and value are one matrix, gate and up another. A name with "phi3" in it makes
    # llama.cpp look for tokens that only Microsoft's vocabulary has (src/llama-vocab.cpp).
    d = b.d
    b.set("general.name", "synthetic phi")
    decoder_keys(b)
    ends(b)
    n_q, n_kv = d.n_head * d.head_dim, d.n_head_kv * d.head_dim
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        b.norm(f"{blk}attn_norm.weight", d.n_embd)
        b.matrix(f"{blk}attn_qkv.weight", d.n_embd, n_q + 2 * n_kv, b.mix.attention)
        b.matrix(f"{blk}attn_output.weight", n_q, d.n_embd, b.mix.attention)
        b.norm(f"{blk}ffn_norm.weight", d.n_embd)
        b.matrix(f"{blk}ffn_up.weight", d.n_embd, 2 * d.n_ff, b.mix.dense)
        b.matrix(f"{blk}ffn_down.weight", d.n_ff, d.n_embd, b.mix.dense, gain=2.0)


def _olmoe(b: Builder) -> None:
    # The experts' width is feed_forward_length; the norms of query and key span all heads.
    decoder_keys(b)
    b.key("expert_count", b.d.n_experts)
    b.key("expert_used_count", b.d.n_used)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, qk_norm="row")
        expert_ffn(b, i, n_ff=b.d.n_ff)


def _granite_keys(b: Builder) -> None:
    decoder_keys(b)
    b.key("logit_scale", 1.0)
    b.key("residual_scale", 1.0)
    b.key("embedding_scale", 1.0)
    b.key("attention.scale", b.d.head_dim**-0.5)


def _granite(b: Builder) -> None:
    _granite_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i)
        dense_ffn(b, i)


def _granitemoe(b: Builder) -> None:
    # The experts' width is feed_forward_length; shared experts are optional.
    _granite_keys(b)
    b.key("expert_count", b.d.n_experts)
    b.key("expert_used_count", b.d.n_used)
    b.key("expert_shared_feed_forward_length", b.d.n_ff_shexp)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i)
        expert_ffn(b, i, n_ff=b.d.n_ff)
        if b.d.n_ff_shexp:
            shared_ffn(b, i)


def _minimax_m2(b: Builder) -> None:
    # The tensors' expert width is feed_forward_length; expert_feed_forward_length must agree.
    decoder_keys(b)
    expert_keys(b)
    b.key("expert_gating_func", _SIGMOID)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, qk_norm="row")
        expert_ffn(b, i)
        b.values(f"blk.{i}.exp_probs_b.bias", b.d.n_experts)


def _gpt_oss(b: Builder) -> None:
    # Biases everywhere, a sink per head, every second layer with a sliding window.
    d = b.d
    decoder_keys(b)
    expert_keys(b)
    b.key("attention.sliding_window", d.window_tokens)
    ends(b)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        attention(b, i, has_bias=True)
        b.values(f"{blk}attn_output.bias", d.n_embd)
        b.values(f"{blk}attn_sinks.weight", d.n_head, gain=1.0)
        expert_ffn(b, i, norm="post_attention_norm")
        b.values(f"{blk}ffn_gate_inp.bias", d.n_experts)
        b.values(f"{blk}ffn_gate_exps.bias", d.n_ff_exp, d.n_experts)
        b.values(f"{blk}ffn_up_exps.bias", d.n_ff_exp, d.n_experts)
        b.values(f"{blk}ffn_down_exps.bias", d.n_embd, d.n_experts)


def _glm4(b: Builder) -> None:
    # Gate and up are one matrix; norms follow attention and FFN too.
    d = b.d
    decoder_keys(b)
    ends(b)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        attention(b, i, has_bias=True)
        b.norm(f"{blk}post_attention_norm.weight", d.n_embd)
        b.norm(f"{blk}ffn_norm.weight", d.n_embd)
        b.matrix(f"{blk}ffn_up.weight", d.n_embd, 2 * d.n_ff, b.mix.dense)
        b.matrix(f"{blk}ffn_down.weight", d.n_ff, d.n_embd, b.mix.dense)
        b.norm(f"{blk}post_ffw_norm.weight", d.n_embd)


RECIPES = (
    FamilyRecipe("llama", "llama", _llama),
    FamilyRecipe("mixtral", "llama", _mixtral, Dims(n_ff=256)),
    FamilyRecipe("phi3", "phi3", _phi3),
    FamilyRecipe("olmoe", "olmoe", _olmoe, Dims(n_ff=256, n_head_kv=4)),
    FamilyRecipe("granite", "granite", _granite),
    FamilyRecipe("granitemoe", "granitemoe", _granitemoe, Dims(n_ff=256)),
    FamilyRecipe("minimax-m2", "minimax-m2", _minimax_m2, Dims(n_ff=256, rope_dims=32)),
    FamilyRecipe("gpt-oss", "gpt-oss", _gpt_oss),
    FamilyRecipe("glm4", "glm4", _glm4),
)
