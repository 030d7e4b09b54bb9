"""The Gemma families: sliding windows, norms after every part, tied embeddings.

At run time an embedding is multiplied by the root of its width, which makes it larger than what a
layer adds; the gain on the norms after attention and FFN makes up for it, so that the context, and
not the last token alone, decides what comes next.
"""

from __future__ import annotations

from dataclasses import replace

from hotset.gguf.synth.parts import attention, decoder_keys, dense_ffn, ends, expert_ffn
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe
from hotset.gguf.synth.writer import Typed, ValueType

__all__ = ["RECIPES"]

_POST_NORM_GAIN = 2.5


def _post_norm(b: Builder, name: str) -> None:
    b.norm(f"{name}.weight", b.d.n_embd, gain=_POST_NORM_GAIN)


def _is_full(d: Dims, i: int) -> bool:
    return (i + 1) % d.interval == 0


def _layers(b: Builder, *, qk_norm: str) -> None:
    ends(b)
    for i in range(b.d.n_layers):
        attention(b, i, qk_norm=qk_norm)
        _post_norm(b, f"blk.{i}.post_attention_norm")
        dense_ffn(b, i)
        _post_norm(b, f"blk.{i}.post_ffw_norm")


def _gemma2(b: Builder) -> None:
    # Windows in every other layer by default; logits are capped.
    decoder_keys(b)
    b.key("attention.sliding_window", b.d.window_tokens)
    b.key("attn_logit_softcapping", 50.0)
    b.key("final_logit_softcapping", 30.0)
    _layers(b, qk_norm="")


def _gemma3(b: Builder) -> None:
    decoder_keys(b)
    b.key("attention.sliding_window", b.d.window_tokens)
    b.key("attention.sliding_window_pattern", b.d.interval)
    _layers(b, qk_norm="head")


_N_ALTUP, _LAUREL_RANK, _ALTUP_WIDTH = 4, 64, 256
"""Fixed in llama.cpp (src/llama-hparams.h); so are the first 20 layers with a KV cache."""


def _gemma3n(b: Builder) -> None:
    d, kind = b.d, b.mix.dense
    n_side = _ALTUP_WIDTH * d.n_layers
    decoder_keys(b)
    b.key("attention.sliding_window", d.window_tokens)
    b.key("attention.sliding_window_pattern", d.interval)
    b.key("embedding_length_per_layer_input", _ALTUP_WIDTH)
    b.key("attention.shared_kv_layers", d.n_layers - 20)
    ends(b)
    b.stack("altup_proj.weight", d.n_embd, d.n_embd, _N_ALTUP - 1, "F16")
    b.stack("altup_unembd_proj.weight", d.n_embd, d.n_embd, _N_ALTUP - 1, "F16")
    b.embedding("per_layer_token_embd.weight", n_side, d.n_vocab)
    b.matrix("per_layer_model_proj.weight", d.n_embd, n_side, kind)
    b.norm("per_layer_proj_norm.weight", _ALTUP_WIDTH)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        attention(b, i, qk_norm="head")
        _post_norm(b, f"{blk}post_attention_norm")
        dense_ffn(b, i)
        _post_norm(b, f"{blk}post_ffw_norm")
        b.matrix(f"{blk}inp_gate.weight", d.n_embd, _ALTUP_WIDTH, kind)
        b.matrix(f"{blk}proj.weight", _ALTUP_WIDTH, d.n_embd, kind)
        b.norm(f"{blk}post_norm.weight", d.n_embd)
        b.values(f"{blk}altup_correct_coef.weight", _N_ALTUP, _N_ALTUP, gain=0.2)
        b.norm(f"{blk}altup_correct_scale.weight", d.n_embd)
        b.values(f"{blk}altup_predict_coef.weight", _N_ALTUP, _N_ALTUP**2, gain=0.1)
        b.values(f"{blk}altup_router.weight", d.n_embd, _N_ALTUP, gain=0.06)
        b.norm(f"{blk}altup_router_norm.weight", d.n_embd)
        b.matrix(f"{blk}laurel_l.weight", d.n_embd, _LAUREL_RANK, kind)
        b.matrix(f"{blk}laurel_r.weight", _LAUREL_RANK, d.n_embd, kind)
        b.norm(f"{blk}laurel_post_norm.weight", d.n_embd)


