"""A byte-by-byte GGUF builder for tests, able to write wrong files as well as right ones.

It shares nothing with hotset's own writer or reader: sizes come from the `gguf` package.
"""

from __future__ import annotations

import struct
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, NamedTuple

import gguf

__all__ = [
    "Gguf",
    "Tensor",
    "Value",
    "array",
    "chat_model",
    "encoded_text",
    "number",
    "ok_file",
    "shard_set",
    "text",
    "write_shards",
]

NUMBERS = {
    "u8": (0, "<B"),
    "i8": (1, "<b"),
    "u16": (2, "<H"),
    "i16": (3, "<h"),
    "u32": (4, "<I"),
    "i32": (5, "<i"),
    "f32": (6, "<f"),
    "bool": (7, "<?"),
    "u64": (10, "<Q"),
    "i64": (11, "<q"),
    "f64": (12, "<d"),
}
STRING, ARRAY = 8, 9
F32, F64, Q4_0, Q4_K = 0, 28, 2, 12
BLOCKS = {int(type_): sizes for type_, sizes in gguf.GGML_QUANT_SIZES.items()}
"""Elements and bytes per block, by type number."""


class Value(NamedTuple):
    """A metadata value as it lies in the file: type number and bytes."""

    type: int
    payload: bytes


def number(kind: str, value: float) -> Value:
    type_, layout = NUMBERS[kind]
    return Value(type_, struct.pack(layout, value))


def encoded_text(value: str | bytes) -> bytes:
    raw = value.encode() if isinstance(value, str) else value
    return struct.pack("<Q", len(raw)) + raw


def text(value: str | bytes) -> Value:
    return Value(STRING, encoded_text(value))


def array(kind: str, values: Iterable[Any], *, count: int | None = None) -> Value:
    """An array; `count` lies about its length."""
    items = list(values)
    type_, layout = (STRING, "") if kind == "string" else NUMBERS[kind]
    payload = b"".join(struct.pack(layout, v) if layout else encoded_text(v) for v in items)
    n = len(items) if count is None else count
    return Value(ARRAY, struct.pack("<IQ", type_, n) + payload)


def pieces_of_text(encoded: bytes) -> list[bytes]:
    return [encoded[:8], encoded[8:]]


def pieces_of_value(value: Value) -> list[bytes]:
    """Lengths and counts apart from what they count; the strings of an array stay together."""
    if value.type == STRING:
        return pieces_of_text(value.payload)
    if value.type == ARRAY:
        return [value.payload[:4], value.payload[4:12], value.payload[12:]]
    return [value.payload]


