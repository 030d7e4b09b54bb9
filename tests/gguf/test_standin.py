"""A stand-in has the model's tokenizer, byte for byte, and hardly anything else."""

from __future__ import annotations

from pathlib import Path

import pytest

from enginekit import smollm2
from hotset.core.errors import FileProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.kinds import Kind, kind_of
from hotset.gguf.reader import check_computable, copy_values, read_header
from hotset.gguf.shards import open_model
from hotset.gguf.standin import write_stand_in
from hotset.gguf.synth.models import write_tiny
from hotset.gguf.synth.writer import TensorEntry, write_gguf


def tokenizer_of(path: Path) -> dict[str, object]:
    return {k: v for k, v in copy_values(path, lambda _: True).items() if "tokenizer" in k}


@pytest.mark.parametrize("family", ["smollm2", "qwen3moe", "gemma3"])
def test_a_stand_in_is_a_small_sound_model_with_the_same_tokenizer(
    tmp_path: Path, family: str
) -> None:
    path = smollm2() if family == "smollm2" else write_tiny(family, tmp_path / "m.gguf")[0]
    write_stand_in(path, tmp_path / "stand-in.gguf")
    assert tokenizer_of(tmp_path / "stand-in.gguf") == tokenizer_of(path) != {}
    header = read_header(tmp_path / "stand-in.gguf")
    check_computable(header)
    assert header.metadata["general.name"] == read_header(path).metadata["general.name"]
    assert kind_of(open_model(header.path)) is Kind.CHAT
    used = header.path.stat().st_blocks * 512
    assert used < header.data_offset_bytes + 64 * 1024


@pytest.mark.parametrize("metadata", [{}, {"tokenizer.ggml.tokens": "one text"}])
def test_a_model_without_a_tokenizer_has_no_stand_in(
    tmp_path: Path, metadata: dict[str, str]
) -> None:
    tensor = TensorEntry("t", (32,), tensor_type_named("F32"))
    write_gguf(tmp_path / "m.gguf", {"general.architecture": "llama", **metadata}, [tensor])
    with pytest.raises(FileProblem, match="has no tokenizer of its own"):
        write_stand_in(tmp_path / "m.gguf", tmp_path / "stand-in.gguf")
    assert not (tmp_path / "stand-in.gguf").exists()
