"""Sparse files with the true header of a real model: full size in name, megabytes on disk.

Dimensions are those of the models' published configurations (config.json on their model pages).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from math import prod
from pathlib import Path

from hotset.core.errors import ConfigProblem
from hotset.core.families import build_model_spec
from hotset.core.modelspec import ModelSpec
from hotset.core.tensortypes import TensorType
from hotset.gguf.synth.families import FAMILIES
from hotset.gguf.synth.recipe import Dims, Latent, Mix, ModelPlan, Sparse, Ssm
from hotset.gguf.synth.vocab import make_vocabulary
from hotset.gguf.synth.writer import TensorEntry, Typed, Value, write_gguf

__all__ = ["MIXES", "REAL_MODELS", "RealModel", "fullscale_spec", "write_fullscale"]


@dataclass(frozen=True, slots=True)
class RealModel:
    """One published model: its own name, the family that describes it, its sizes."""

    name: str
    family: str
    dims: Dims
    pre: str = "gpt-2"
    """The splitting rule of its tokenizer."""


_QWEN36_35B = Dims(
    n_layers=40, n_embd=2048, n_head=16, n_head_kv=2, head_dim=256, n_ff=512, n_ff_exp=512,
    n_ff_shexp=512, n_experts=256, n_used=8, n_vocab=248320, context_tokens=262144, interval=4,
    rope_dims=64, rope_base=1e7, ssm=Ssm(conv_kernel=4, state=128, inner=4096, rank=32, groups=16),
)  # fmt: skip

_QWEN35_122B = replace(
    _QWEN36_35B, n_layers=48, n_embd=3072, n_head=32, n_ff=1024, n_ff_exp=1024, n_ff_shexp=1024,
    ssm=Ssm(conv_kernel=4, state=128, inner=8192, rank=64, groups=16),
)  # fmt: skip

_QWEN3_NEXT = replace(_QWEN36_35B, n_layers=48, n_experts=512, n_used=10, n_vocab=151936)

_QWEN38_NEXT = replace(
    _QWEN36_35B, n_layers=48, n_embd=2560, n_head=24, n_ff=640, n_ff_exp=640, n_ff_shexp=640,
    n_experts=512, n_used=10, ssm=Ssm(conv_kernel=4, state=128, inner=6144, rank=48, groups=16),
    sparse=Sparse(mixer_rank=320, indexer_heads=4, indexer_dim=128, top_k=2048,
                  heads_per_ngram=8, rows_per_head=20_000_096),
)  # fmt: skip

_GPT_OSS_20B = Dims(
    n_layers=24, n_embd=2880, n_head=64, n_head_kv=8, head_dim=64, n_ff=2880, n_ff_exp=2880,
    n_experts=32, n_used=4, n_vocab=201088, context_tokens=131072, window_tokens=128,
    rope_base=150000.0,
)  # fmt: skip

_GLM45_AIR = Dims(
    n_layers=46, n_embd=4096, n_head=96, n_head_kv=8, head_dim=128, rope_dims=64, n_ff=10944,
    n_ff_exp=1408, n_ff_shexp=1408, n_experts=128, n_used=8, n_dense_lead=1, n_vocab=151552,
    context_tokens=131072, rope_base=1e6,
)  # fmt: skip

_GRANITE_3B = Dims(
    n_layers=32, n_embd=1536, n_head=24, n_head_kv=8, head_dim=64, n_ff=512, n_ff_shexp=0,
    n_experts=40, n_used=8, n_vocab=49155, context_tokens=131072, rope_base=1e7, is_tied=True,
)  # fmt: skip

REAL_MODELS: Mapping[str, RealModel] = {
    "qwen3-30b-a3b": RealModel("Qwen3-30B-A3B", "qwen3moe", Dims(
        n_layers=48, n_embd=2048, n_head=32, n_head_kv=4, head_dim=128, n_ff=6144, n_ff_exp=768,
        n_experts=128, n_used=8, n_vocab=151936, context_tokens=40960, rope_base=1e6,
    ), "qwen2"),
    "qwen3.6-35b-a3b": RealModel("Qwen3.6-35B-A3B", "qwen35moe", _QWEN36_35B, "qwen35"),
    "qwen3.6-35b-a3b-mtp": RealModel(
        "Qwen3.6-35B-A3B", "qwen35moe", replace(_QWEN36_35B, n_mtp=1), "qwen35"
    ),
    "qwen3.5-122b-a10b": RealModel("Qwen3.5-122B-A10B", "qwen35moe", _QWEN35_122B, "qwen35"),
    "qwen3-next-80b-a3b": RealModel("Qwen3-Next-80B-A3B", "qwen3next", _QWEN3_NEXT, "qwen2"),
    "qwen3.8-flash-next": RealModel("Qwen3.8-Flash-Next", "qwen4exp", _QWEN38_NEXT, "qwen35"),
    "gpt-oss-20b": RealModel("gpt-oss-20b", "gpt-oss", _GPT_OSS_20B, "gpt-4o"),
    "gpt-oss-120b": RealModel(
        "gpt-oss-120b", "gpt-oss", replace(_GPT_OSS_20B, n_layers=36, n_experts=128), "gpt-4o"
    ),
    "gemma-4-26b-a4b": RealModel("Gemma-4-26B-A4B", "gemma4-moe", Dims(
        n_layers=30, n_embd=2816, n_head=16, n_head_kv=2, head_dim=512, n_head_kv_swa=8,
        head_dim_swa=256, window_tokens=1024, interval=6, n_ff=2112, n_ff_exp=704, n_experts=128,
        n_used=8, n_vocab=262144, context_tokens=262144, rope_base=1e6, is_tied=True,
    )),
    "glm-4.5-air": RealModel("GLM-4.5-Air", "glm4moe", _GLM45_AIR, "glm4"),
    "glm-4.5-air-mtp": RealModel("GLM-4.5-Air", "glm4moe", replace(_GLM45_AIR, n_mtp=1), "glm4"),
    "glm-4.7-flash": RealModel("GLM-4.7-Flash", "deepseek2-mla", Dims(
        n_layers=47, n_embd=2048, n_head=20, n_ff=10240, n_ff_exp=1536, n_ff_shexp=1536,
        n_experts=64, n_used=4, n_vocab=154880, context_tokens=202752, rope_base=1e6,
        latent=Latent(q_rank=768, kv_rank=512, nope=192, rope=64, value=256),
    ), "glm4"),
    "mixtral-8x7b": RealModel("Mixtral-8x7B", "mixtral", Dims(
        n_layers=32, n_embd=4096, n_head=32, n_head_kv=8, head_dim=128, n_ff=14336, n_experts=8,
        n_used=2, n_vocab=32000, context_tokens=32768, rope_base=1e6,
    )),
    "olmoe-1b-7b": RealModel("OLMoE-1B-7B", "olmoe", Dims(
        n_layers=16, n_embd=2048, n_head=16, n_head_kv=16, head_dim=128, n_ff=1024, n_experts=64,
        n_used=8, n_vocab=50304, context_tokens=4096,
    ), "olmo"),
    "granite-3.1-3b-a800m": RealModel("Granite-3.1-3B-A800M", "granitemoe", _GRANITE_3B, "refact"),
    "granite-3.1-1b-a400m": RealModel("Granite-3.1-1B-A400M", "granitemoe", replace(
        _GRANITE_3B, n_layers=24, n_embd=1024, n_head=16, n_experts=32,
    ), "refact"),
}  # fmt: skip
"""By the name that `write_fullscale` takes."""

MIXES: Mapping[str, Mix] = {
    "Q4_0": Mix("Q4_0", "Q6_K", "Q4_0", "Q4_0", "Q4_0", "Q4_0", "Q4_0", file_type=2),
    "Q8_0": Mix("Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", file_type=7),
    "Q2_K": Mix("Q2_K", "Q6_K", "Q2_K", "Q2_K", "Q2_K", "Q2_K", "Q3_K", file_type=10),
    "Q4_K_M": Mix("Q4_K", "Q6_K", "Q4_K", "Q4_K", "Q4_K", "Q4_K", "Q6_K", file_type=15),
    "Q4_K_XL": Mix("Q4_K", "Q6_K", "Q8_0", "Q8_0", "Q8_0", "Q4_K", "Q5_K", file_type=15),
    "Q5_K_M": Mix("Q5_K", "Q6_K", "Q5_K", "Q5_K", "Q5_K", "Q5_K", "Q6_K", file_type=17),
    "Q6_K": Mix("Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", "Q6_K", file_type=18),
    "IQ4_XS": Mix("IQ4_XS", "Q6_K", "IQ4_XS", "IQ4_XS", "IQ4_XS", "IQ4_XS", "IQ4_XS", file_type=30),
    "MXFP4": Mix("Q8_0", "Q8_0", "Q8_0", "Q8_0", "Q8_0", "MXFP4", "MXFP4", file_type=38),
}
"""Type mixes in the manner of llama.cpp's quantizer, without its exceptions for single layers."""


