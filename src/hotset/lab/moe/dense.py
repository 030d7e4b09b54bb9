"""The dense model that is to become one with experts: its file, its shape, its weights."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.core.errors import FileProblem
from hotset.gguf.reader import Header, TensorInfo, read_header
from hotset.lab.moe.blocks import Floats, as_floats

__all__ = ["Block", "Dense", "open_dense"]

_TEXTS = (
    "tokenizer.ggml.tokens",
    "tokenizer.ggml.token_type",
    "tokenizer.ggml.merges",
    "tokenizer.chat_template",
)


@dataclass(frozen=True, slots=True)
class Block:
    """Weights of one block, as (outputs, inputs)."""

    attn_norm: Floats
    query: Floats
    key: Floats
    value: Floats
    attn_output: Floats
    ffn_norm: Floats
    gate: Floats
    up: Floats
    down: Floats


@dataclass(frozen=True)
class Dense:
    """A model of the `llama` family.

    Attributes:
        bytes_of: the file, mapped.
    """

    header: Header
    tensors: Mapping[str, TensorInfo]
    bytes_of: NDArray[np.uint8]

    def number(self, key: str) -> float:
        """A number of the metadata, `llama.` before its name.

        Raises:
            FileProblem: it is missing.
        """
        value = self.header.metadata.get(f"llama.{key}")
        if not isinstance(value, int | float):
            raise FileProblem(f"{self.header.path.name}: llama.{key} is missing; use another file")
        return value

    @property
    def num_blocks(self) -> int:
        return int(self.number("block_count"))

    @property
    def width(self) -> int:
        return int(self.number("embedding_length"))

    @property
    def num_neurons(self) -> int:
        """Of each block."""
        return int(self.number("feed_forward_length"))

    @property
    def num_heads(self) -> int:
        return int(self.number("attention.head_count"))

    @property
    def num_kv_heads(self) -> int:
        return int(self.number("attention.head_count_kv"))

    @property
    def norm_epsilon(self) -> float:
        return self.number("attention.layer_norm_rms_epsilon")

    def raw(self, name: str) -> NDArray[np.uint8]:
        """A tensor's bytes as they are, shape (rows, bytes of a row).

        Raises:
            FileProblem: there is no such tensor.
        """
        tensor = self.info(name)
        data = self.bytes_of[tensor.offset_bytes : tensor.end_bytes]
        return data.reshape(-1, tensor.type.row_bytes(tensor.dims[0]))

    def info(self, name: str) -> TensorInfo:
        tensor = self.tensors.get(name)
        if tensor is None:
            raise FileProblem(f"{self.header.path.name}: has no tensor {name}; use another file")
        return tensor

    def floats(self, name: str) -> Floats:
        """A matrix as (outputs, inputs); a vector as (1, n)."""
        tensor = self.info(name)
        return as_floats(tensor.type, self.raw(name).reshape(-1), tensor.dims[0])

    def block(self, number: int) -> Block:
        def floats(name: str) -> Floats:
            return self.floats(f"blk.{number}.{name}.weight")

        return Block(
            attn_norm=floats("attn_norm")[0],
            query=floats("attn_q"),
            key=floats("attn_k"),
            value=floats("attn_v"),
            attn_output=floats("attn_output"),
            ffn_norm=floats("ffn_norm")[0],
            gate=floats("ffn_gate"),
            up=floats("ffn_up"),
            down=floats("ffn_down"),
        )

    @cached_property
    def embedding(self) -> Floats:
        """One row per token; the output matrix, too."""
        return self.floats("token_embd.weight")


def open_dense(path: Path) -> Dense:
    """Read the header of `path` and map the file.

    Raises:
        FileProblem: not sound, or no `llama` model with tied embeddings.
    """
    header = read_header(path, want=_TEXTS)
    if header.metadata.get("general.architecture") != "llama":
        raise FileProblem(f"{path.name}: only models of the architecture 'llama' can be converted")
    tensors = {tensor.name: tensor for tensor in header.tensors}
    if "output.weight" in tensors or "rope_freqs.weight" in tensors:
        raise FileProblem(f"{path.name}: only models like SmolLM2-135M can be converted")
    return Dense(header, tensors, np.memmap(path, dtype=np.uint8, mode="r"))
