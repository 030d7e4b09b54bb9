"""Sparse full-scale files: real sizes in the header, next to nothing on disk."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.core.errors import ConfigProblem
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES, MIXES, REAL_MODELS, write_fullscale
from hotset.gguf.synth.fullscale import fullscale_spec
from synthkit import read_gguf

# Parameters in billions, as the makers publish them or llama.cpp logs them. Independent of the
# dimensions in the table: a wrong dimension shows as a wrong sum.
_PUBLISHED_BILLIONS = {
    "qwen3-30b-a3b": 30.53,
    "qwen3.6-35b-a3b": 34.66,
    "qwen3.5-122b-a10b": 122.11,
    "qwen3-next-80b-a3b": 79.67,
    "qwen3.8-flash-next": 176.94,
    "gpt-oss-20b": 20.91,
    "gpt-oss-120b": 116.83,
    "gemma-4-26b-a4b": 25.23,
    "glm-4.5-air": 106.85,
    "glm-4.7-flash": 29.94,
    "mixtral-8x7b": 46.70,
    "olmoe-1b-7b": 6.92,
    "granite-3.1-3b-a800m": 3.30,
    "granite-3.1-1b-a400m": 1.334,
}


@pytest.mark.parametrize("model", _PUBLISHED_BILLIONS)
def test_a_models_tensors_add_up_to_its_published_parameters(model: str) -> None:
    real = REAL_MODELS[model]
    plan = FAMILIES[real.family].plan(real.dims, MIXES["Q8_0"])
    n_parameters = sum(math.prod(tensor.shape) for tensor in plan.tensors)
    assert n_parameters / 1e9 == pytest.approx(_PUBLISHED_BILLIONS[model], rel=0.001)


@pytest.mark.parametrize("model", [name for name in REAL_MODELS if name.endswith("-mtp")])
def test_the_mtp_variant_adds_one_block_behind_the_others(model: str) -> None:
    plain, mtp = REAL_MODELS[model.removesuffix("-mtp")], REAL_MODELS[model]
    names = [
        {t.name for t in FAMILIES[real.family].plan(real.dims, MIXES["Q4_0"]).tensors}
        for real in (plain, mtp)
    ]
    added = names[1] - names[0]
    assert names[0] < names[1]
    assert all(name.startswith(f"blk.{plain.dims.n_layers}.") for name in added)
    assert f"blk.{plain.dims.n_layers}.nextn.eh_proj.weight" in added


@pytest.mark.parametrize("mix", MIXES)
@pytest.mark.parametrize("model", REAL_MODELS)
def test_every_model_can_be_planned_in_every_mix(model: str, mix: str) -> None:
    real = REAL_MODELS[model]
    plan = FAMILIES[real.family].plan(real.dims, MIXES[mix])
    for tensor in plan.tensors:
        assert tensor.shape[0] % tensor.type.block_elements == 0
    assert plan.metadata["general.file_type"] == MIXES[mix].file_type


def test_a_file_has_its_full_size_in_name_and_megabytes_on_disk(tmp_path: Path) -> None:
    path = write_fullscale("qwen3-30b-a3b", tmp_path / "m.gguf")
    stat = path.stat()
    assert stat.st_size == pytest.approx(19.8e9, rel=0.01)
    assert stat.st_blocks * 512 < 12_000_000


def test_a_file_reads_back_with_its_vocabulary_types_and_place_of_data(tmp_path: Path) -> None:
    path = write_fullscale("mixtral-8x7b", tmp_path / "m.gguf", mix="Q4_K_M")
    reader = read_gguf(path)
    assert reader.fields["general.name"].contents() == "Mixtral-8x7B"
    assert len(reader.fields["tokenizer.ggml.tokens"].data) == 32000
    assert reader.fields["llama.expert_count"].contents() == 8
    types = {t.name.split(".", 2)[-1]: t.tensor_type.name for t in reader.tensors}
    assert types["ffn_gate_exps.weight"] == "Q4_K"
    assert types["ffn_down_exps.weight"] == "Q6_K"
    last = reader.tensors[-1]
    assert last.data_offset + last.n_bytes <= path.stat().st_size


def test_a_file_may_have_a_smaller_vocabulary_and_nothing_else_smaller(tmp_path: Path) -> None:
    name = "granite-3.1-1b-a400m"
    whole, small = (
        model_spec(open_model(write_fullscale(name, tmp_path / "m.gguf", n_vocab=n_vocab)))
        for n_vocab in (None, 512)
    )
    assert (whole.n_vocab, small.n_vocab) == (49155, 512)
    assert small.layers == whole.layers


def test_unknown_models_and_mixes_are_refused_with_the_known_ones(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="model 'gpt-9': unknown; known are qwen3-30b-a3b"):
        write_fullscale("gpt-9", tmp_path / "m.gguf")
    with pytest.raises(ConfigProblem, match="mix 'Q9': unknown; known are Q4_0"):
        write_fullscale("olmoe-1b-7b", tmp_path / "m.gguf", mix="Q9")


@pytest.mark.parametrize("model", ["mixtral-8x7b", "gemma-4-26b-a4b", "qwen3.8-flash-next"])
def test_a_models_numbers_are_those_of_its_file_without_a_file(tmp_path: Path, model: str) -> None:
    path = write_fullscale(model, tmp_path / "m.gguf", mix="IQ4_XS")
    read = model_spec(open_model(path))
    direct = fullscale_spec(model, mix="IQ4_XS")
    assert replace(read, has_vocabulary=False, has_chat_template=False) == direct
    with pytest.raises(ConfigProblem, match="unknown"):
        fullscale_spec("gpt-9")