def write_fullscale(
    model: str, path: Path, *, mix: str = "Q4_K_M", n_vocab: int | None = None
) -> Path:
    """Write `model`'s header, with all of its data as one hole.

    The file loads like the real one and computes nothing sensible: it is for memory plans.

    Args:
        model: a key of `REAL_MODELS`.
        path: where.
        mix: a key of `MIXES`.
        n_vocab: another size of the vocabulary, for devices that refuse large matrices.

    Returns:
        `path`.

    Raises:
        ConfigProblem: an unknown model or mix.
        MachineProblem: the file cannot be written.
    """
    real, plan = _planned(model, mix, n_vocab)
    metadata: dict[str, Value] = {
        **plan.metadata,
        "general.name": real.name,
        **make_vocabulary(n_vocab or real.dims.n_vocab).metadata(pre=real.pre),
    }
    write_gguf(path, metadata, [TensorEntry(t.name, t.shape, t.type) for t in plan.tensors])
    return path


def fullscale_spec(model: str, *, mix: str = "Q4_K_M") -> ModelSpec:
    """What `write_fullscale`'s file says of itself but for its vocabulary, without any file.

    Raises:
        ConfigProblem: an unknown model or mix.
    """
    real, plan = _planned(model, mix)
    metadata = {key: _as_read(value) for key, value in plan.metadata.items()}
    tensors = [
        _Tensor(t.name, t.type, t.shape, t.type.row_bytes(t.shape[0]) * prod(t.shape[1:]))
        for t in plan.tensors
    ]
    return build_model_spec({**metadata, "general.name": real.name}, tensors, source=model)


@dataclass(frozen=True, slots=True)
class _Tensor:
    name: str
    type: TensorType
    dims: tuple[int, ...]
    n_bytes: int


def _as_read(value: Value) -> object:
    """A value as the header's reader gives it: arrays as tuples."""
    plain = value.value if isinstance(value, Typed) else value
    return plain if isinstance(plain, str) or not isinstance(plain, Sequence) else tuple(plain)


def _planned(model: str, mix: str, n_vocab: int | None = None) -> tuple[RealModel, ModelPlan]:
    if model not in REAL_MODELS:
        raise ConfigProblem(f"model '{model}': unknown; known are {', '.join(REAL_MODELS)}")
    if mix not in MIXES:
        raise ConfigProblem(f"mix '{mix}': unknown; known are {', '.join(MIXES)}")
    real = REAL_MODELS[model]
    dims = replace(real.dims, n_vocab=n_vocab) if n_vocab else real.dims
    return real, FAMILIES[real.family].plan(dims, MIXES[mix])
