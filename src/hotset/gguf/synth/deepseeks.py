"""DeepSeek and GLM families: leading dense layers, shared experts, latent attention, MTP."""

from __future__ import annotations

from dataclasses import replace

from hotset.gguf.synth.parts import (
    attention,
    decoder_keys,
    dense_ffn,
    ends,
    expert_ffn,
    expert_keys,
    mtp_head,
    shared_ffn,
)
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe, Latent

__all__ = ["RECIPES"]


def _lead_and_shared_keys(b: Builder) -> None:
    expert_keys(b)
    b.key("leading_dense_block_count", b.d.n_dense_lead)
    b.key("expert_shared_count", b.d.n_ff_shexp // b.d.n_ff_exp)


def _dense_then_experts(b: Builder, i: int, *, norm: str = "ffn_norm") -> None:
    if i < b.d.n_dense_lead:
        dense_ffn(b, i, norm=norm)
    else:
        expert_ffn(b, i, norm=norm)
        shared_ffn(b, i)


def _deepseek(b: Builder) -> None:
    decoder_keys(b)
    _lead_and_shared_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i)
        _dense_then_experts(b, i)


def _deepseek2_keys(b: Builder) -> None:
    latent = b.d.latent
    decoder_keys(b)
    _lead_and_shared_keys(b)
    b.key("attention.q_lora_rank", latent.q_rank)
    b.key("attention.kv_lora_rank", latent.kv_rank)
    b.key("rope.dimension_count", latent.rope)


def _deepseek2(b: Builder) -> None:
    # The older form: K and V are expanded to every head before they are cached.
    latent = b.d.latent
    _deepseek2_keys(b)
    b.key("attention.head_count_kv", b.d.n_head)
    b.key("attention.key_length", latent.nope + latent.rope)
    b.key("attention.value_length", latent.value)
    _deepseek2_tensors(b, is_absorbed=False)


def _deepseek2_mla(b: Builder) -> None:
    # The absorbed form: the cache holds the latent and the rotated part, once for all heads.
    latent = b.d.latent
    _deepseek2_keys(b)
    b.key("attention.head_count_kv", 1)
    b.key("attention.key_length", latent.kv_rank + latent.rope)
    b.key("attention.value_length", latent.kv_rank)
    b.key("attention.key_length_mla", latent.nope + latent.rope)
    b.key("attention.value_length_mla", latent.value)
    _deepseek2_tensors(b, is_absorbed=True)


def _deepseek2_tensors(b: Builder, *, is_absorbed: bool) -> None:
    ends(b)
    for i in range(b.d.n_layers):
        _latent_attention(b, i, is_absorbed=is_absorbed)
        _dense_then_experts(b, i)


def _latent_attention(b: Builder, i: int, *, is_absorbed: bool) -> None:
    d, latent, kind = b.d, b.d.latent, b.mix.attention
    blk = f"blk.{i}."
    n_key = latent.nope + latent.rope
    b.norm(f"{blk}attn_norm.weight", d.n_embd)
    b.matrix(f"{blk}attn_q_a.weight", d.n_embd, latent.q_rank, kind)
    b.norm(f"{blk}attn_q_a_norm.weight", latent.q_rank)
    b.matrix(f"{blk}attn_q_b.weight", latent.q_rank, d.n_head * n_key, kind)
    b.matrix(f"{blk}attn_kv_a_mqa.weight", d.n_embd, latent.kv_rank + latent.rope, kind)
    b.norm(f"{blk}attn_kv_a_norm.weight", latent.kv_rank)
    if is_absorbed:
        b.stack(f"{blk}attn_k_b.weight", latent.nope, latent.kv_rank, d.n_head, kind)
        b.stack(f"{blk}attn_v_b.weight", latent.kv_rank, latent.value, d.n_head, kind)
    else:
        n_out = d.n_head * (latent.nope + latent.value)
        b.matrix(f"{blk}attn_kv_b.weight", latent.kv_rank, n_out, kind)
    b.matrix(f"{blk}attn_output.weight", d.n_head * latent.value, d.n_embd, kind)


def _glm4moe(b: Builder) -> None:
    d = b.d
    decoder_keys(b)
    _lead_and_shared_keys(b)
    b.key("expert_weights_norm", True)
    b.key("expert_weights_scale", 1.0)
    ends(b)
    for i in range(d.n_layers + d.n_mtp):
        attention(b, i, has_bias=True, qk_norm="head")
        _dense_then_experts(b, i, norm="post_attention_norm")
        if i >= d.n_dense_lead:
            b.values(f"blk.{i}.exp_probs_b.bias", d.n_experts)
        if i >= d.n_layers:
            mtp_head(b, i)


_LATENT = Dims(latent=Latent(q_rank=64, kv_rank=128, nope=64, rope=32, value=64))

RECIPES = (
    FamilyRecipe("deepseek", "deepseek", _deepseek),
    FamilyRecipe("deepseek2", "deepseek2", _deepseek2, _LATENT, can_fuse=True),
    FamilyRecipe("deepseek2-mla", "deepseek2", _deepseek2_mla, _LATENT, can_fuse=True),
    FamilyRecipe("glm4moe", "glm4moe", _glm4moe, Dims(rope_dims=32)),
    FamilyRecipe("glm4moe-mtp", "glm4moe", _glm4moe, replace(Dims(rope_dims=32), n_mtp=1)),
)
