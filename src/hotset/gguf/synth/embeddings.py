"""Files that are no chat models: text encoders, and the projector of a vision model."""

from __future__ import annotations

from hotset.gguf.synth.parts import decoder_keys
from hotset.gguf.synth.recipe import Builder, Dims, FamilyRecipe, ModelKind

__all__ = ["RECIPES"]

_MEAN_POOLING, _CLS_POOLING = 1, 2


def _encoder_keys(b: Builder, *, pooling: int) -> None:
    decoder_keys(b, epsilon_key="attention.layer_norm_epsilon")
    b.key("attention.causal", False)
    b.key("pooling_type", pooling)
    b.set("tokenizer.ggml.token_type_count", 2)


def _encoder(b: Builder, *, has_gate: bool) -> None:
    d, kind = b.d, b.mix.dense
    n_kv = d.n_head_kv * d.head_dim
    b.embedding("token_embd.weight", d.n_embd, d.n_vocab)
    b.values("token_types.weight", d.n_embd, 2, gain=0.3)
    _layer_norm(b, "token_embd_norm")
    for i in range(d.n_layers):
        blk = f"blk.{i}."
        for part, n_out in (("q", d.n_embd), ("k", n_kv), ("v", n_kv), ("output", d.n_embd)):
            b.matrix(f"{blk}attn_{part}.weight", d.n_embd, n_out, b.mix.attention)
        _layer_norm(b, f"{blk}attn_output_norm")
        if has_gate:
            b.matrix(f"{blk}ffn_gate.weight", d.n_embd, d.n_ff, kind)
        b.matrix(f"{blk}ffn_up.weight", d.n_embd, d.n_ff, kind)
        b.matrix(f"{blk}ffn_down.weight", d.n_ff, d.n_embd, kind)
        _layer_norm(b, f"{blk}layer_output_norm")


def _layer_norm(b: Builder, name: str) -> None:
    b.norm(f"{name}.weight", b.d.n_embd)
    b.values(f"{name}.bias", b.d.n_embd)


def _bert(b: Builder) -> None:
    _encoder_keys(b, pooling=_CLS_POOLING)
    b.values("position_embd.weight", b.d.n_embd, b.d.context_tokens, gain=0.3)
    _encoder(b, has_gate=False)


def _nomic_bert(b: Builder) -> None:
    _encoder_keys(b, pooling=_MEAN_POOLING)
    _encoder(b, has_gate=True)


def _projector(b: Builder) -> None:
    # A vision tower as tools/mtmd reads it; complete enough to be recognized, not to see.
    d = b.d
    b.set("general.type", "mmproj")
    b.set("clip.has_vision_encoder", True)
    b.set("clip.projector_type", "mlp")
    b.set("clip.use_gelu", True)
    b.set("clip.vision.image_size", 56)
    b.set("clip.vision.patch_size", 14)
    b.set("clip.vision.embedding_length", d.n_embd)
    b.set("clip.vision.feed_forward_length", d.n_ff)
    b.set("clip.vision.projection_dim", d.n_embd)
    b.set("clip.vision.block_count", d.n_layers)
    b.set("clip.vision.attention.head_count", d.n_head)
    b.set("clip.vision.attention.layer_norm_epsilon", 1e-5)
    b.set("clip.vision.image_mean", [0.5, 0.5, 0.5])
    b.set("clip.vision.image_std", [0.5, 0.5, 0.5])
    b.values("v.patch_embd.weight", 14, 14, 3, d.n_embd)
    b.values("v.position_embd.weight", d.n_embd, 16)
    for i in range(d.n_layers):
        blk = f"v.blk.{i}."
        for part in ("q", "k", "v", "out"):
            b.matrix(f"{blk}attn_{part}.weight", d.n_embd, d.n_embd, "F16")
            b.values(f"{blk}attn_{part}.bias", d.n_embd)
        for norm in ("ln1", "ln2"):
            _layer_norm(b, f"{blk}{norm}")
        b.matrix(f"{blk}ffn_up.weight", d.n_embd, d.n_ff, "F16")
        b.matrix(f"{blk}ffn_down.weight", d.n_ff, d.n_embd, "F16")
    for name in ("mm.0", "mm.2"):
        b.matrix(f"{name}.weight", d.n_embd, d.n_embd, "F16")
        b.values(f"{name}.bias", d.n_embd)


_ENCODER = Dims(context_tokens=512, n_head_kv=4)

RECIPES = (
    FamilyRecipe("bert", "bert", _bert, _ENCODER, kind=ModelKind.EMBEDDING),
    FamilyRecipe("nomic-bert", "nomic-bert", _nomic_bert, _ENCODER, kind=ModelKind.EMBEDDING),
    FamilyRecipe("mmproj", "clip", _projector, Dims(n_layers=2), kind=ModelKind.PROJECTOR),
)
