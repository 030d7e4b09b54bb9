"""The Qwen families: full attention, and the hybrids with gated delta nets."""

from __future__ import annotations

from collections.abc import Callable

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
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe, ModelKind, Ssm

__all__ = ["RECIPES", "delta_net", "delta_net_keys", "gated_attention", "is_full", "rope_sections"]


def _qwen2(b: Builder) -> None:
    decoder_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, has_bias=True)
        dense_ffn(b, i)


def _qwen2moe(b: Builder) -> None:
    decoder_keys(b)
    expert_keys(b)
    b.key("expert_shared_feed_forward_length", b.d.n_ff_shexp)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, has_bias=True)
        expert_ffn(b, i)
        shared_ffn(b, i, has_gate=True)


def _qwen3(b: Builder) -> None:
    decoder_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, qk_norm="head")
        dense_ffn(b, i)


def _qwen3_embedding(b: Builder) -> None:
    _qwen3(b)
    b.key("pooling_type", 3)  # the last token's state stands for the text


def _qwen3moe(b: Builder) -> None:
    decoder_keys(b)
    expert_keys(b)
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, qk_norm="head")
        expert_ffn(b, i)


def is_full(d: Dims, i: int) -> bool:
    """Whether block `i` has full attention: every `interval`-th, and every MTP block."""
    return i >= d.n_layers or (i + 1) % d.interval == 0


def rope_sections(b: Builder) -> None:
    """Rotated pairs for time, height and width; together half of the rotated dimensions."""
    n_pairs = (b.d.rope_dims or b.d.head_dim) // 2
    b.key("rope.dimension_sections", [(n_pairs + 2) // 3, (n_pairs + 1) // 3, n_pairs // 3, 0])


def delta_net_keys(b: Builder) -> None:
    ssm = b.d.ssm
    b.key("full_attention_interval", b.d.interval)
    b.key("ssm.conv_kernel", ssm.conv_kernel)
    b.key("ssm.inner_size", ssm.inner)
    b.key("ssm.state_size", ssm.state)
    b.key("ssm.time_step_rank", ssm.rank)
    b.key("ssm.group_count", ssm.groups)


def delta_net(
    b: Builder, i: int, *, has_joint_gates: bool = False, norm: str = "attn_norm"
) -> None:
    """A gated delta net; `has_joint_gates` where beta and alpha are one matrix (qwen3next)."""
    d, ssm = b.d, b.d.ssm
    blk = f"blk.{i}."
    n_keys, n_values = ssm.state * ssm.groups, ssm.state * ssm.rank
    n_conv = 2 * n_keys + n_values
    if norm:
        b.norm(f"{blk}{norm}.weight", d.n_embd)
    b.matrix(f"{blk}attn_qkv.weight", d.n_embd, n_conv, b.mix.attention)
    b.matrix(f"{blk}attn_gate.weight", d.n_embd, n_values, b.mix.attention)
    b.values(f"{blk}ssm_conv1d.weight", ssm.conv_kernel, n_conv, gain=0.5)
    b.values(f"{blk}ssm_dt.bias", ssm.rank, gain=0.5)
    b.decays(f"{blk}ssm_a", ssm.rank)
    if has_joint_gates:
        b.matrix(f"{blk}ssm_ba.weight", d.n_embd, 2 * ssm.rank, b.mix.attention)
    else:
        b.matrix(f"{blk}ssm_beta.weight", d.n_embd, ssm.rank, b.mix.attention)
        b.matrix(f"{blk}ssm_alpha.weight", d.n_embd, ssm.rank, b.mix.attention)
    b.norm(f"{blk}ssm_norm.weight", ssm.state)
    b.matrix(f"{blk}ssm_out.weight", n_values, d.n_embd, b.mix.attention)


def gated_attention(b: Builder, i: int, *, norm: str = "attn_norm") -> None:
    """Full attention whose query carries an output gate of the same size."""
    attention(b, i, q_factor=2, qk_norm="head", norm=norm)


def _hybrid(ffn: Callable[[Builder, int], None], *, has_joint_gates: bool) -> Callable[..., None]:
    def layers(b: Builder) -> None:
        ends(b)
        for i in range(b.d.n_layers + b.d.n_mtp):
            if is_full(b.d, i):
                gated_attention(b, i)
            else:
                delta_net(b, i, has_joint_gates=has_joint_gates)
            ffn(b, i)
            if i >= b.d.n_layers:
                mtp_head(b, i)

    return layers


def _gated_experts(b: Builder, i: int) -> None:
    expert_ffn(b, i, norm="post_attention_norm")
    shared_ffn(b, i, has_gate=True)


def _dense(b: Builder, i: int) -> None:
    dense_ffn(b, i, norm="post_attention_norm")


def _qwen3next(b: Builder) -> None:
    decoder_keys(b)
    expert_keys(b)
    b.key("expert_shared_feed_forward_length", b.d.n_ff_shexp)
    delta_net_keys(b)
    _hybrid(_gated_experts, has_joint_gates=True)(b)


def _qwen35(b: Builder) -> None:
    decoder_keys(b)
    rope_sections(b)
    delta_net_keys(b)
    _hybrid(_dense, has_joint_gates=False)(b)


def _qwen35moe(b: Builder) -> None:
    decoder_keys(b)
    expert_keys(b)
    b.key("expert_shared_feed_forward_length", b.d.n_ff_shexp)
    rope_sections(b)
    delta_net_keys(b)
    _hybrid(_gated_experts, has_joint_gates=False)(b)


_HYBRID = Dims(rope_dims=32, interval=2, ssm=Ssm(state=64, inner=256, rank=4, groups=2))
_HYBRID_MTP = Dims(rope_dims=32, interval=2, n_mtp=1, ssm=_HYBRID.ssm)

RECIPES = (
    FamilyRecipe("qwen2", "qwen2", _qwen2),
    FamilyRecipe("qwen2moe", "qwen2moe", _qwen2moe),
    FamilyRecipe("qwen3", "qwen3", _qwen3),
    FamilyRecipe("qwen3-embedding", "qwen3", _qwen3_embedding, kind=ModelKind.EMBEDDING),
    FamilyRecipe("qwen3moe", "qwen3moe", _qwen3moe),
    FamilyRecipe("qwen3next", "qwen3next", _qwen3next, _HYBRID, can_fuse=True),
    FamilyRecipe("qwen35", "qwen35", _qwen35, _HYBRID),
    FamilyRecipe("qwen35-mtp", "qwen35", _qwen35, _HYBRID_MTP),
    FamilyRecipe("qwen35moe", "qwen35moe", _qwen35moe, _HYBRID, can_fuse=True),
    FamilyRecipe("qwen35moe-mtp", "qwen35moe", _qwen35moe, _HYBRID_MTP, can_fuse=True),
)
