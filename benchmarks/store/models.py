"""The models of the benchmark: written by the synthetic writer, kept for the next time."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from hotset.gguf.ranges import ByteRange, ranges_beside_experts
from hotset.gguf.shards import open_model
from hotset.gguf.synth import Dims, Locality, Mix, write_sized

__all__ = ["DIMS", "FEW_USED", "MIXES", "QUICK_DIMS", "BenchModel", "few_experts", "prepare"]

DIMS = Dims(
    n_layers=12, n_embd=2048, n_head=16, n_head_kv=4, head_dim=128, n_ff=6144, n_ff_exp=768,
    n_experts=128, n_used=8, n_vocab=32000, context_tokens=32768,
)  # fmt: skip
"""The model of the measurements: 4.3 GB in Q4_0, experts as small as those of a 30B-A3B model."""

QUICK_DIMS = Dims(
    n_layers=4, n_embd=512, n_head=8, n_head_kv=2, head_dim=64, n_ff=1024, n_ff_exp=256,
    n_experts=64, n_used=4, n_vocab=4000, context_tokens=32768,
)  # fmt: skip
"""A model to try the benchmark with: 60 MB."""

MIXES: Mapping[str, Mix] = {
    "q4_0": Mix(experts="Q4_0", down="Q4_0"),
    "q4_k": Mix(experts="Q4_K", down="Q6_K"),
    "iq4_xs": Mix(experts="IQ4_XS", down="IQ4_XS"),
}

FEW_USED = 2
"""Experts used of the sibling that tells what an expert costs (see `physics`)."""


@dataclass(frozen=True, slots=True)
class BenchModel:
    """A model file and what of it is experts.

    Attributes:
        matrices: (offset, bytes) of every expert matrix in the file.
        n_layers, n_used: of the model; n_vocab: its tokens.
        needed: the ranges of the file that are no experts.
    """

    path: Path
    mix: str
    locality: Locality
    file_bytes: int
    expert_bytes: int
    matrices: tuple[tuple[int, int], ...]
    n_layers: int
    n_used: int
    n_vocab: int
    needed: tuple[ByteRange, ...]

    @property
    def other_bytes(self) -> int:
        """All that is not an expert."""
        return self.file_bytes - self.expert_bytes


def prepare(folder: Path, mix: str, locality: Locality, dims: Dims) -> BenchModel:
    """The model, written if it is not there yet.

    Raises:
        MachineProblem: no room on the disk.
    """
    folder.mkdir(parents=True, exist_ok=True)
    name = f"{mix}-{locality}-{dims.n_layers}x{dims.n_experts}x{dims.n_used}-{dims.n_embd}.gguf"
    path = folder / name
    if not path.exists():
        write_sized("qwen3moe", path, dims, MIXES[mix], locality=locality)
    file = open_model(path)
    header = file.headers[0]
    matrices = [
        (tensor.offset_bytes + i * (tensor.n_bytes // dims.n_experts),
         tensor.n_bytes // dims.n_experts)
        for tensor in header.tensors if tensor.name.endswith("_exps.weight")
        for i in range(dims.n_experts)
    ]  # fmt: skip
    return BenchModel(
        path, mix, locality, header.file_bytes, sum(n for _, n in matrices), tuple(matrices),
        dims.n_layers, dims.n_used, dims.n_vocab, ranges_beside_experts(file, dims.n_layers)[0],
    )  # fmt: skip


@contextmanager
def few_experts(folder: Path, model: BenchModel, dims: Dims) -> Iterator[BenchModel]:
    """The same weights with fewer experts used; deleted at the end, being as large as the other."""
    sibling = prepare(folder, model.mix, model.locality, replace(dims, n_used=FEW_USED))
    try:
        yield sibling
    finally:
        sibling.path.unlink()
