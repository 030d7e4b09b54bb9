"""Kinds, projectors and directories: told from what files say, never from where they lie."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ggufkit import (
    F64,
    Gguf,
    Tensor,
    array,
    chat_model,
    number,
    ok_file,
    shard_set,
    text,
    write_shards,
)
from hotset.core.errors import FileProblem
from hotset.core.placement import Projector
from hotset.gguf.kinds import Kind, kind_of
from hotset.gguf.library import Entry, find_projectors, list_models
from hotset.gguf.projectors import projector_sizes, projector_width
from hotset.gguf.shards import open_model


def typed(general_type: str, architecture: str = "llama") -> Gguf:
    return chat_model(architecture).with_key("general.type", text(general_type))


def mtp_only() -> Gguf:
    """The blocks of an MTP head alone: the model's block count, its last block's tensors."""
    file = chat_model("qwen35moe").with_key("qwen35moe.block_count", number("u32", 41))
    return file.with_key("qwen35moe.nextn_predict_layers", number("u32", 1)).with_tensors(
        Tensor("token_embd.weight"), Tensor("blk.40.attn_q.weight"), Tensor("blk.40.nextn.eh_proj")
    )


def with_mtp() -> Gguf:
    return mtp_only().with_tensors(*mtp_only().tensors, Tensor("blk.0.attn_q.weight"))


def mtp_without_blocks() -> Gguf:
    return mtp_only().with_tensors(Tensor("token_embd.weight"))


KINDS: dict[str, tuple[Gguf, Kind]] = {
    "chat": (chat_model("qwen3moe"), Kind.CHAT),
    "unknown architecture": (chat_model("nextgen9"), Kind.CHAT),
    "model by type": (typed("model"), Kind.CHAT),
    "with MTP block": (with_mtp(), Kind.CHAT),
    "no blocks at all": (mtp_without_blocks(), Kind.CHAT),
    "no pooling": (
        chat_model("qwen3").with_key("qwen3.pooling_type", number("u32", 0)),
        Kind.CHAT,
    ),
    "bert": (chat_model("bert"), Kind.EMBEDDING),
    "pooled decoder": (
        chat_model("qwen3").with_key("qwen3.pooling_type", number("u32", 3)),
        Kind.EMBEDDING,
    ),
    "ranking bert": (
        chat_model("bert").with_key("bert.pooling_type", number("u32", 4)),
        Kind.RERANKER,
    ),
    "ranking decoder": (
        chat_model("qwen3").with_key("qwen3.pooling_type", number("u32", 4)),
        Kind.RERANKER,
    ),
    "ranking head": (
        chat_model("bert").with_tensors(*chat_model().tensors, Tensor("cls.output.weight")),
        Kind.RERANKER,
    ),
    "projector by architecture": (chat_model("clip"), Kind.PROJECTOR),
    "projector by type": (typed("mmproj", "clip"), Kind.PROJECTOR),
    "imatrix": (typed("imatrix"), Kind.IMATRIX),
    "imatrix without architecture": (
        typed("imatrix").without_key("general.architecture"),
        Kind.IMATRIX,
    ),
    "lora": (typed("adapter"), Kind.ADAPTER),
    "control vector": (chat_model("controlvector"), Kind.ADAPTER),
    "eagle": (chat_model("eagle3"), Kind.DRAFT),
    "assistant": (chat_model("gemma4-assistant"), Kind.DRAFT),
    "mtp only": (mtp_only(), Kind.DRAFT),
    "vocabulary": (chat_model().with_tensors(), Kind.VOCABULARY),
    "speech": (chat_model("wavtokenizer-dec"), Kind.SPEECH),
}


@pytest.mark.parametrize(("file", "kind"), KINDS.values(), ids=KINDS.keys())
def test_the_kind_is_told_from_the_file(tmp_path: Path, file: Gguf, kind: Kind) -> None:
    # The name misleads on purpose.
    assert kind_of(open_model(file.write(tmp_path / "mmproj-imatrix-lora.gguf"))) is kind


def test_a_set_is_of_its_whole_models_kind_even_with_an_empty_first_shard(tmp_path: Path) -> None:
    first, second = shard_set(chat_model(), 2)
    paths = write_shards(
        [first.with_tensors(), second.with_tensors(*chat_model().tensors)], tmp_path
    )
    assert kind_of(open_model(paths[0])) is Kind.CHAT


@pytest.mark.parametrize(
    ("file", "message"),
    [
        (chat_model().without_key("general.architecture"), "names no general.architecture"),
        (
            chat_model().with_key("general.architecture", number("u32", 1)),
            "names no general.architecture",
        ),
        (
            chat_model().with_tensors().without_key("tokenizer.ggml.tokens"),
            "has neither tensors nor a vocabulary",
        ),
    ],
    ids=["no architecture", "architecture no text", "nothing in it"],
)
def test_a_file_that_is_of_no_kind_says_why(tmp_path: Path, file: Gguf, message: str) -> None:
    model = open_model(file.write(tmp_path / "a.gguf"))
    with pytest.raises(FileProblem, match=rf"a\.gguf: {message}"):
        kind_of(model)


def test_only_models_with_blocks_are_described_by_a_spec() -> None:
    assert {kind for kind in Kind if kind.is_model} == {
        Kind.CHAT,
        Kind.EMBEDDING,
        Kind.RERANKER,
        Kind.DRAFT,
    }


def projector(
    type_: str = "mlp", width: int = 64, *, name: str = "", key: str = "clip.projector_type"
) -> Gguf:
    file = Gguf(
        (
            ("general.architecture", text("clip")),
            (key, text(type_)),
            ("clip.vision.projection_dim", number("u32", width)),
        ),
        (Tensor("v.patch_embd.weight", (16, 16)),),
    )
    return file.with_key("general.name", text(name)) if name else file


def matches(directory: Path, model: Path) -> list[str]:
    found = find_projectors(open_model(model))
    assert all(p.paths[0].parent == directory for p in found)
    return [p.paths[0].name for p in found]


def test_a_projector_made_for_the_architecture_matches_by_width(tmp_path: Path) -> None:
    model = chat_model("gemma3").write(tmp_path / "anything.gguf")
    chat_model("gemma3").write(tmp_path / "another.gguf")
    projector("gemma3").write(tmp_path / "mmproj-F16.gguf")
    projector("gemma3", 128).write(tmp_path / "mmproj-other-size.gguf")
    projector("qwen2vl_merger").write(tmp_path / "mmproj-other-family.gguf")
    assert matches(tmp_path, model) == ["mmproj-F16.gguf"]


def test_the_directory_and_the_width_alone_are_no_match(tmp_path: Path) -> None:
    model = chat_model("llama", name="Llama 8B Instruct").write(tmp_path / "llama-8b.gguf")
    projector("mlp", name="Moondream 2").write(tmp_path / "mmproj-model-f16.gguf")
    assert matches(tmp_path, model) == []


def test_a_projector_without_any_name_is_no_match_by_name(tmp_path: Path) -> None:
    model = chat_model("llama").write(tmp_path / "model.gguf")
    projector("mlp").write(tmp_path / "mmproj-F16.gguf")
    assert matches(tmp_path, model) == []


@pytest.mark.parametrize(
    ("model_name", "model_file", "projector_name", "projector_file"),
    [
        ("Llava v1.6 Mistral 7B", "x.gguf", "Llava v1.6 Mistral 7B", "y.gguf"),
        ("", "llava-v1.6-mistral-7b.Q4_K_M.gguf", "", "mmproj-llava-v1.6-mistral-7b-f16.gguf"),
        ("Llava v1.6 Mistral 7B", "x.gguf", "", "llava-v1.6-mistral-7b-mmproj-BF16.gguf"),
    ],
    ids=["metadata", "files", "metadata and file"],
)
def test_a_projector_of_a_general_type_matches_by_a_common_name(
    tmp_path: Path, model_name: str, model_file: str, projector_name: str, projector_file: str
) -> None:
    model = chat_model("llama", name=model_name).write(tmp_path / model_file)
    projector("mlp", name=projector_name).write(tmp_path / projector_file)
    assert matches(tmp_path, model) == [projector_file]
    narrower = projector("mlp", 32, name=projector_name)
    narrower.write(tmp_path / projector_file)
    assert matches(tmp_path, model) == []


def test_of_several_that_fit_the_one_named_alike_is_taken_in_all_its_precisions(
    tmp_path: Path,
) -> None:
    model = chat_model("gemma3", name="Gemma 3 27B It").write(tmp_path / "gemma-3-27b-it-Q4_0.gguf")
    projector("gemma3", name="Medgemma 27B It").write(tmp_path / "mmproj-medgemma.gguf")
    for precision in ("BF16", "F16", "Q8_0"):
        name = f"mmproj-gemma-3-27b-it-{precision}.gguf"
        projector("gemma3", name="Gemma 3 27B It").write(tmp_path / name)
    assert matches(tmp_path, model) == [
        "mmproj-gemma-3-27b-it-BF16.gguf",
        "mmproj-gemma-3-27b-it-F16.gguf",
        "mmproj-gemma-3-27b-it-Q8_0.gguf",
    ]


def test_the_name_of_a_shard_set_counts_without_its_number(tmp_path: Path) -> None:
    (model, *_) = write_shards(shard_set(chat_model(), 2), tmp_path, "llava-7b-Q4_K_M")
    projector("mlp").write(tmp_path / "mmproj-llava-7b-F16.gguf")
    assert matches(tmp_path, model) == ["mmproj-llava-7b-F16.gguf"]


def test_deepstack_levels_count_on_both_sides(tmp_path: Path) -> None:
    """Levels as the engine counts them: main path and each deepstack level once."""
    plain = projector("qwen3vl_merger")
    stacked = plain.with_tensors(
        *plain.tensors, *(Tensor(f"v.deepstack.{i}.fc1.weight") for i in (5, 11, 17))
    )
    stacked.write(tmp_path / "mmproj.gguf")
    file = chat_model("qwen3vl")
    model = file.write(tmp_path / "model.gguf")
    assert matches(tmp_path, model) == []
    file.with_key("qwen3vl.n_deepstack_layers", number("u32", 3)).write(model)
    assert matches(tmp_path, model) == ["mmproj.gguf"]
    plain.write(tmp_path / "mmproj.gguf")
    assert matches(tmp_path, model) == []


def test_the_output_tensor_outweighs_the_metadata(tmp_path: Path) -> None:
    """Old files give the width inside the vision tower as projection_dim."""
    file = projector("mlp", 768)
    path = file.with_tensors(Tensor("mm.2.weight", (128, 4096))).write(tmp_path / "a.gguf")
    assert projector_width(open_model(path)) == 4096
    turned = projector("gemma3", 768).with_tensors(
        Tensor("mm.input_projection.weight", (2560, 1152))
    )
    assert projector_width(open_model(turned.write(path))) == 2560
    flat = file.with_tensors(Tensor("mm.2.weight", (128,)))
    assert projector_width(open_model(flat.write(path))) == 768


def test_the_width_of_an_audio_projector_is_its_own(tmp_path: Path) -> None:
    file = projector("newaudio").without_key("clip.vision.projection_dim")
    path = file.write(tmp_path / "a.gguf")
    assert projector_width(open_model(path)) == 0
    file.with_key("clip.audio.projection_dim", number("u32", 1280)).write(path)
    assert projector_width(open_model(path)) == 1280


def test_a_projector_for_two_senses_matches_when_either_is_for_the_architecture(
    tmp_path: Path,
) -> None:
    model = chat_model("gemma4").write(tmp_path / "model.gguf")
    file = projector("somevision", key="clip.vision.projector_type")
    file.with_key("clip.audio.projector_type", text("gemma4a")).write(tmp_path / "mmproj.gguf")
    assert matches(tmp_path, model) == ["mmproj.gguf"]


def test_damaged_files_beside_a_model_are_no_match_and_no_failure(tmp_path: Path) -> None:
    model = chat_model("gemma3").write(tmp_path / "model.gguf")
    (tmp_path / "mmproj-page.gguf").write_bytes(b"<html>")
    file = projector("gemma3")
    file.write(tmp_path / "mmproj-cut.gguf", file_bytes=file.file_bytes() - 1)
    file.write(tmp_path / "mmproj.bin")
    assert matches(tmp_path, model) == []


def test_a_directory_that_vanished_has_no_projectors(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    model = open_model(chat_model("gemma3").write(tmp_path / "a" / "model.gguf"))
    shutil.rmtree(tmp_path / "a")
    assert find_projectors(model) == []


def summary(directory: Path) -> list[tuple[str, str, str]]:
    return [
        (str(e.path.relative_to(directory)), e.kind.value if e.kind else "none", e.problem[:30])
        for e in list_models(directory)
    ]


def test_a_directory_lists_each_file_once_with_its_kind_or_the_reason(tmp_path: Path) -> None:
    chat_model().write(tmp_path / "chat.gguf")
    (tmp_path / "sub").mkdir()
    write_shards(shard_set(chat_model(), 3), tmp_path / "sub")
    projector().write(tmp_path / "sub" / "MMPROJ.GGUF")
    (tmp_path / "page.gguf").write_bytes(b"<!doctype html>")
    (tmp_path / "readme.md").write_text("no model")
    (tmp_path / ".cache").mkdir()
    chat_model().write(tmp_path / ".cache" / "hidden.gguf")
    chat_model().without_key("general.architecture").write(tmp_path / "nameless.gguf")
    assert summary(tmp_path) == [
        ("chat.gguf", "chat model", ""),
        ("nameless.gguf", "none", "names no general.architecture,"),
        ("page.gguf", "none", "a web page, not a GGUF file (1"),
        ("sub/MMPROJ.GGUF", "projector", ""),
        ("sub/model-00001-of-00003.gguf", "chat model", ""),
    ]


def test_a_file_that_the_engine_cannot_use_keeps_its_kind_and_says_why(tmp_path: Path) -> None:
    file = chat_model().with_tensors(*chat_model().tensors, Tensor("blk.0.odd", (8,), F64))
    file.write(tmp_path / "a.gguf")
    (entry,) = list_models(tmp_path)
    assert entry.kind is Kind.CHAT
    assert entry.problem.startswith("tensor 'blk.0.odd' has type F64")


def test_a_broken_set_is_one_entry_that_names_the_broken_shard(tmp_path: Path) -> None:
    shards = shard_set(chat_model(), 3)
    paths = write_shards(shards, tmp_path)
    paths[0].unlink()
    shards[2].write(paths[2], file_bytes=30)
    (entry,) = list_models(tmp_path)
    assert entry.path == paths[1]
    assert entry.problem.startswith("shard 1 of 3 is missing")
    shards[0].write(paths[0])
    (entry,) = list_models(tmp_path)
    assert entry.path == paths[0]
    assert entry.problem.startswith("model-00003-of-00003.gguf: incomplete or damaged file")


def test_a_name_that_claims_an_absurd_number_of_shards_stands_for_itself_alone(
    tmp_path: Path,
) -> None:
    for index in (1, 2):
        (tmp_path / f"a-{index:05}-of-99999.gguf").touch()
    assert [entry.problem for entry in list_models(tmp_path)] == [
        "an empty file; download it again"
    ] * 2


def test_linked_files_and_linked_directories_are_listed_once(tmp_path: Path) -> None:
    (tmp_path / "a").mkdir()
    path = chat_model().write(tmp_path / "a" / "model.gguf")
    (tmp_path / "a" / "same.gguf").symlink_to(path)
    os.link(path, tmp_path / "a" / "hard.gguf")
    (tmp_path / "a" / "loop").symlink_to(tmp_path)
    (tmp_path / "b").symlink_to(tmp_path / "a")
    entries = list_models(tmp_path)
    assert len(entries) == 1
    assert entries[0].kind is Kind.CHAT
    assert entries == list_models(tmp_path)


def test_a_dangling_link_says_that_it_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "gone.gguf").symlink_to(tmp_path / "nowhere")
    assert list_models(tmp_path) == [
        Entry(tmp_path / "gone.gguf", None, None, "cannot be read (No such file or directory)")
    ]


def test_a_missing_directory_is_refused_with_its_path(tmp_path: Path) -> None:
    with pytest.raises(FileProblem, match=r"none: cannot be listed \(No such file or directory\)"):
        list_models(tmp_path / "none")


@pytest.fixture
def open_directory() -> Iterator[Path]:
    """A directory that any user may enter, unlike pytest's own."""
    directory = Path(tempfile.mkdtemp(prefix="hotset-test-"))
    directory.chmod(0o755)
    yield directory
    for locked in directory.iterdir():
        locked.chmod(0o700)
    shutil.rmtree(directory)


