"""Models as numbers, for tests of the core: a tensor table and metadata without any file."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from hotset.core.families import build_model_spec
from hotset.core.memory import CacheSettings
from hotset.core.modelspec import ModelSpec
from hotset.core.tensortypes import TensorType, tensor_type_named

F16 = tensor_type_named("F16")
Q8_0 = tensor_type_named("Q8_0")


@dataclass(frozen=True, slots=True)
class Tensor:
    """Satisfies `TensorFacts`."""

    name: str
    type: TensorType
    dims: tuple[int, ...]
    n_bytes: int


def tensor(name: str, *dims: int, type_name: str = "F16") -> Tensor:
    """A tensor of honest size."""
    kind = tensor_type_named(type_name)
    n_rows = 1
    for size in dims[1:]:
        n_rows *= size
    return Tensor(name, kind, dims, kind.row_bytes(dims[0]) * n_rows)


def metadata(architecture: str, keys: Mapping[str, object]) -> dict[str, object]:
    """`keys` are those of the architecture, without its prefix."""
    own = {f"{architecture}.{key}": value for key, value in keys.items()}
    return {"general.architecture": architecture, **own}


def spec_of(
    architecture: str,
    keys: Mapping[str, object],
    tensors: Iterable[Tensor] = (),
    *,
    source: str = "model.gguf",
) -> ModelSpec:
    """A model with these keys; without tensors of its own it gets one norm."""
    table = list(tensors) or [tensor("blk.0.attn_norm.weight", 8, type_name="F32")]
    return build_model_spec(metadata(architecture, keys), table, source=source)


def small(**changes: object) -> dict[str, object]:
    """Keys of a valid model of 4 blocks: 4 heads, 2 KV heads of 32, width 128.

    Underscores double as dots: ``attention__head_count=8``. None removes a key.
    """
    keys: dict[str, object] = {
        "block_count": 4,
        "context_length": 4096,
        "embedding_length": 128,
        "attention.head_count": 4,
        "attention.head_count_kv": 2,
    }
    keys.update({key.replace("__", "."): value for key, value in changes.items()})
    return {key: value for key, value in keys.items() if value is not None}


def settings(
    context_tokens: int = 4096,
    slots: int = 1,
    *,
    type_k: TensorType = F16,
    type_v: TensorType = F16,
    ubatch_tokens: int = 512,
    is_unified: bool = False,
    has_flash_attention: bool = True,
    has_full_window: bool = False,
) -> CacheSettings:
    """F16 caches, batches of 512, flash attention."""
    return CacheSettings(
        context_tokens=context_tokens,
        slots=slots,
        type_k=type_k,
        type_v=type_v,
        ubatch_tokens=ubatch_tokens,
        is_unified=is_unified,
        has_flash_attention=has_flash_attention,
        has_full_window=has_full_window,
    )
