"""What of a model's files is needed whatever the router says."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.ranges import ByteRange, ranges_beside_experts
from hotset.gguf.reader import Header, TensorInfo
from hotset.gguf.shards import ModelFile, open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES, write_tiny
from hotset.gguf.synth.recipe import ModelKind

N_LAYERS = 3
PAGE_BYTES = 4096
NEEDED = [
    "token_embd.weight",
    "blk.0.attn_q.weight",
    "blk.1.ffn_norm.weight",
    "blk.1.ffn_gate_inp.weight",
    "blk.2.ffn_down_shexp.weight",
    "blk.1.ffn_up_exps.bias",
    "blk.1.ffn_down_exps.scale",
]
NOT_NEEDED = [
    "blk.0.ffn_up_exps.weight",
    "blk.1.ffn_gate_up_exps.weight",
    "blk.2.ffn_down_chexps.weight",
    f"blk.{N_LAYERS}.attn_q.weight",
    f"blk.{N_LAYERS}.nextn.eh_proj.weight",
]


def laid_out(tensors: Sequence[tuple[str, int, int]]) -> Header:
    """A file of (name, size, gap before it); the table is in the reverse order of the data."""
    table, at = [], 100
    for name, n_bytes, gap in tensors:
        table.append(TensorInfo(name, tensor_type_named("I8"), (n_bytes,), at + gap, n_bytes))
        at += gap + n_bytes
    return Header(Path("model.gguf"), 3, at, 32, 100, {}, tuple(reversed(table)))


def pages(begin: int, end: int) -> set[int]:
    return set(range(begin // PAGE_BYTES, (end - 1) // PAGE_BYTES + 1)) if end > begin else set()


def pages_of(ranges: Sequence[ByteRange]) -> set[int]:
    return set().union(*(pages(*one) for one in ranges))


files = st.lists(
    st.lists(
        st.tuples(
            st.sampled_from(NEEDED + NOT_NEEDED), st.integers(0, 20_000), st.integers(0, 9_000)
        ),
        max_size=12,
    ),
    min_size=1,
    max_size=3,
)


@given(files)
def test_the_ranges_touch_the_pages_that_needed_tensors_touch_and_no_others(
    tensors_of_files: list[list[tuple[str, int, int]]],
) -> None:
    headers = tuple(map(laid_out, tensors_of_files))
    model = ModelFile(tuple(header.path for header in headers), headers)
    found = ranges_beside_experts(model, N_LAYERS)
    assert len(found) == len(headers)
    for header, ranges in zip(headers, found, strict=True):
        needed = [tensor for tensor in header.tensors if tensor.name in NEEDED]
        wanted = set().union(*(pages(t.offset_bytes, t.end_bytes) for t in needed))
        assert pages_of(ranges) == wanted
        assert all(begin < end for begin, end in ranges)
        assert all(begin - end >= PAGE_BYTES for (_, end), (begin, _) in pairwise(ranges))


@pytest.mark.parametrize(
    "family", sorted(name for name, r in FAMILIES.items() if r.kind is ModelKind.CHAT)
)
def test_in_every_family_ranges_and_experts_share_the_trunk(tmp_path: Path, family: str) -> None:
    """Sizes as the model's own numbers say: all that is loaded, without the experts' matrices."""
    model = open_model(write_tiny(family, tmp_path / "tiny", n_shards=2)[0])
    spec = model_spec(model)
    matrices = sum(
        tensor.n_bytes
        for tensor in model.tensors
        if tensor.name.endswith("exps.weight") and int(tensor.name.split(".")[1]) < spec.n_layers
    )
    ranges = ranges_beside_experts(model, spec.n_layers)
    total = sum(end - begin for of_file in ranges for begin, end in of_file)
    # What lies between two of them belongs to a range if it is smaller than a page.
    least = spec.trunk_bytes - matrices
    assert least <= total < least + PAGE_BYTES * len(model.tensors)