def test_a_directory_and_a_file_without_permission_are_listed_with_the_reason(
    open_directory: Path,
) -> None:
    (open_directory / "locked").mkdir(mode=0)
    path = chat_model().write(open_directory / "unreadable.gguf")
    path.chmod(0)
    is_superuser = os.geteuid() == 0
    if is_superuser:
        os.seteuid(65534)
    try:
        entries = list_models(open_directory)
    finally:
        if is_superuser:
            os.seteuid(0)
    assert [(e.path.name, e.problem) for e in entries] == [
        (
            "locked",
            "cannot be listed (Permission denied); check the path and its permissions",
        ),
        (
            "unreadable.gguf",
            "cannot be opened (Permission denied); check the path and its permissions",
        ),
    ]


def test_a_file_that_is_no_model_at_all_still_lists_the_others(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    replace(ok_file(), version=1).write(tmp_path / "old.gguf")
    ok_file().with_key("tokens", array("string", ["a"])).write(tmp_path / "x.gguf")
    assert summary(tmp_path) == [
        ("old.gguf", "none", "GGUF version 1, which engines "),
        ("pipe.gguf", "none", "is a pipe or a device, not a G"),
        ("x.gguf", "chat model", ""),
    ]


def test_a_projector_takes_its_weights_and_the_buffers_of_one_picture(tmp_path: Path) -> None:
    def sizes(**keys: int) -> Projector:
        file = projector("qwen3vl_merger")
        for key, value in keys.items():
            file = file.with_key(f"clip.vision.{key}", number("u32", value))
        return projector_sizes(open_model(file.write(tmp_path / "mmproj.gguf")))

    full = {"embedding_length": 64, "feed_forward_length": 256, "image_size": 224, "patch_size": 16}
    usual = sizes(**full)
    assert usual.n_bytes == sum(t.n_bytes for t in open_model(tmp_path / "mmproj.gguf").tensors)
    assert usual.total_bytes > usual.n_bytes
    assert sizes(**full | {"feed_forward_length": 512}).compute_bytes > usual.compute_bytes
    assert sizes(**full | {"image_size": 4096}).compute_bytes > usual.compute_bytes
    unknown = sizes(embedding_length=64)
    assert unknown.compute_bytes == sizes(**full | {"patch_size": 0}).compute_bytes
