"""The facts of `hotset inspect`, checked against independent sums over the same file."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, replace
from pathlib import Path

import pytest

import gguf
from ggufkit import F64, Tensor, chat_model, number, shard_set, text, write_shards
from hotset.gguf.report import Report, make_report
from hotset.gguf.shards import open_model
from hotset.gguf.synth import FAMILIES, ModelKind, write_tiny


def report_of(path: Path) -> Report:
    return make_report(open_model(path))


@pytest.mark.parametrize("family", FAMILIES)
def test_the_bytes_of_every_family_add_up_to_those_of_the_gguf_package(
    tmp_path: Path, family: str
) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    report = report_of(path)
    by_type: Counter[str] = Counter()
    by_block: Counter[int] = Counter()
    reader = gguf.GGUFReader(path)
    for tensor in reader.tensors:
        by_type[tensor.tensor_type.name] += int(tensor.n_bytes)
        prefix, _, rest = tensor.name.partition(".")
        if prefix == "blk":
            by_block[int(rest.partition(".")[0])] += int(tensor.n_bytes)
    assert report.problems == ()
    assert report.tensors == len(reader.tensors)
    assert report.bytes_by_type == dict(by_type)
    assert report.tensor_bytes == sum(by_type.values())
    if FAMILIES[family].kind is ModelKind.PROJECTOR:
        assert report.bytes_by_role == {}
        return
    assert sum(report.bytes_by_role.values()) == report.tensor_bytes
    blocks = {n: group for group in report.block_groups for n in group.blocks}
    assert len(blocks) == report.blocks + report.mtp_blocks
    assert {n: group.n_bytes for n, group in blocks.items()} == dict(by_block)
    for group in report.block_groups:
        assert sum(group.bytes_by_role.values()) == group.n_bytes


@pytest.mark.parametrize("family", FAMILIES)
def test_the_kind_of_every_family_is_the_one_it_was_made_as(tmp_path: Path, family: str) -> None:
    (path,) = write_tiny(family, tmp_path / "m.gguf")
    names = {
        ModelKind.CHAT: "chat model",
        ModelKind.EMBEDDING: "embedding",
        ModelKind.PROJECTOR: "projector",
    }
    assert report_of(path).kind == names[FAMILIES[family].kind]


def test_the_cache_of_a_dense_model_is_two_vectors_per_head_and_block(tmp_path: Path) -> None:
    report = report_of(chat_model(width=64).write(tmp_path / "a.gguf"))
    head_elements = 64 // 4
    (cache,) = report.kv_cache
    assert cache.f16_bytes_per_token == 1 * 2 * 2 * head_elements * 2  # blocks, K and V, heads, f16
    assert (cache.kind, cache.blocks, cache.limit_tokens) == ("full attention", 1, 0)
    assert report.recurrent_state_bytes_per_sequence == 0


def test_window_and_recurrent_blocks_are_counted_apart(tmp_path: Path) -> None:
    windowed = report_of(write_tiny("gpt-oss", tmp_path / "a.gguf")[0])
    assert [(c.kind, c.limit_tokens) for c in windowed.kv_cache] == [
        ("full attention", 0),
        ("sliding window", 128),
    ]
    hybrid = report_of(write_tiny("qwen3next", tmp_path / "b.gguf")[0])
    assert sum(c.blocks for c in hybrid.kv_cache) < hybrid.blocks
    assert hybrid.recurrent_state_bytes_per_sequence > 0


def test_an_mtp_block_adds_weights_and_no_cache(tmp_path: Path) -> None:
    plain = report_of(write_tiny("qwen35moe", tmp_path / "a.gguf")[0])
    mtp = report_of(write_tiny("qwen35moe-mtp", tmp_path / "b.gguf")[0])
    assert (mtp.blocks, mtp.mtp_blocks) == (plain.blocks, 1)
    assert mtp.kv_cache == plain.kv_cache
    assert mtp.recurrent_state_bytes_per_sequence == plain.recurrent_state_bytes_per_sequence
    assert mtp.bytes_by_role["MTP block"] > 0


def test_experts_are_counted_once_and_per_token_by_their_share(tmp_path: Path) -> None:
    report = report_of(write_tiny("qwen3moe", tmp_path / "a.gguf")[0])
    experts = report.experts
    assert experts is not None
    assert experts.n_bytes == report.bytes_by_role["routed experts"]
    assert experts.bytes_per_token * experts.count == experts.n_bytes * experts.used
    assert report_of(write_tiny("llama", tmp_path / "b.gguf")[0]).experts is None


def test_a_shard_set_has_the_facts_of_the_whole_file(tmp_path: Path) -> None:
    (whole,) = write_tiny("qwen3moe", tmp_path / "whole.gguf")
    shards = write_tiny("qwen3moe", tmp_path / "split", n_shards=3)
    expected = report_of(whole)
    for shard in shards:
        report = report_of(shard)
        assert [file.path for file in report.files] == [str(path) for path in shards]
        assert replace(report, path=expected.path, files=expected.files) == expected


def test_tokenizer_and_template_are_told_from_the_metadata(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    full = report_of(chat_model().write(path))
    assert (full.has_tokenizer, full.has_chat_template, full.vocabulary_tokens) == (True, True, 3)
    bare = chat_model().without_key("tokenizer.chat_template")
    assert not report_of(bare.write(path)).has_chat_template
    bare = bare.without_key("tokenizer.ggml.model").without_key("tokenizer.ggml.tokens")
    report = report_of(bare.write(path))
    assert (report.has_tokenizer, report.vocabulary_tokens) == (False, 0)


def test_blocks_that_are_not_in_the_file_are_in_no_group(tmp_path: Path) -> None:
    file = chat_model("glm4moe").with_key("glm4moe.block_count", number("u32", 2))
    tensors = [replace(t, name=str(t.name).replace("blk.0", "blk.1")) for t in file.tensors]
    file = file.with_key("glm4moe.nextn_predict_layers", number("u32", 1)).with_tensors(*tensors)
    report = report_of(file.write(tmp_path / "a.gguf"))
    assert report.kind == "draft/MTP"
    assert [n for group in report.block_groups for n in group.blocks] == [1]


def test_a_matching_projector_is_named_and_a_projector_says_what_it_puts_out(
    tmp_path: Path,
) -> None:
    path = chat_model("gemma3").write(tmp_path / "model.gguf")
    projector = chat_model("clip").with_key("clip.vision.projection_dim", number("u32", 64))
    file = projector.with_key("clip.projector_type", text("gemma3"))
    beside = file.write(tmp_path / "mmproj.gguf")
    assert report_of(path).projectors == (str(beside),)
    assert report_of(beside).projector_output_elements == 64
    assert report_of(beside).projectors == ()


def test_what_makes_a_file_unusable_is_a_problem_and_the_rest_is_told_all_the_same(
    tmp_path: Path,
) -> None:
    file = chat_model().with_tensors(*chat_model().tensors, Tensor("blk.0.odd", (8,), F64))
    report = report_of(file.write(tmp_path / "a.gguf"))
    assert report.blocks == 1
    (problem,) = report.problems
    assert problem.startswith("a.gguf: tensor 'blk.0.odd' has type F64")
    nameless = report_of(
        chat_model().without_key("general.architecture").write(tmp_path / "b.gguf")
    )
    assert (nameless.kind, nameless.architecture, nameless.name) == ("none", "", "b")
    assert "names no general.architecture" in nameless.problems[0]
    torn = report_of(chat_model().without_key("llama.block_count").write(tmp_path / "c.gguf"))
    assert torn.kind == "chat model"
    assert "block_count" in torn.problems[0]


def test_the_facts_are_json(tmp_path: Path) -> None:
    paths = write_shards(shard_set(chat_model(), 2), tmp_path)
    report = report_of(paths[0])
    facts = json.loads(json.dumps(asdict(report)))
    assert facts["files"][1]["file_bytes"] == paths[1].stat().st_size
    assert facts["kv_cache"][0]["f16_bytes_per_token"] == report.kv_cache[0].f16_bytes_per_token
