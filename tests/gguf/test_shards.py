"""Shard sets: the same model from any member, and one clear line when a member is wrong."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from ggufkit import (
    F64,
    Gguf,
    Tensor,
    Value,
    chat_model,
    number,
    ok_file,
    shard_set,
    text,
    write_shards,
)
from hotset.core.errors import FileProblem
from hotset.gguf.reader import TextInfo, read_header
from hotset.gguf.shards import ShardName, open_model


def refusal(path: Path) -> str:
    with pytest.raises(FileProblem) as caught:
        open_model(path)
    return caught.value.message


@pytest.fixture
def shards() -> list[Gguf]:
    return shard_set(chat_model(name="A model"), 3)


def test_a_single_file_is_a_set_of_one(tmp_path: Path) -> None:
    path = ok_file().write(tmp_path / "a.gguf")
    model = open_model(path)
    header = read_header(path)
    assert model.paths == (path,)
    assert model.headers == (header,)
    assert model.tensors == header.tensors
    assert model.metadata == header.metadata
    assert model.file_bytes == path.stat().st_size


def test_a_set_is_the_same_model_from_any_member(tmp_path: Path, shards: list[Gguf]) -> None:
    paths = write_shards(shards, tmp_path)
    models = [open_model(path) for path in paths]
    assert models[0] == models[1] == models[2]
    assert models[0].paths == tuple(paths)
    assert models[0].file_bytes == sum(path.stat().st_size for path in paths)


def test_a_set_has_the_tensors_and_metadata_of_the_whole_file(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    whole = open_model(chat_model(name="A model").write(tmp_path / "whole.gguf"))
    split = open_model(write_shards(shards, tmp_path)[2])
    assert {(t.name, t.type, t.dims, t.n_bytes) for t in split.tensors} == {
        (t.name, t.type, t.dims, t.n_bytes) for t in whole.tensors
    }
    assert {k: v for k, v in split.metadata.items() if not k.startswith("split.")} == dict(
        whole.metadata
    )
    for index, tensor in split.placed_tensors():
        assert tensor in split.headers[index].tensors


def test_wanted_keys_are_read_from_the_first_shard_whichever_was_asked_for(
    tmp_path: Path,
) -> None:
    paths = write_shards(shard_set(ok_file(), 2), tmp_path)
    assert open_model(paths[1]).metadata["test.long"] == TextInfo(5000)
    assert open_model(paths[1], want=["test.long"]).metadata["test.long"] == "y" * 5000


def test_a_set_of_links_is_found_beside_the_links(tmp_path: Path, shards: list[Gguf]) -> None:
    """As in a download cache, where the files themselves have other names."""
    (tmp_path / "blobs").mkdir()
    (tmp_path / "links").mkdir()
    for i, path in enumerate(write_shards(shards, tmp_path)):
        blob = path.rename(tmp_path / "blobs" / f"blob{i}")
        (tmp_path / "links" / path.name).symlink_to(blob)
    assert len(open_model(tmp_path / "links" / "model-00002-of-00003.gguf").paths) == 3


def test_a_missing_shard_is_named_with_where_it_should_be(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    paths = write_shards(shards, tmp_path)
    paths[2].unlink()
    assert refusal(paths[1]) == (
        "model-00002-of-00003.gguf: shard 3 of 3 is missing "
        "(expected model-00003-of-00003.gguf beside it); download it"
    )
    paths[0].unlink()
    assert "shard 1 of 3 is missing (expected model-00001-of-00003.gguf beside it, and 1 more)" in (
        refusal(paths[1])
    )


def test_a_damaged_shard_is_the_one_that_is_named(tmp_path: Path, shards: list[Gguf]) -> None:
    paths = write_shards(shards, tmp_path)
    shards[1].write(paths[1], file_bytes=shards[1].file_bytes() - 1)
    assert refusal(paths[0]).startswith("model-00002-of-00003.gguf: incomplete file: tensor")


@pytest.mark.parametrize(
    "name", ["model.gguf", "model-00002-of-00003.gguf", "m-00001-of-00004.gguf"]
)
def test_a_renamed_shard_is_told_its_right_name(
    tmp_path: Path, shards: list[Gguf], name: str
) -> None:
    paths = write_shards(shards, tmp_path)
    message = refusal(paths[0].rename(tmp_path / name))
    assert "its metadata says shard 1 of 3, its name does not" in message
    assert "-00001-of-00003.gguf" in message


def test_a_shard_name_with_the_metadata_of_a_whole_model_is_a_single_file(tmp_path: Path) -> None:
    path = ok_file().write(tmp_path / "a-00001-of-00002.gguf")
    assert open_model(path).paths == (path,)
    one = ok_file().with_key("split.count", number("u16", 1)).write(path)
    assert open_model(one).paths == (path,)


def test_a_model_by_itself_under_a_shards_name_is_refused(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    paths = write_shards(shards, tmp_path)
    ok_file().write(paths[1])
    assert "model-00002-of-00003.gguf: is a model by itself, not a shard of" in refusal(paths[0])


def test_two_shards_with_their_names_swapped_are_refused(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    paths = write_shards([shards[0], shards[2], shards[1]], tmp_path)
    assert "model-00002-of-00003.gguf: its metadata says shard 3 of 3" in refusal(paths[0])


def test_a_shard_of_a_model_with_another_number_of_tensors_is_refused(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    paths = write_shards(shards, tmp_path)
    shard_set(chat_model(), 3, n_tensors=99)[1].write(paths[1])
    assert (
        "model-00002-of-00003.gguf: belongs to another model than model-00001-of-00003.gguf "
        "(99 tensors in all, not 11)"
    ) in refusal(paths[0])
    shards[1].without_key("split.tensors.count").write(paths[1])
    assert "(an unstated number of tensors in all, not 11)" in refusal(paths[0])


@pytest.mark.parametrize("key", ["general.architecture", "general.name"])
def test_a_shard_that_names_another_model_is_refused(
    tmp_path: Path, shards: list[Gguf], key: str
) -> None:
    paths = write_shards(shards, tmp_path)
    shards[1].with_key(key, text("other")).write(paths[1])
    assert f"belongs to another model than model-00001-of-00003.gguf ({key} is 'other', not" in (
        refusal(paths[0])
    )
    same = next(value for k, value in shards[0].keys if k == key)
    shards[1].with_key(key, same).write(paths[1])
    assert len(open_model(paths[0]).paths) == 3


def test_a_tensor_in_two_shards_is_refused(tmp_path: Path, shards: list[Gguf]) -> None:
    repeated = shards[0].tensors[0]
    shards[1] = replace(shards[1], tensors=(repeated, *shards[1].tensors[1:]))
    paths = write_shards(shards, tmp_path)
    assert (
        "model-00002-of-00003.gguf: tensor 'token_embd.weight' is also in "
        "model-00001-of-00003.gguf: shards of different models or quantizations"
    ) in refusal(paths[0])


def test_a_set_with_fewer_tensors_than_promised_is_refused(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    shards[2] = replace(shards[2], tensors=shards[2].tensors[1:])
    paths = write_shards(shards, tmp_path)
    assert "the set has 10 tensors where its metadata says 11" in refusal(paths[0])


def test_a_set_that_promises_no_number_of_tensors_is_taken_as_it_is(
    tmp_path: Path, shards: list[Gguf]
) -> None:
    silent = [shard.without_key("split.tensors.count") for shard in shards]
    assert len(open_model(write_shards(silent, tmp_path)[0]).tensors) == 11


@pytest.mark.parametrize(
    ("key", "value", "message"),
    [
        ("split.count", text("3"), "split.count is no whole number"),
        ("split.no", text("0"), "split.no is no whole number"),
        ("split.no", number("u16", 3), "its metadata says shard 4 of 3"),
        ("split.count", number("u16", 65535), "its metadata says shard 1 of 65,535"),
    ],
)
def test_split_figures_that_cannot_be_are_refused(
    tmp_path: Path, shards: list[Gguf], key: str, value: Value, message: str
) -> None:
    paths = write_shards(shards, tmp_path)
    assert message in refusal(shards[0].with_key(key, value).write(paths[0]))


def test_a_shard_without_its_number_is_refused(tmp_path: Path, shards: list[Gguf]) -> None:
    paths = write_shards(shards, tmp_path)
    shards[0].without_key("split.no").write(paths[0])
    assert "its metadata says shard 0 of 3" in refusal(paths[0])


def test_a_type_that_the_engine_cannot_use_is_found_in_any_shard(tmp_path: Path) -> None:
    odd = chat_model().with_tensors(*chat_model().tensors, Tensor("blk.0.odd", (8,), F64))
    paths = write_shards(shard_set(odd, 2), tmp_path)
    with pytest.raises(FileProblem, match=r"model-00002-of-00002\.gguf: tensor 'blk\.0\.odd'"):
        open_model(paths[0]).check_computable()
    open_model(write_shards(shard_set(chat_model(), 2), tmp_path)[0]).check_computable()


@pytest.mark.parametrize(
    "name",
    [
        "a.gguf",
        "a-1-of-2.gguf",
        "a-00000-of-00002.gguf",
        "a-00003-of-00002.gguf",
        "-00001-of-00002.gguf",
    ],
)
def test_other_names_are_no_shard_names(name: str) -> None:
    assert ShardName.parse(name) is None


def test_a_shard_name_gives_the_names_of_the_others() -> None:
    name = ShardName.parse("a-b-00002-of-00011.gguf")
    assert name == ShardName("a-b", 2, 11)
    assert name is not None
    assert name.member(11) == "a-b-00011-of-00011.gguf"
