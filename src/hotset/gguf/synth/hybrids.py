"""Families with state space layers or short convolutions."""

from __future__ import annotations

from collections.abc import Sequence

from hotset.gguf.synth.parts import (
    attention,
    decoder_keys,
    dense_ffn,
    ends,
    expert_ffn,
    expert_keys,
    shared_ffn,
)
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe, Ssm

__all__ = ["RECIPES"]

_SIGMOID = 2


def _ssm_keys(b: Builder) -> None:
    ssm = b.d.ssm
    b.key("ssm.conv_kernel", ssm.conv_kernel)
    b.key("ssm.inner_size", ssm.inner)
    b.key("ssm.state_size", ssm.state)
    b.key("ssm.time_step_rank", ssm.rank)
    b.key("ssm.group_count", ssm.groups)


def _mamba2(b: Builder, i: int) -> None:
    d, ssm = b.d, b.d.ssm
    blk = f"blk.{i}."
    n_conv = ssm.inner + 2 * ssm.groups * ssm.state
    b.norm(f"{blk}attn_norm.weight", d.n_embd)
    b.matrix(f"{blk}ssm_in.weight", d.n_embd, ssm.inner + n_conv + ssm.rank, b.mix.attention)
    b.values(f"{blk}ssm_conv1d.weight", ssm.conv_kernel, n_conv, gain=0.5)
    b.values(f"{blk}ssm_conv1d.bias", n_conv)
    b.values(f"{blk}ssm_dt.bias", ssm.rank, gain=0.5)
    b.decays(f"{blk}ssm_a", 1, ssm.rank)
    b.norm(f"{blk}ssm_d", 1, ssm.rank)
    b.norm(f"{blk}ssm_norm.weight", ssm.inner // ssm.groups, ssm.groups)
    b.matrix(f"{blk}ssm_out.weight", ssm.inner, d.n_embd, b.mix.attention)


def _kv_heads(b: Builder, full: Sequence[bool]) -> None:
    """A layer without KV heads is a recurrent one."""
    b.key("attention.head_count_kv", [b.d.n_head_kv if is_full else 0 for is_full in full])


def _every_interval(d: Dims) -> list[bool]:
    return [(i + 1) % d.interval == 0 for i in range(d.n_layers)]


def _granitehybrid(b: Builder) -> None:
    d = b.d
    full = _every_interval(d)
    decoder_keys(b)
    _kv_heads(b, full)
    _ssm_keys(b)
    b.key("logit_scale", 1.0)
    b.key("residual_scale", 1.0)
    b.key("embedding_scale", 1.0)
    b.key("attention.scale", d.head_dim**-0.5)
    b.key("expert_count", d.n_experts)
    b.key("expert_used_count", d.n_used)
    b.key("expert_shared_feed_forward_length", d.n_ff_shexp)
    ends(b)
    for i in range(d.n_layers):
        if full[i]:
            attention(b, i)
        else:
            _mamba2(b, i)
        expert_ffn(b, i, n_ff=d.n_ff)
        shared_ffn(b, i)


def _lfm2_operator(b: Builder, i: int, *, is_full: bool) -> None:
    d = b.d
    if is_full:
        attention(b, i, qk_norm="head")
        return
    blk = f"blk.{i}."
    b.norm(f"{blk}attn_norm.weight", d.n_embd)
    b.matrix(f"{blk}shortconv.in_proj.weight", d.n_embd, 3 * d.n_embd, b.mix.attention)
    b.values(f"{blk}shortconv.conv.weight", d.ssm.conv_kernel, d.n_embd, gain=0.5)
    b.matrix(f"{blk}shortconv.out_proj.weight", d.n_embd, d.n_embd, b.mix.attention)


def _lfm2(b: Builder) -> None:
    # The final norm goes by the name of the embedding's.
    full = _every_interval(b.d)
    decoder_keys(b)
    _kv_heads(b, full)
    b.key("shortconv.l_cache", b.d.ssm.conv_kernel)
    ends(b, norm="token_embd_norm")
    for i in range(b.d.n_layers):
        _lfm2_operator(b, i, is_full=full[i])
        dense_ffn(b, i)


def _lfm2moe(b: Builder) -> None:
    d = b.d
    full = _every_interval(d)
    decoder_keys(b)
    _kv_heads(b, full)
    expert_keys(b)
    b.key("leading_dense_block_count", d.n_dense_lead)
    b.key("expert_gating_func", _SIGMOID)
    b.key("shortconv.l_cache", d.ssm.conv_kernel)
    ends(b, norm="token_embd_norm")
    for i in range(d.n_layers):
        _lfm2_operator(b, i, is_full=full[i])
        if i < d.n_dense_lead:
            dense_ffn(b, i)
        else:
            expert_ffn(b, i)
            b.values(f"blk.{i}.exp_probs_b.bias", d.n_experts)


def _nemotron_keys(b: Builder) -> None:
    # Each layer is one thing: recurrent, attention, or FFN, in turn.
    d = b.d
    decoder_keys(b)
    _ssm_keys(b)
    _kv_heads(b, [i % 3 == 1 for i in range(d.n_layers)])
    b.key("feed_forward_length", [d.n_ff if i % 3 == 2 else 0 for i in range(d.n_layers)])
    b.key("attention.layer_norm_epsilon", 1e-5)


def _nemotron_layers(b: Builder, *, has_experts: bool) -> None:
    d = b.d
    ends(b)
    for i in range(d.n_layers):
        if i % 3 == 0:
            _mamba2(b, i)
        elif i % 3 == 1:
            attention(b, i)
        else:
            b.norm(f"blk.{i}.attn_norm.weight", d.n_embd)
            _squared_relu_ffn(b, i, has_experts=has_experts)


def _squared_relu_ffn(b: Builder, i: int, *, has_experts: bool) -> None:
    # No gate: the activation is the square of the rectified up projection.
    d = b.d
    blk = f"blk.{i}."
    if not has_experts:
        b.matrix(f"{blk}ffn_up.weight", d.n_embd, d.n_ff, b.mix.dense)
        b.matrix(f"{blk}ffn_down.weight", d.n_ff, d.n_embd, b.mix.dense)
        return
    b.router(f"{blk}ffn_gate_inp.weight", d.n_embd, d.n_experts)
    b.values(f"{blk}exp_probs_b.bias", d.n_experts)
    b.stack(f"{blk}ffn_up_exps.weight", d.n_embd, d.n_ff_exp, d.n_experts, b.mix.experts)
    b.stack(f"{blk}ffn_down_exps.weight", d.n_ff_exp, d.n_embd, d.n_experts, b.mix.down)
    b.matrix(f"{blk}ffn_up_shexp.weight", d.n_embd, d.n_ff_shexp, b.mix.shared)
    b.matrix(f"{blk}ffn_down_shexp.weight", d.n_ff_shexp, d.n_embd, b.mix.shared)


def _nemotron_h(b: Builder) -> None:
    _nemotron_keys(b)
    _nemotron_layers(b, has_experts=False)


def _nemotron_h_moe(b: Builder) -> None:
    _nemotron_keys(b)
    expert_keys(b)
    b.key("expert_shared_feed_forward_length", b.d.n_ff_shexp)
    b.key("expert_shared_count", 1)
    b.key("expert_weights_norm", True)
    b.key("expert_weights_scale", 1.0)
    _nemotron_layers(b, has_experts=True)


def _mamba(b: Builder) -> None:
    d, ssm = b.d, b.d.ssm
    decoder_keys(b)
    _ssm_keys(b)
    b.key("attention.head_count", 0)
    b.key("feed_forward_length", 0)
    ends(b)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        b.norm(f"{blk}attn_norm.weight", d.n_embd)
        b.matrix(f"{blk}ssm_in.weight", d.n_embd, 2 * ssm.inner, b.mix.attention)
        b.values(f"{blk}ssm_conv1d.weight", ssm.conv_kernel, ssm.inner, gain=0.5)
        b.values(f"{blk}ssm_conv1d.bias", ssm.inner)
        b.matrix(f"{blk}ssm_x.weight", ssm.inner, ssm.rank + 2 * ssm.state, b.mix.attention)
        b.matrix(f"{blk}ssm_dt.weight", ssm.rank, ssm.inner, "F32")
        b.values(f"{blk}ssm_dt.bias", ssm.inner, gain=0.5)
        b.decays(f"{blk}ssm_a", ssm.state, ssm.inner)
        b.norm(f"{blk}ssm_d", ssm.inner)
        b.matrix(f"{blk}ssm_out.weight", ssm.inner, d.n_embd, b.mix.attention)


_MAMBA2 = Ssm(state=64, inner=512, rank=8, groups=1)

RECIPES = (
    FamilyRecipe("granitehybrid", "granitehybrid", _granitehybrid, Dims(n_ff=256, ssm=_MAMBA2)),
    FamilyRecipe("lfm2", "lfm2", _lfm2, Dims(ssm=Ssm(conv_kernel=3))),
    FamilyRecipe("lfm2moe", "lfm2moe", _lfm2moe, Dims(ssm=Ssm(conv_kernel=3))),
    FamilyRecipe("nemotron_h", "nemotron_h", _nemotron_h, Dims(n_layers=6, ssm=_MAMBA2)),
    FamilyRecipe(
        "nemotron_h_moe", "nemotron_h_moe", _nemotron_h_moe, Dims(n_layers=6, ssm=_MAMBA2)
    ),
    FamilyRecipe("mamba", "mamba", _mamba, Dims(ssm=Ssm(state=16, inner=512, rank=16))),
)
