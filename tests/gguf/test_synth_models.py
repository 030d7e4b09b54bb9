"""Tiny models of every family, read back with the gguf package's reader."""

from __future__ import annotations

import math
import shutil
from collections import namedtuple
from pathlib import Path

import numpy as np
import pytest

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.gguf.synth import FAMILIES, Dims, Mix, ModelKind, write_sized, write_tiny
from hotset.gguf.synth.recipe import fitting_type
from hotset.gguf.synth.vocab import MIN_VOCABULARY, make_vocabulary
from synthkit import read_gguf, values_of

_EXPERT_FAMILIES = [name for name, recipe in FAMILIES.items() if recipe.has_experts]
_FUSING_FAMILIES = [name for name, recipe in FAMILIES.items() if recipe.can_fuse]


def tensor_bytes(path: Path) -> dict[str, bytes]:
    return {t.name: t.data.tobytes() for t in read_gguf(path).tensors}


@pytest.mark.parametrize("family", FAMILIES)
def test_a_tiny_file_holds_exactly_what_its_recipe_plans(tmp_path: Path, family: str) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    recipe = FAMILIES[family]
    plan = recipe.plan(recipe.tiny, Mix())
    reader = read_gguf(path)
    assert reader.fields["general.architecture"].contents() == recipe.architecture
    found = [(t.name, tuple(map(int, t.shape)), t.tensor_type.name) for t in reader.tensors]
    assert found == [(t.name, t.shape, t.type.name) for t in plan.tensors]
    assert len({t.name for t in plan.tensors}) == len(plan.tensors)
    for key, value in plan.metadata.items():
        stored = getattr(value, "value", value)
        contents = reader.fields[key].contents()
        assert contents == (
            list(stored)
            if isinstance(stored, (list, tuple))
            else pytest.approx(stored)
            if isinstance(stored, float)
            else stored
        )
    assert path.stat().st_size < 10_000_000


@pytest.mark.parametrize("family", FAMILIES)
def test_every_value_of_a_tiny_model_is_finite(tmp_path: Path, family: str) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    for tensor in read_gguf(path).tensors:
        values = values_of(tensor.tensor_type.name, tensor.data.tobytes())
        assert np.isfinite(values).all(), tensor.name
        assert values.any(), tensor.name


def test_the_same_seed_gives_the_same_file_and_another_seed_another_model(tmp_path: Path) -> None:
    first, again, other = (
        write_tiny("qwen35moe", tmp_path / f"{name}.gguf", seed=seed)[0].read_bytes()
        for name, seed in (("first", 1), ("again", 1), ("other", 2))
    )
    assert first == again
    assert first != other
    assert len(first) == len(other)


def test_no_two_experts_of_a_model_are_equal(tmp_path: Path) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "m.gguf")
    experts = [
        tensor.data[i].tobytes()
        for tensor in read_gguf(path).tensors
        if tensor.name.endswith("_exps.weight")
        for i in range(8)
    ]
    assert len(experts) == 4 * 3 * 8
    assert len(set(experts)) == len(experts)


def test_experts_take_the_types_that_are_asked_for(tmp_path: Path) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "m.gguf", experts_type="q4_k", down_type="Q6_K")
    types = {t.name.split(".")[2]: t.tensor_type.name for t in read_gguf(path).tensors
             if "_exps" in t.name}  # fmt: skip
    assert types == {"ffn_gate_exps": "Q4_K", "ffn_up_exps": "Q4_K", "ffn_down_exps": "Q6_K"}


@pytest.mark.parametrize("family", _FUSING_FAMILIES)
def test_fusing_joins_gate_and_up_and_changes_nothing_else(tmp_path: Path, family: str) -> None:
    (split,) = write_tiny(family, tmp_path / "split.gguf")
    (fused,) = write_tiny(family, tmp_path / "fused.gguf", fused=True)
    shapes = [
        {t.name: tuple(map(int, t.shape)) for t in read_gguf(p).tensors} for p in (split, fused)
    ]
    for name, shape in list(shapes[0].items()):
        if name.endswith("ffn_gate_exps.weight"):
            gate = shapes[0].pop(name)
            up = shapes[0].pop(name.replace("gate", "up"))
            joined = shapes[1].pop(name.replace("gate", "gate_up"))
            assert joined == (shape[0], gate[1] + up[1], shape[2])
    assert shapes[0] == shapes[1]


