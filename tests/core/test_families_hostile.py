"""Metadata that lies: one clear line naming key and value, never a crash, never a long loop."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.core.compute import compute_bytes_estimate
from hotset.core.errors import FileProblem
from hotset.core.families import FAMILIES, MAX_BLOCKS, build_model_spec
from hotset.core.modelspec import ModelSpec
from speckit import metadata, small, spec_of, tensor
from speckit import settings as cache_settings

SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.group_count": 2}


@pytest.mark.parametrize(
    ("architecture", "changes", "words"),
    [
        ("llama", {"block_count": None}, ("llama.block_count", "missing")),
        ("llama", {"block_count": 0}, ("llama.block_count", "0")),
        ("llama", {"block_count": 10**9}, ("llama.block_count", "1000000000", str(MAX_BLOCKS))),
        ("llama", {"block_count": -1}, ("llama.block_count", "-1")),
        ("llama", {"block_count": "many"}, ("llama.block_count", "'many'")),
        ("llama", {"block_count": 4.0}, ("llama.block_count", "4.0")),
        ("llama", {"block_count": True}, ("llama.block_count", "True")),
        ("llama", {"block_count": (1, 2)}, ("llama.block_count", "(1, 2)")),
        ("llama", {"block_count": "x" * 10**6}, ("llama.block_count", "...")),
        ("llama", {"nextn_predict_layers": 5}, ("llama.nextn_predict_layers", "5")),
        ("llama", {"embedding_length": 0}, ("llama.embedding_length", "0")),
        ("llama", {"embedding_length": 2**32}, ("llama.embedding_length", str(2**32))),
        ("llama", {"attention__head_count": -4}, ("llama.attention.head_count", "-4")),
        ("llama", {"attention__head_count_kv": (2, 2)}, ("head_count_kv", "2 entries", "4 blocks")),
        ("llama", {"attention__head_count_kv": (2, 2, "a", 2)}, ("head_count_kv", "'a'")),
        ("llama", {"attention__head_count_kv": object()}, ("head_count_kv", "object")),
        ("llama", {"expert_count": 1025}, ("llama.expert_count", "1025")),
        ("llama", {"expert_count": 8}, ("llama.expert_used_count", "0 of 8")),
        ("llama", {"expert_count": 8, "expert_used_count": 9}, ("expert_used_count", "9 of 8")),
        ("gpt-oss", {}, ("gpt-oss.attention.sliding_window", "missing")),
        ("gemma4", {"attention__sliding_window": 8}, ("sliding_window_pattern", "no array")),
        (
            "gemma3",
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": (0,) * 513},
            ("sliding_window_pattern", "513"),
        ),
        (
            "gemma3",
            {"attention__sliding_window": 8, "attention__sliding_window_pattern": (0.5,)},
            ("sliding_window_pattern", "0.5"),
        ),
        ("gemma4", {"attention__sliding_window": 8, "attention__shared_kv_layers": 5,
                    "attention__sliding_window_pattern": (1,)}, ("shared_kv_layers", "5")),
        ("deepseek2", {"attention__key_length_mla": 64}, ("key_length_mla", "64", "value_length")),
        ("qwen35", {}, ("qwen35.ssm.inner_size", "missing")),
        ("qwen35", {**SSM, "full_attention_interval": 0}, ("full_attention_interval", "0")),
        ("qwen4exp", SSM, ("attention.indexer.key_length", "missing")),
        ("qwen4exp", {**SSM, "attention.indexer.key_length": 8, "ple.layers": 3},
         ("ple.layers", "3")),
        ("qwen4exp", {**SSM, "attention.indexer.key_length": 8, "ple.layers": (900,)},
         ("ple.layers", "900")),
        ("lfm2", {"attention__head_count_kv": 0, "shortconv__l_cache": 0}, ("l_cache", "0")),
    ],
)  # fmt: skip
def test_a_false_value_is_named_with_its_key(
    architecture: str, changes: dict[str, object], words: tuple[str, ...]
) -> None:
    with pytest.raises(FileProblem) as caught:
        spec_of(architecture, small(**changes), source="tiny.gguf")

    assert caught.value.message.startswith("tiny.gguf: ")
    assert all(word in caught.value.message for word in words)
    assert len(caught.value.message) < 300


@pytest.mark.parametrize("name", [None, "", 7, "x" * 65])
def test_a_file_without_an_architecture_is_no_model(name: object) -> None:
    with pytest.raises(FileProblem, match=r"general\.architecture"):
        build_model_spec({"general.architecture": name}, [], source="tiny.gguf")


def test_a_tensor_of_a_block_that_should_not_exist_is_named() -> None:
    with pytest.raises(FileProblem, match=r"llama\.block_count is 4.*'blk\.4\.attn_q\.weight'"):
        spec_of("llama", small(), [tensor("blk.4.attn_q.weight", 128, 128)])


def test_a_vocabulary_alone_is_no_model() -> None:
    with pytest.raises(FileProblem, match="only a vocabulary"):
        spec_of("llama", small(), [tensor("token_embd.weight", 128, 100)])


def test_experts_without_their_number_are_refused() -> None:
    with pytest.raises(FileProblem, match=r"llama\.expert_count is missing"):
        spec_of("llama", small(), [tensor("blk.0.ffn_up_exps.weight", 128, 64, 8)])


VALUES = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(-(2**63), 2**64),
    st.integers(0, 600),
    st.floats(),
    st.text(max_size=8),
    st.lists(st.one_of(st.booleans(), st.integers(-2, 600)), max_size=12).map(tuple),
    st.builds(object),
)
KEYS = (
    "block_count", "nextn_predict_layers", "context_length", "embedding_length", "vocab_size",
    "expert_count", "expert_used_count", "attention.head_count", "attention.head_count_kv",
    "attention.key_length", "attention.value_length", "attention.key_length_swa",
    "attention.key_length_mla", "attention.value_length_mla", "attention.sliding_window",
    "attention.sliding_window_pattern", "attention.shared_kv_layers",
    "attention.recurrent_layers", "attention.indexer.key_length", "attention.indexer.types",
    "attention.compress_ratios", "full_attention_interval", "feed_forward_length",
    "leading_dense_block_count", "ssm.conv_kernel", "ssm.inner_size", "ssm.state_size",
    "ssm.group_count", "shortconv.l_cache", "kda.head_dim", "wkv.head_size", "token_shift_count",
    "ple.layers", "ple.conv_kernel", "ple.ngram_size", "hyper_connection.count",
)  # fmt: skip
ARCHITECTURES = st.sampled_from([f.architectures[0] for f in FAMILIES] + ["never-heard-of"])


@settings(max_examples=400)
@given(ARCHITECTURES, st.dictionaries(st.sampled_from(KEYS), VALUES, max_size=8))
def test_whatever_a_file_says_the_answer_is_a_model_or_one_line(
    architecture: str, lies: dict[str, object]
) -> None:
    honest = small(attention__sliding_window=64, attention__indexer__key_length=32) | SSM
    honest |= {"shortconv.l_cache": 3, "kda.head_dim": 16, "wkv.head_size": 16}
    honest["attention.sliding_window_pattern"] = (1, 0, 1, 0)
    table = [tensor("blk.0.attn_q.weight", 128, 128)]

    message = ""
    try:
        spec = build_model_spec(metadata(architecture, honest | lies), table, source="tiny.gguf")
    except FileProblem as problem:
        message = problem.message
    else:
        assert_is_sane(spec)

    assert not message or (message.startswith("tiny.gguf: ") and len(message) < 300)


def assert_is_sane(spec: ModelSpec) -> None:
    assert len(spec.layers) == spec.n_layers + spec.n_mtp_layers <= MAX_BLOCKS
    assert all(
        min(x.k_elements, x.v_elements, x.state_r_elements, x.state_s_elements) >= 0
        for x in spec.layers
    )
    assert compute_bytes_estimate(spec, cache_settings()) > 0
