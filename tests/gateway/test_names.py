"""Names of models: unique and stable ids, aliases that mean one model, and help with the rest."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ClientProblem, ConfigProblem
from hotset.gateway.names import Name, Names, given_names, model_id

FOLDER = Path("/models")
_NAMES = st.text(st.characters(exclude_characters="/\0", exclude_categories=["Cs"]), max_size=20)


@pytest.mark.parametrize(
    ("file", "expected"),
    [
        ("Qwen3.6-35B-A3B-UD-IQ4_XS.gguf", "qwen3.6-35b-a3b-ud-iq4_xs"),
        ("gpt-oss-120b-MXFP4-00001-of-00003.gguf", "gpt-oss-120b-mxfp4"),
        ("My Model (final).gguf", "my-model-final"),
        ("Größe.gguf", "grösse"),
    ],
)
def test_an_id_is_the_files_name_made_plain(file: str, expected: str) -> None:
    assert model_id(FOLDER / file) == expected


@pytest.mark.parametrize(
    "quantization",
    ["Q4_K_M", "UD-Q4_K_XL", "IQ4_XS", "BF16", "F16", "Q8_0", "i1-Q4_K_S", "MXFP4_MOE", "TQ1_0"],
)
def test_a_lone_quantization_can_be_left_out(quantization: str) -> None:
    (name,) = given_names([(FOLDER / f"Qwen3-30B-A3B-{quantization}.gguf", "")])
    assert name.id == f"qwen3-30b-a3b-{quantization.lower()}"
    assert name.aliases == ("qwen3-30b-a3b",)


def test_a_short_name_that_two_quantizations_share_means_neither() -> None:
    names = given_names([(FOLDER / "m-Q4_K_M.gguf", "Em"), (FOLDER / "m-Q8_0.gguf", "Em")])
    assert names == [Name("m-q4_k_m"), Name("m-q8_0")]


def test_the_models_own_name_is_an_alias() -> None:
    (name,) = given_names([(FOLDER / "ggml-model-q4_0.gguf", "Tiny Llama 1B")])
    assert name.aliases == ("ggml-model", "tiny-llama-1b")


def test_files_of_one_name_are_told_apart_by_their_folders() -> None:
    models = [(Path(f"/m/{where}/model.gguf"), "") for where in ("a/x", "b/x", "c/y")]
    expected = ["a/x/model", "b/x/model", "y/model"]
    assert [name.id for name in given_names(models)] == expected


def test_files_whose_names_differ_in_nothing_that_counts_are_refused() -> None:
    with pytest.raises(ConfigProblem, match="both be called"):
        given_names([(FOLDER / "a b.gguf", ""), (FOLDER / "a-b.gguf", "")])


@given(st.lists(_NAMES, unique_by=lambda n: model_id(Path("/m") / n / "x.gguf"), max_size=6))
def test_ids_do_not_depend_on_the_order_and_every_name_resolves(folders: list[str]) -> None:
    models = [(Path("/m") / folder / "model-Q4_0.gguf", folder) for folder in folders]
    try:
        names = given_names(models)
    except ConfigProblem:
        return
    backwards = given_names(models[::-1])
    assert names == backwards[::-1]
    resolver = Names(names)
    for name in names:
        for form in (name.id, *name.aliases, name.id.upper()):
            assert resolver.resolve(form) == name.id


def test_another_file_beside_changes_no_id() -> None:
    alone = given_names([(FOLDER / "a-Q4_0.gguf", "")])
    beside = given_names([(FOLDER / "a-Q4_0.gguf", ""), (FOLDER / "a-Q8_0.gguf", "")])
    assert alone[0].id == beside[0].id


@pytest.fixture(name="two")
def _two() -> Names:
    return Names([Name("gpt-oss-20b-mxfp4", ("gpt-oss-20b",)), Name("qwen3-30b-a3b-q4_k_m")])


@pytest.mark.parametrize(
    "name",
    ["gpt-oss-20b-mxfp4", "gpt-oss-20b", "GPT-OSS-20B", "gpt-oss-20b:latest", "GPT-oss-20b.gguf"],
)
def test_a_model_answers_to_every_usual_form_of_its_name(two: Names, name: str) -> None:
    assert two.resolve(name) == "gpt-oss-20b-mxfp4"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("qwen3-30b", "did you mean qwen3-30b-a3b-q4_k_m?"),
        ("claude-something", "did you mean gpt-oss-20b-mxfp4 or qwen3-30b-a3b-q4_k_m?"),
        ("", "names no model"),
    ],
)
def test_an_unknown_name_is_answered_with_those_near_it(two: Names, name: str, words: str) -> None:
    with pytest.raises(ClientProblem) as caught:
        two.resolve(name)
    assert caught.value.http_status == 404
    assert words in caught.value.message


def test_no_name_means_the_only_model_or_the_default() -> None:
    assert Names([Name("a")]).resolve("") == "a"
    assert Names([Name("a"), Name("b")], default="b").resolve("") == "b"
    with pytest.raises(ConfigProblem, match="default model 'c'"):
        Names([Name("a")], default="c")


def test_a_name_in_two_cases_means_what_is_written() -> None:
    names = Names([Name("A"), Name("a")])
    assert (names.resolve("A"), names.resolve("a")) == ("A", "a")


def test_a_name_of_two_models_is_refused() -> None:
    with pytest.raises(ConfigProblem, match="means both a and b"):
        Names([Name("a"), Name("b", ("a",))])


def test_with_no_model_at_all_the_answer_says_so() -> None:
    with pytest.raises(ClientProblem, match="none is served"):
        Names([]).resolve("a")