@pytest.mark.parametrize("family", ["qwen3moe", "bert", "mmproj"])
def test_shards_hold_the_same_tensors_as_one_file(tmp_path: Path, family: str) -> None:
    (one,) = write_tiny(family, tmp_path / "one.gguf")
    shards = write_tiny(family, tmp_path / "many.gguf", n_shards=3)
    joined: dict[str, bytes] = {}
    for shard in shards:
        joined |= tensor_bytes(shard)
    assert joined == tensor_bytes(one)


@pytest.mark.parametrize("family", ["qwen3", "gemma2"])
def test_silent_tokens_have_logits_far_below_all_others(tmp_path: Path, family: str) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    silent = make_vocabulary(512).silent
    tensors = {t.name: t for t in read_gguf(path).tensors}
    output = tensors.get("output.weight", tensors["token_embd.weight"])
    rows = values_of(output.tensor_type.name, output.data.tobytes()).reshape(512, -1)
    sizes = np.sqrt((rows**2).mean(axis=1))
    loudest_silent = max(sizes[i] for i in silent)
    quietest_other = min(sizes[i] for i in range(512) if i not in silent)
    assert loudest_silent < quietest_other / 4


@pytest.mark.parametrize("family", [n for n, r in FAMILIES.items() if r.kind is ModelKind.CHAT])
def test_chat_models_have_a_vocabulary_and_a_template(tmp_path: Path, family: str) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    fields = read_gguf(path).fields
    tokens = fields["tokenizer.ggml.tokens"].contents()
    assert len(tokens) == FAMILIES[family].tiny.n_vocab
    assert tokens[fields["tokenizer.ggml.eos_token_id"].contents()] == "<|im_end|>"
    assert "<|im_start|>" in fields["tokenizer.chat_template"].contents()


def test_a_projector_has_no_vocabulary_and_an_embedding_model_no_template(tmp_path: Path) -> None:
    (projector,) = write_tiny("mmproj", tmp_path / "p.gguf")
    (encoder,) = write_tiny("nomic-bert", tmp_path / "e.gguf")
    assert not any(key.startswith("tokenizer.") for key in read_gguf(projector).fields)
    assert "tokenizer.ggml.tokens" in read_gguf(encoder).fields
    assert "tokenizer.chat_template" not in read_gguf(encoder).fields


def test_sizes_may_be_changed_one_by_one(tmp_path: Path) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "m.gguf", n_layers=2, n_experts=16, n_used=4)
    reader = read_gguf(path)
    assert reader.fields["qwen3moe.block_count"].contents() == 2
    assert reader.fields["qwen3moe.expert_used_count"].contents() == 4
    assert {int(t.shape[2]) for t in reader.tensors if "_exps" in t.name} == {16}


def test_a_dense_model_with_tied_output_has_no_output_matrix(tmp_path: Path) -> None:
    (path,) = write_tiny("llama", tmp_path / "m.gguf", is_tied=True)
    assert "output.weight" not in tensor_bytes(path)


@pytest.mark.parametrize(("n_embd_per_layer", "has_table"), [(0, False), (64, True)])
def test_gemma4_has_per_layer_embeddings_where_the_sizes_say_so(
    tmp_path: Path, n_embd_per_layer: int, has_table: bool
) -> None:
    (path,) = write_tiny("gemma4", tmp_path / "m.gguf", n_embd_per_layer=n_embd_per_layer)
    assert ("per_layer_token_embd.weight" in tensor_bytes(path)) == has_table


def test_a_gemma4_layer_with_shared_cache_has_no_key_and_value(tmp_path: Path) -> None:
    (path,) = write_tiny("gemma4", tmp_path / "m.gguf")
    names = set(tensor_bytes(path))
    shared = FAMILIES["gemma4"].tiny.n_shared_kv
    with_keys = {i for i in range(6) if f"blk.{i}.attn_k.weight" in names}
    assert with_keys == set(range(6 - shared))


def test_shared_experts_of_granite_are_optional(tmp_path: Path) -> None:
    (path,) = write_tiny("granitemoe", tmp_path / "m.gguf", n_ff_shexp=0)
    assert not any("shexp" in name for name in tensor_bytes(path))


def _problem(family: str, path: Path, message: str, **options: object) -> None:
    with pytest.raises(ConfigProblem, match=message):
        write_tiny(family, path, **options)  # type: ignore[arg-type]  # wrong ones on purpose


