"""The converted model as a file: the dense one's tensors, its feed-forward parts taken apart."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.core.tensortypes import TensorType, tensor_type_named
from hotset.gguf.synth.writer import Chunk, TensorEntry, Typed, Value, ValueType, write_gguf
from hotset.lab.moe.blocks import Floats, as_q8_0
from hotset.lab.moe.dense import Dense
from hotset.lab.moe.split import Split

__all__ = ["Experts", "write_moe"]

_F32, _Q8_0 = tensor_type_named("F32"), tensor_type_named("Q8_0")
_KEPT_NUMBERS = (
    "block_count",
    "context_length",
    "embedding_length",
    "feed_forward_length",
    "attention.head_count",
    "attention.head_count_kv",
    "vocab_size",
    "rope.dimension_count",
)
_KEPT_FRACTIONS = ("rope.freq_base", "attention.layer_norm_rms_epsilon")
_KEPT_IN_BLOCKS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm")


@dataclass(frozen=True, slots=True)
class Experts:
    """One block's experts: which neurons they are, and who chooses; router: (experts, width)."""

    split: Split
    router: Floats


def write_moe(
    path: Path, model: Dense, blocks: Sequence[Experts], *, name: str, num_used: int
) -> None:
    """Write `model` with its neurons as `blocks` say, for llama.cpp's architecture `deepseek`.
    Blocks before those stay dense.

    That one takes the router's softmax as weights without making those of the chosen experts sum
    to one, and scales them: with the number of experts as scale and a router whose weights are
    tiny, every chosen expert counts as much as it did in the dense model.

    Raises:
        MachineProblem: the file cannot be written.
    """
    tensors = [_copied(model, "token_embd.weight"), _copied(model, "output_norm.weight")]
    num_dense = model.num_blocks - len(blocks)
    for number in range(num_dense):
        parts = (*_KEPT_IN_BLOCKS, "ffn_gate", "ffn_up", "ffn_down")
        tensors += [_copied(model, f"blk.{number}.{part}.weight") for part in parts]
    for number, experts in enumerate(blocks, num_dense):
        tensors += _block(model, number, experts)
    metadata = _metadata(model, blocks[0], name, num_used)
    metadata["deepseek.leading_dense_block_count"] = num_dense
    write_gguf(path, metadata, tensors)


def _metadata(model: Dense, experts: Experts, name: str, num_used: int) -> dict[str, Value]:
    num_experts, expert_width = experts.split.experts.shape
    metadata: dict[str, Value] = {"general.architecture": "deepseek", "general.name": name}
    for key in ("general.organization", "general.license", "general.quantization_version"):
        value = model.header.metadata.get(key)
        if isinstance(value, str | int):
            metadata[key] = value
    for key in _KEPT_NUMBERS:
        metadata[f"deepseek.{key}"] = int(model.number(key))
    for key in _KEPT_FRACTIONS:
        metadata[f"deepseek.{key}"] = float(model.number(key))
    metadata |= {
        "deepseek.expert_count": num_experts,
        "deepseek.expert_used_count": num_used,
        "deepseek.expert_feed_forward_length": expert_width,
        # The shared expert is as wide as so many of the others.
        "deepseek.expert_shared_count": len(experts.split.shared) // expert_width,
        "deepseek.expert_weights_scale": float(num_experts),
    }
    for key, value in model.header.metadata.items():
        if not key.startswith("tokenizer."):
            continue
        if key.endswith("token_type") and isinstance(value, tuple):
            metadata[key] = Typed(ValueType.INT32, value)
        elif isinstance(value, tuple | str | int | float):
            metadata[key] = value
    return metadata


def _copied(model: Dense, name: str) -> TensorEntry:
    tensor = model.info(name)
    return TensorEntry(name, tensor.dims, tensor.type, lambda: [_chunk(model.raw(name))])


def _block(model: Dense, number: int, experts: Experts) -> list[TensorEntry]:
    def named(part: str) -> str:
        return f"blk.{number}.{part}.weight"

    split = experts.split
    num_experts, expert_width = split.experts.shape
    router = _entry(
        named("ffn_gate_inp"), (model.width, num_experts), _F32,
        lambda: np.ascontiguousarray(experts.router, dtype="<f4").view(np.uint8),
    )  # fmt: skip
    entries = [_copied(model, named(part)) for part in _KEPT_IN_BLOCKS] + [router]
    order = split.experts.reshape(-1)
    for part in ("gate", "up"):
        # A neuron is a row of these matrices, whatever their type: rows go over as they are.
        name = named(f"ffn_{part}")
        kind = model.info(name).type
        for suffix, shape, neurons in (
            ("exps", (model.width, expert_width, num_experts), order),
            ("shexp", (model.width, len(split.shared)), split.shared),
        ):
            entries.append(
                _entry(named(f"ffn_{part}_{suffix}"), shape, kind, _rows(model, name, neurons))
            )
    entries += [
        _entry(
            named("ffn_down_exps"), (expert_width, model.width, num_experts), _Q8_0,
            lambda: as_q8_0(_down_of_experts(model.floats(named("ffn_down")), split)),
        ),
        _entry(
            named("ffn_down_shexp"), (len(split.shared), model.width), _Q8_0,
            lambda: as_q8_0(np.ascontiguousarray(model.floats(named("ffn_down"))[:, split.shared])),
        ),
    ]  # fmt: skip
    return entries


def _rows(model: Dense, name: str, neurons: NDArray[np.intp]) -> Callable[[], NDArray[np.uint8]]:
    return lambda: model.raw(name)[neurons]


def _down_of_experts(down: Floats, split: Split) -> Floats:
    """A neuron is a column there, so each expert gets its columns: (experts, width, neurons)."""
    return np.ascontiguousarray(down[:, split.experts].transpose(1, 0, 2))


def _entry(
    name: str, shape: tuple[int, ...], kind: TensorType, data: Callable[[], NDArray[np.uint8]]
) -> TensorEntry:
    return TensorEntry(name, shape, kind, lambda: [_chunk(data())])


def _chunk(data: NDArray[np.uint8]) -> Chunk:
    return np.ascontiguousarray(data).tobytes()
