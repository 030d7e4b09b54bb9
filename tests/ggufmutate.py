"""Damage done to sound headers, and what must still hold of a header that is accepted."""

from __future__ import annotations

import itertools
import os
import random
import struct
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from ggufkit import BLOCKS, Gguf, Tensor, array, chat_model, number, ok_file, text
from hotset.gguf.reader import Header

__all__ = ["SEEDS", "Damaged", "assert_sound", "damaged_file"]

EXTREMES = (
    *(0, 1, 2, 3, 4, 5, 7, 8, 9, 31, 32, 33, 63, 64, 255, 256, 4096, 4097),
    *(2**15, 2**16 - 1, 2**16, 2**16 + 1, 2**20, 2**24, 2**28, 2**30),
    *(2**31 - 1, 2**31, 2**32 - 1, 2**32, 2**40, 2**61, 2**62, 2**63 - 1, 2**63, 2**64 - 1),
)
FILE_SIZES = (2**12, 2**14, 2**16, 2**18, 2**20, 2**22, 2**24, 2**34)
INTEGERS = {1: "<B", 2: "<H", 4: "<I", 8: "<Q"}

SEEDS: tuple[Gguf, ...] = (
    ok_file(),
    chat_model("qwen3moe", name="A name"),
    ok_file().with_tensors(
        *(Tensor(f"blk.{n}.t", (256, 2), n) for n in BLOCKS),
    ),
    Gguf(
        (
            ("general.alignment", number("u32", 64)),
            ("general.architecture", text("llama")),
            ("tokens", array("string", [f"token {i}" for i in range(200)])),
            ("split.no", number("u16", 0)),
            ("split.count", number("u16", 2)),
        ),
        tuple(Tensor(f"blk.{i}.t", (3, 5, 2, 2)) for i in range(40)),
        alignment=64,
    ),
)


@dataclass(frozen=True)
class Damaged:
    """The start of a file and the size that it pretends to have."""

    start: bytes
    file_bytes: int

    def write(self, path: Path) -> Path:
        path.write_bytes(self.start)
        os.truncate(path, self.file_bytes)
        return path


def damaged_file(number: int) -> tuple[Damaged, list[str]]:
    """The damaged file of this number, always the same, and the keys to ask it for."""
    rng = random.Random(number)
    index = rng.randrange(len(SEEDS))
    want = [str(key) for key, _ in SEEDS[index].keys] if rng.random() < 0.5 else []
    return _damage(index, rng), want


@cache
def _sound(index: int) -> tuple[tuple[bytes, ...], int]:
    """The pieces of a seed, and the size of its whole file."""
    return tuple(SEEDS[index].pieces()), SEEDS[index].file_bytes()


def _damage(index: int, rng: random.Random) -> Damaged:
    """A seed with one to four things wrong, most of them where the structure is."""
    sound, whole_bytes = _sound(index)
    pieces = list(sound)
    for _ in range(rng.choice((1, 1, 1, 2, 2, 4))):
        rng.choice((_set_integer, _set_integer, _set_integer, *_OTHERS))(pieces, rng)
    start = b"".join(pieces)
    size = rng.choice((whole_bytes,) * 4 + (len(start),) + FILE_SIZES)
    if rng.random() < 0.1:
        size = rng.randrange(whole_bytes + 1)
    return Damaged(start[:size], size)


def _set_integer(pieces: list[bytes], rng: random.Random) -> None:
    """One count, length, type, size or offset becomes something else."""
    index = rng.choice([i for i, piece in enumerate(pieces) if len(piece) in INTEGERS] or [-1])
    if index < 0:
        return
    size = len(pieces[index])
    (old,) = struct.unpack(INTEGERS[size], pieces[index])
    near = old + rng.choice((-32, -8, -1, 1, 8, 32))
    new = rng.choice((*rng.choices(EXTREMES, k=3), near, old ^ (1 << rng.randrange(8 * size))))
    pieces[index] = (new & (256**size - 1)).to_bytes(size, "little")


def _flip_a_bit(pieces: list[bytes], rng: random.Random) -> None:
    index = rng.choice([i for i, piece in enumerate(pieces) if piece])
    piece = bytearray(pieces[index])
    piece[rng.randrange(len(piece))] ^= 1 << rng.randrange(8)
    pieces[index] = bytes(piece)


def _insert(pieces: list[bytes], rng: random.Random) -> None:
    pieces.insert(rng.randrange(len(pieces)), rng.randbytes(rng.choice((1, 4, 8, 40))))


def _delete(pieces: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(pieces))
    del pieces[start : start + rng.choice((1, 1, 2, 8))]
    pieces.append(b"\0")


def _repeat(pieces: list[bytes], rng: random.Random) -> None:
    start = rng.randrange(len(pieces))
    pieces[start:start] = pieces[start : start + rng.choice((1, 3, 5, 40))]


def _swap(pieces: list[bytes], rng: random.Random) -> None:
    a, b = rng.randrange(len(pieces)), rng.randrange(len(pieces))
    pieces[a], pieces[b] = pieces[b], pieces[a]


def _zero_the_rest(pieces: list[bytes], rng: random.Random) -> None:
    del pieces[1 + rng.randrange(len(pieces)) :]


_OTHERS = (_flip_a_bit, _insert, _delete, _repeat, _swap, _zero_the_rest)


def assert_sound(header: Header) -> None:
    """What every accepted header promises, worked out anew."""
    assert header.version in (2, 3)
    assert header.file_bytes == os.stat(header.path).st_size
    alignment = header.alignment_bytes
    assert alignment.bit_count() == 1
    names = [t.name for t in header.tensors]
    assert len(set(names)) == len(names)
    assert header.data_offset_bytes % alignment == 0
    for t in header.tensors:
        assert 0 < len(t.name.encode()) < 64
        per_block, block_bytes = BLOCKS.get(t.type.number, (0, 0))
        n_elements = 1
        for dim in t.dims:
            assert dim > 0
            n_elements *= dim
        assert 1 <= len(t.dims) <= 4
        assert n_elements < 2**63
        if per_block and t.type.is_computable:
            assert t.dims[0] % per_block == 0
            assert t.n_bytes == n_elements // per_block * block_bytes
        assert (t.offset_bytes - header.data_offset_bytes) % alignment == 0
        assert header.data_offset_bytes <= t.offset_bytes
        assert t.offset_bytes + t.n_bytes <= header.file_bytes
    spans = sorted((t.offset_bytes, t.offset_bytes + t.n_bytes) for t in header.tensors)
    assert all(a[1] <= b[0] for a, b in itertools.pairwise(spans))