def test_what_cannot_be_is_refused_with_the_reason(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    _problem("qwen9", path, "family 'qwen9': unknown; known are llama")
    _problem("qwen3moe", path, "tensor type 'Q9': unknown", experts_type="Q9")
    _problem("qwen3moe", path, "tensor type F64: the engine has no product", experts_type="F64")
    _problem("qwen3", path, "it has no experts to give a type", experts_type="Q4_0")
    _problem("qwen3", path, "it has no experts to give a type", down_type="Q4_0")
    _problem("qwen3moe", path, "knows no fused gate and up", fused=True)
    _problem("qwen3", path, "size 'layers': unknown; known are context_tokens", layers=2)
    _problem("qwen3", path, "n_layers 0: there is no model without", n_layers=0)
    _problem("qwen3moe", path, "n_used 9: more than the 8 experts", n_used=9)
    _problem("qwen3", path, f"are {MIN_VOCABULARY}; ask for at least", n_vocab=300)
    assert list(tmp_path.iterdir()) == []


def test_a_model_larger_than_the_free_disk_is_refused_before_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    usage = namedtuple("usage", "total used free")
    monkeypatch.setattr(shutil, "disk_usage", lambda _: usage(10 << 30, 9 << 30, 1 << 30))
    dims = Dims(n_layers=4, n_embd=2048, n_ff_exp=1024, n_experts=256)
    with pytest.raises(MachineProblem, match=r"takes 3\.\d GiB and 1\.0 GiB are free"):
        write_sized("qwen3moe", tmp_path / "m.gguf", dims, Mix())
    assert list(tmp_path.iterdir()) == []


def test_a_directory_that_is_not_there_is_a_machine_problem(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="no such directory"):
        write_tiny("qwen3", tmp_path / "none" / "m.gguf")


def test_a_sized_model_has_the_sizes_and_types_that_were_asked_for(tmp_path: Path) -> None:
    dims = Dims(n_layers=1, n_embd=1024, n_ff_exp=768, n_experts=16, n_vocab=1000)
    (path,) = write_sized(
        "qwen3moe", tmp_path / "m.gguf", dims, Mix(experts="IQ4_XS", down="Q6_K"), seed=3
    )
    tensors = {t.name: t for t in read_gguf(path).tensors}
    gate = tensors["blk.0.ffn_gate_exps.weight"]
    down = tensors["blk.0.ffn_down_exps.weight"]
    assert (tuple(map(int, gate.shape)), gate.tensor_type.name) == ((1024, 768, 16), "IQ4_XS")
    assert (tuple(map(int, down.shape)), down.tensor_type.name) == ((768, 1024, 16), "Q6_K")
    # Tensors beyond the size of a tile repeat its blocks, but no expert another.
    assert len({down.data[i].tobytes() for i in range(16)}) == 16


@pytest.mark.parametrize(
    ("wanted", "row", "got"),
    [
        ("Q4_K", 768, "Q4_K"),
        ("Q4_K", 704, "Q5_0"),
        ("Q6_K", 2880, "Q8_0"),
        ("IQ4_XS", 640, "IQ4_NL"),
        ("Q4_0", 16, "F16"),
        ("Q4_K", 16, "F16"),
        ("F32", 3, "F32"),
    ],
)
def test_rows_that_a_block_does_not_divide_fall_back(wanted: str, row: int, got: str) -> None:
    assert fitting_type(wanted, row).name == got


def test_the_smallest_vocabulary_has_every_byte_once_and_no_filling() -> None:
    vocabulary = make_vocabulary(MIN_VOCABULARY)
    assert len(vocabulary.tokens) == MIN_VOCABULARY == len(set(vocabulary.tokens))
    assert sum(len(token) == 1 for token in vocabulary.tokens) == 256
    assert len(vocabulary.merges) == MIN_VOCABULARY - 256 - vocabulary.n_special


@pytest.mark.parametrize("n_tokens", [MIN_VOCABULARY, 512, 6000])
def test_every_merge_makes_a_token_of_the_vocabulary(n_tokens: int) -> None:
    vocabulary = make_vocabulary(n_tokens)
    tokens = set(vocabulary.tokens)
    assert len(tokens) == n_tokens
    assert {merge.replace(" ", "") for merge in vocabulary.merges} <= tokens


def test_sizes_of_tiny_models_leave_k_quants_possible_for_experts() -> None:
    for name in _EXPERT_FAMILIES:
        recipe = FAMILIES[name]
        plan = recipe.plan(recipe.tiny, Mix(experts="Q4_K", down="Q6_K"))
        types = {t.type.name for t in plan.tensors if "_exps.weight" in t.name}
        assert types == {"Q4_K", "Q6_K"}, name
        assert math.prod(next(t.shape for t in plan.tensors if "_exps.weight" in t.name)) > 0