def _gemma4_keys(b: Builder) -> None:
    d = b.d
    full = [_is_full(d, i) for i in range(d.n_layers)]
    decoder_keys(b)
    b.key("attention.head_count_kv", [d.n_head_kv if f else d.n_head_kv_swa for f in full])
    b.key("attention.key_length_swa", d.head_dim_swa)
    b.key("attention.value_length_swa", d.head_dim_swa)
    b.key("attention.sliding_window", d.window_tokens)
    b.key("attention.sliding_window_pattern", Typed(ValueType.BOOL, [not f for f in full]))
    b.key("attention.shared_kv_layers", d.n_shared_kv)
    b.key("embedding_length_per_layer_input", d.n_embd_per_layer)
    b.key("rope.dimension_count_swa", d.head_dim_swa)
    b.key("rope.freq_base_swa", 10000.0)
    b.key("final_logit_softcapping", 30.0)


def _gemma4_attention(b: Builder, i: int, *, has_value: bool) -> None:
    # Full layers have other heads than windowed ones. The last layers have no key and value of
    # their own; in the larger models full layers use the key as value.
    d = b.d
    is_full = _is_full(d, i)
    attention(
        b,
        i,
        head_dim=d.head_dim if is_full else d.head_dim_swa,
        n_head_kv=d.n_head_kv if is_full else d.n_head_kv_swa,
        qk_norm="head",
        parts="q" if i >= d.n_layers - d.n_shared_kv else "qkv" if has_value else "qk",
    )
    _post_norm(b, f"blk.{i}.post_attention_norm")


def _gemma4_ends(b: Builder) -> None:
    ends(b)
    b.norm("rope_freqs.weight", b.d.head_dim // 2)


def _gemma4(b: Builder) -> None:
    d = b.d
    _gemma4_keys(b)
    _gemma4_ends(b)
    n_side = d.n_embd_per_layer * d.n_layers
    if n_side:
        b.embedding("per_layer_token_embd.weight", n_side, d.n_vocab)
        b.matrix("per_layer_model_proj.weight", d.n_embd, n_side, b.mix.dense)
        b.norm("per_layer_proj_norm.weight", d.n_embd_per_layer)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        _gemma4_attention(b, i, has_value=True)
        dense_ffn(b, i)
        _post_norm(b, f"{blk}post_ffw_norm")
        if n_side:
            b.matrix(f"{blk}inp_gate.weight", d.n_embd, d.n_embd_per_layer, b.mix.dense)
            b.matrix(f"{blk}proj.weight", d.n_embd_per_layer, d.n_embd, b.mix.dense)
            b.norm(f"{blk}post_norm.weight", d.n_embd)
        b.norm(f"{blk}layer_output_scale.weight", 1)


def _gemma4_moe(b: Builder) -> None:
    # A dense FFN beside the experts, each with norms of its own.
    d = b.d
    _gemma4_keys(b)
    b.key("expert_count", d.n_experts)
    b.key("expert_used_count", d.n_used)
    b.key("expert_feed_forward_length", d.n_ff_exp)
    _gemma4_ends(b)
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        _gemma4_attention(b, i, has_value=not _is_full(d, i))
        dense_ffn(b, i)
        _post_norm(b, f"{blk}post_ffw_norm")
        expert_ffn(b, i, norm="pre_ffw_norm_2")
        b.norm(f"{blk}ffn_gate_inp.scale", d.n_embd)
        b.norm(f"{blk}ffn_down_exps.scale", d.n_experts)
        b.norm(f"{blk}post_ffw_norm_1.weight", d.n_embd)
        b.norm(f"{blk}post_ffw_norm_2.weight", d.n_embd)
        b.norm(f"{blk}layer_output_scale.weight", 1)


_GEMMA4 = Dims(
    n_layers=6, interval=3, is_tied=True, head_dim=128, n_head_kv=1, head_dim_swa=64,
    n_head_kv_swa=2,
)  # fmt: skip

RECIPES = (
    FamilyRecipe("gemma2", "gemma2", _gemma2, Dims(is_tied=True)),
    FamilyRecipe("gemma3", "gemma3", _gemma3, Dims(is_tied=True, interval=3, n_layers=6)),
    FamilyRecipe(
        "gemma3n",
        "gemma3n",
        _gemma3n,
        Dims(is_tied=True, interval=5, n_layers=22, n_embd=128, n_ff=128, head_dim=32),
    ),
    FamilyRecipe("gemma4", "gemma4", _gemma4, replace(_GEMMA4, n_embd_per_layer=64, n_shared_kv=3)),
    FamilyRecipe("gemma4-moe", "gemma4", _gemma4_moe, _GEMMA4, can_fuse=True),
)