@dataclass(frozen=True)
class Tensor:
    """One entry of the tensor table; `offset` (in the data) is worked out unless given."""

    name: str | bytes
    dims: tuple[int, ...] = (32,)
    type: int = F32
    offset: int | None = None

    @property
    def n_bytes(self) -> int:
        per_block, block_bytes = BLOCKS.get(self.type, (1, 4))
        n = 1
        for dim in self.dims:
            n *= dim
        return int(n // per_block * block_bytes)


@dataclass(frozen=True)
class Gguf:
    """A file to be. The counts lie where `n_keys` or `n_tensors` is given."""

    keys: tuple[tuple[str | bytes, Value], ...] = ()
    tensors: tuple[Tensor, ...] = ()
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    n_keys: int | None = None
    n_tensors: int | None = None
    byte_order: str = field(default="<")

    def with_key(self, key: str | bytes, value: Value) -> Gguf:
        """The same with a key added, or its value replaced."""
        return replace(self, keys=(*(k for k in self.keys if k[0] != key), (key, value)))

    def without_key(self, key: str) -> Gguf:
        return replace(self, keys=tuple(k for k in self.keys if k[0] != key))

    def with_tensors(self, *tensors: Tensor) -> Gguf:
        return replace(self, tensors=tensors)

    def pieces(self) -> list[bytes]:
        """Everything before the padding and the data, field by field."""
        n_tensors = len(self.tensors) if self.n_tensors is None else self.n_tensors
        n_keys = len(self.keys) if self.n_keys is None else self.n_keys
        counts = (n_tensors, n_keys)
        out = [self.magic, struct.pack(f"{self.byte_order}I", self.version)]
        out += [struct.pack(f"{self.byte_order}Q", n) for n in counts]
        for key, value in self.keys:
            out += [*pieces_of_text(encoded_text(key)), struct.pack("<I", value.type)]
            out += pieces_of_value(value)
        running = 0
        for t in self.tensors:
            offset = running if t.offset is None else t.offset
            out += [*pieces_of_text(encoded_text(t.name)), struct.pack("<I", len(t.dims))]
            out += [struct.pack("<Q", dim) for dim in t.dims]
            out += [struct.pack("<I", t.type), struct.pack("<Q", offset)]
            running = -(-(offset + t.n_bytes) // self.alignment) * self.alignment
        return out

    def header(self) -> bytes:
        """Everything before the padding and the data."""
        return b"".join(self.pieces())

    def data_offset(self) -> int:
        return -(-len(self.header()) // self.alignment) * self.alignment

    def file_bytes(self) -> int:
        """Size of the whole file: the end of the last tensor."""
        end = running = 0
        for t in self.tensors:
            offset = running if t.offset is None else t.offset
            end = max(end, offset + t.n_bytes)
            running = -(-(offset + t.n_bytes) // self.alignment) * self.alignment
        return self.data_offset() + end if self.tensors else len(self.header())

    def write(self, path: Path, *, file_bytes: int | None = None) -> Path:
        """Write it with its data as a hole; `file_bytes` cuts it or makes it longer.

        What would be larger than 1 TiB ends there: it can only be a lie.
        """
        path.write_bytes(self.header())
        with path.open("r+b") as file:
            file.truncate(min(self.file_bytes() if file_bytes is None else file_bytes, 2**40))
        return path


def ok_file() -> Gguf:
    """A sound file with a value of each type and tensors of several shapes and types."""
    keys: list[tuple[str | bytes, Value]] = [("general.architecture", text("llama"))]
    keys += [(f"test.{kind}", number(kind, 1)) for kind in NUMBERS]
    keys += [(f"test.{kind}s", array(kind, [0, 1, 1])) for kind in NUMBERS]
    keys += [
        ("test.words", array("string", ["a", "", "ünï", "x" * 300])),
        ("test.long", text("y" * 5000)),
    ]
    tensors = (
        Tensor("token_embd.weight", (64, 10), Q4_0),
        Tensor("blk.0.attn_norm.weight", (7,)),
        Tensor("blk.0.ffn_gate_exps.weight", (256, 2, 3), Q4_K),
        Tensor("output_norm.weight", (64, 1, 1, 2)),
    )
    return Gguf(tuple(keys), tensors)


def chat_model(architecture: str = "llama", *, name: str = "", width: int = 64) -> Gguf:
    """A model with one dense block and a vocabulary, enough to be told what it is."""
    a = architecture
    keys: list[tuple[str | bytes, Value]] = [("general.architecture", text(a))]
    if name:
        keys.append(("general.name", text(name)))
    keys += [
        (f"{a}.block_count", number("u32", 1)),
        (f"{a}.context_length", number("u32", 4096)),
        (f"{a}.embedding_length", number("u32", width)),
        (f"{a}.feed_forward_length", number("u32", 4 * width)),
        (f"{a}.attention.head_count", number("u32", 4)),
        (f"{a}.attention.head_count_kv", number("u32", 2)),
        ("tokenizer.ggml.model", text("gpt2")),
        ("tokenizer.ggml.tokens", array("string", ["a", "b", "c"])),
        ("tokenizer.chat_template", text("{{ messages }}")),
    ]
    tensors = (
        Tensor("token_embd.weight", (width, 3)),
        Tensor("blk.0.attn_norm.weight", (width,)),
        Tensor("blk.0.attn_q.weight", (width, width)),
        Tensor("blk.0.attn_k.weight", (width, width // 2)),
        Tensor("blk.0.attn_v.weight", (width, width // 2)),
        Tensor("blk.0.attn_output.weight", (width, width)),
        Tensor("blk.0.ffn_norm.weight", (width,)),
        Tensor("blk.0.ffn_gate.weight", (width, 4 * width)),
        Tensor("blk.0.ffn_up.weight", (width, 4 * width)),
        Tensor("blk.0.ffn_down.weight", (4 * width, width)),
        Tensor("output_norm.weight", (width,)),
    )
    return Gguf(tuple(keys), tensors)


def shard_set(file: Gguf, count: int, *, n_tensors: int | None = None) -> list[Gguf]:
    """`file` cut into `count` shards, its metadata in the first; `n_tensors` lies."""
    total = len(file.tensors) if n_tensors is None else n_tensors
    shards = []
    for index in range(count):
        split: tuple[tuple[str | bytes, Value], ...] = (
            ("split.no", number("u16", index)),
            ("split.count", number("u16", count)),
            ("split.tensors.count", number("i32", total)),
        )
        keys = (*file.keys, *split) if index == 0 else split
        shards.append(replace(file, keys=keys, tensors=file.tensors[index::count]))
    return shards


def write_shards(shards: list[Gguf], directory: Path, name: str = "model") -> list[Path]:
    return [
        shard.write(directory / f"{name}-{i:05}-of-{len(shards):05}.gguf")
        for i, shard in enumerate(shards, start=1)
    ]
