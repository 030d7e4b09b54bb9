"""The rules of the table: which block keeps what, checked as equalities between two files."""

from __future__ import annotations

from collections import Counter

import pytest

from hotset.core.families import FAMILIES, build_model_spec, family_named
from hotset.core.modelspec import CacheKind, ModelSpec
from speckit import metadata, small, spec_of, tensor

FULL, WINDOW, LATENT, RECURRENT, NONE = (
    CacheKind.FULL,
    CacheKind.WINDOW,
    CacheKind.LATENT,
    CacheKind.RECURRENT,
    CacheKind.NONE,
)
PEOPLE_RUN = (
    "llama", "llama4", "mistral3", "mistral4", "qwen2", "qwen2moe", "qwen3", "qwen3moe",
    "qwen3vl", "qwen3vlmoe", "qwen3next", "qwen35", "qwen35moe", "qwen4exp", "gpt-oss", "gemma2",
    "gemma3", "gemma3n", "gemma4", "glm4", "glm4moe", "glm-dsa", "deepseek", "deepseek2",
    "deepseek32", "olmoe", "olmo2", "granite", "granitemoe", "granitehybrid", "minimax-m2",
    "phi3", "phimoe", "bailingmoe2", "ernie4_5-moe", "hunyuan-moe", "dots1", "exaone4",
    "smollm3", "seed_oss", "lfm2", "lfm2moe", "nemotron_h", "nemotron_h_moe", "jamba", "mamba",
)  # fmt: skip
SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.group_count": 2}
MLA = {"attention.key_length_mla": 64, "attention.value_length_mla": 64}


def kinds(spec: ModelSpec) -> list[CacheKind]:
    return [layer.cache for layer in spec.layers]


def marks(spec: ModelSpec) -> str:
    """F, W, L, R or - per block."""
    letters = {FULL: "F", WINDOW: "W", LATENT: "L", RECURRENT: "R", NONE: "-"}
    return "".join(letters[kind] for kind in kinds(spec))


def test_every_architecture_has_one_row() -> None:
    names = [name for family in FAMILIES for name in family.architectures]

    assert len(names) == len(set(names))
    assert all(name in (family_named(name) or FAMILIES[0]).architectures for name in names)
    assert family_named("never-heard-of") is None


@pytest.mark.parametrize(
    "name",
    PEOPLE_RUN,
)
def test_the_families_that_people_run_are_in_the_table(name: str) -> None:
    assert family_named(name) is not None


@pytest.mark.parametrize(
    ("architecture", "changes", "expected"),
    [
        ("llama", {}, "FFFFFFFF"),
        ("phi3", {"attention__sliding_window": 512}, "FFFFFFFF"),
        ("gpt-oss", {"attention__sliding_window": 512}, "WFWFWFWF"),
        ("gemma2", {}, "WFWFWFWF"),
        ("gemma3", {}, "FFFFFFFF"),
        ("gemma3", {"attention__sliding_window": 0}, "FFFFFFFF"),
        ("gemma3", {"attention__sliding_window": 512}, "WWWWWFWW"),
        ("gemma3n", {"attention__sliding_window": 512}, "WWWWFWWW"),
        ("llama4", {}, "WWWFWWWF"),
        ("llama4", {"attention__sliding_window": 0}, "FFFFFFFF"),
        ("cohere2moe", {"attention__sliding_window": 512}, "FWWWFWWW"),
        ("exaone4", {"attention__sliding_window": 512}, "FFFFFFFF"),
        ("lfm2", {"attention__head_count_kv": (0, 2) * 4, "shortconv__l_cache": 3}, "RFRFRFRF"),
        (
            "lfm2",
            {
                "attention__head_count_kv": (0, 2) * 4,
                "shortconv__l_cache": 3,
                "attention__sliding_window": 512,
            },
            "RWRWRWRW",
        ),
        ("bert", {}, "--------"),
        ("deepseek2", {}, "FFFFFFFF"),
        ("deepseek2", MLA, "LLLLLLLL"),
        ("qwen3next", SSM, "RRRFRRRF"),
        ("qwen3next", {**SSM, "full_attention_interval": 2}, "RFRFRFRF"),
        ("qwen3next", {**SSM, "attention.recurrent_layers": (1, 0) * 4}, "RFRFRFRF"),
        ("minimax-01", {}, "RRRRRRRF"),
        ("mamba2", SSM, "RRRRRRRR"),
        ("rwkv6", {"wkv.head_size": 64}, "RRRRRRRR"),
        ("falcon-h1", SSM, "FFFFFFFF"),
        ("jamba", {**SSM, "attention.head_count_kv": (0, 0, 0, 2) * 2}, "RRRFRRRF"),
        (
            "nemotron_h",
            {
                **SSM,
                "attention.head_count_kv": (0, 0, 2, 0) * 2,
                "feed_forward_length": (0, 64, 0, 64) * 2,
            },
            "R-F-R-F-",
        ),
        ("kimi-linear", {**SSM, **MLA, "attention.head_count_kv": (0, 0, 0, 1) * 2,
                         "kda.head_dim": 32}, "RRRLRRRL"),
    ],
)  # fmt: skip
def test_blocks_keep_what_their_family_says(
    architecture: str, changes: dict[str, object], expected: str
) -> None:
    assert marks(spec_of(architecture, small(block_count=8, **changes))) == expected


def test_a_pattern_in_the_file_beats_the_family_as_array_and_as_number() -> None:
    windowed = small(block_count=8, attention__sliding_window=512)
    pattern = "attention.sliding_window_pattern"

    as_array = spec_of("gemma3", windowed | {pattern: (False, True) * 4})
    as_numbers = spec_of("gemma3", windowed | {pattern: (0, 1) * 4})
    as_period = spec_of("gemma3", windowed | {pattern: 2})
    short_array = spec_of("gemma3", windowed | {pattern: (True,)})
    long_array = spec_of("gemma3", windowed | {pattern: (False, True) * 20})

    assert marks(as_array) == marks(as_numbers) == marks(long_array) == "FWFWFWFW"
    assert marks(as_period) == "WFWFWFWF"
    assert marks(short_array) == "WFFFFFFF"


def test_the_engine_overrides_the_window_of_some_families() -> None:
    keys = small(attention__sliding_window=512)

    assert spec_of("gemma3", keys).window_tokens == 512
    assert spec_of("smallthinker", keys).window_tokens == 4096
    assert spec_of("llama4", keys).window_tokens == 8192
    assert spec_of("gemma2", small()).window_tokens == 4096
    assert spec_of("smallthinker", small()).window_tokens == 0


def test_exaone4_has_a_window_in_its_64_block_size_only() -> None:
    large = spec_of("exaone4", small(block_count=64))
    other = spec_of("exaone4", small(block_count=63))

    assert Counter(kinds(large)) == {WINDOW: 48, FULL: 16}
    assert Counter(kinds(other)) == {FULL: 63}


@pytest.mark.parametrize("architecture", ["glm4moe", "qwen35moe", "deepseek2", "qwen4exp"])
def test_an_mtp_block_adds_bytes_but_no_cache(architecture: str) -> None:
    keys = small(attention__indexer__key_length=32) | SSM | MLA
    plain = spec_of(architecture, keys)
    with_mtp = spec_of(architecture, keys | {"block_count": 5, "nextn_predict_layers": 1})

    assert marks(with_mtp) == marks(plain) + "-"
    assert with_mtp.n_layers == plain.n_layers == 4
    assert all(
        (a.k_elements, a.v_elements, a.indexer_elements, a.state_s_elements)
        == (b.k_elements, b.v_elements, b.indexer_elements, b.state_s_elements)
        for a, b in zip(plain.layers, with_mtp.layers, strict=False)
    )


def test_some_hybrids_cache_their_mtp_block_all_the_same() -> None:
    keys = small(block_count=5, nextn_predict_layers=1, attention__head_count_kv=(0, 2, 0, 2, 2))

    assert marks(spec_of("granitehybrid", keys | SSM)) == "RFRFF"


def test_a_file_of_mtp_blocks_alone_caches_them() -> None:
    spec = spec_of("glm4moe", small(block_count=2, nextn_predict_layers=2))

    assert (spec.n_layers, spec.n_mtp_layers, marks(spec)) == (0, 2, "FF")


def test_shared_kv_leaves_the_last_blocks_without_a_cache() -> None:
    keys = small(block_count=24, attention__sliding_window=512)
    gemma3n = marks(spec_of("gemma3n", keys))
    keys["attention.sliding_window_pattern"] = (True,) * 24
    gemma4 = marks(spec_of("gemma4", keys | {"attention.shared_kv_layers": 10}))

    assert gemma3n == "WWWWF" * 4 + "----"
    assert gemma4 == "W" * 14 + "-" * 10


def test_head_sizes_come_from_the_file_or_from_the_width() -> None:
    derived = spec_of("llama", small()).layers[0]
    given = spec_of("llama", small(attention__key_length=32, attention__value_length=32)).layers[0]
    wide = spec_of("llama", small(attention__key_length=48, attention__value_length=16)).layers[0]

    assert derived == given
    assert (wide.k_elements, wide.v_elements) == (96, 32)


def test_kv_heads_default_to_heads_and_may_differ_by_block() -> None:
    same = spec_of("llama", small(attention__head_count_kv=None))
    mixed = spec_of("deci", small(attention__head_count_kv=(4, 2, 1, 0)))

    assert {layer.k_elements for layer in same.layers} == {128}
    assert [layer.k_elements for layer in mixed.layers] == [128, 64, 32, 0]
    assert mixed.v_padded_elements == 128


def test_a_model_whose_first_block_has_no_heads_has_no_head_size() -> None:
    # The engine asks the first block alone (llama.cpp load_hparams).
    spec = spec_of("deci", small(attention__head_count=(0, 4, 4, 4), attention__key_length=64))

    assert {layer.k_elements for layer in spec.layers} == {0}


def test_windowed_blocks_may_have_heads_of_their_own_size() -> None:
    keys = small(attention__sliding_window=512, attention__key_length_swa=16)
    keys["attention.sliding_window_pattern"] = (True, False, True, False)
    spec = spec_of("gemma4", keys)

    assert [layer.k_elements for layer in spec.layers] == [32, 64, 32, 64]
    assert [layer.v_elements for layer in spec.layers] == [64] * 4
    assert spec.k_head_elements == (16, 32)
    assert spec.v_head_elements == (32,)


def test_latent_attention_keeps_one_row_and_no_values() -> None:
    keys = small(attention__head_count_kv=1, attention__key_length=96) | MLA
    latent = spec_of("deepseek2", keys)

    assert {(x.k_elements, x.v_elements) for x in latent.layers} == {(96, 0)}
    assert latent.is_latent
    assert not spec_of("deepseek2", small()).is_latent


def test_an_indexer_caches_keys_in_the_blocks_that_have_one() -> None:
    keys = small(attention__indexer__key_length=32)

    def widths(architecture: str, **more: object) -> list[int]:
        own = {key.replace("__", "."): value for key, value in more.items()}
        return [x.indexer_elements for x in spec_of(architecture, keys | own).layers]

    assert widths("deepseek32", **MLA) == [32] * 4
    assert widths("glm-dsa", **MLA) == [32] * 4
    assert widths("glm-dsa", **MLA, attention__indexer__types=(1, 0, 0, 1)) == [32, 0, 0, 32]
    assert widths("glm-dsa", **MLA, context_length=2**20, block_count=8) == [
        32, 32, 32, 0, 0, 0, 32, 0
    ]  # fmt: skip
    assert widths("minimax-m3", leading_dense_block_count=1) == [0, 32, 32, 32]
    assert widths("qwen4exp", **SSM) == [0, 0, 0, 32]
    assert widths("qwen4exp", **SSM, attention__compress_ratios=(0, 0, 0, 4)) == [0, 0, 0, 64]


def test_an_indexer_has_value_rows_only_where_its_main_cache_has_them() -> None:
    keys = small(attention__indexer__key_length=64)

    def values(architecture: str, more: dict[str, object]) -> int:
        return spec_of(architecture, keys | more).layers[3].indexer_v_elements

    assert values("minimax-m3", {}) == values("deepseek32", {}) == 32
    assert values("deepseek32", dict(MLA)) == values("qwen4exp", dict(SSM)) == 0


@pytest.mark.parametrize(
    ("architecture", "keys", "expected"),
    [
        ("mamba", {"ssm.group_count": 8}, (3 * 256, 64 * 256)),
        ("mamba2", {}, (3 * (256 + 2 * 2 * 64), 64 * 256)),
        ("mamba2", {"ssm.conv_kernel": 0}, (0, 64 * 256)),
        ("falcon-h1", {}, (3 * (256 + 2 * 2 * 64), 64 * 256)),
        ("minimax-01", {}, (0, 32 * 32 * 4)),
        ("rwkv7", {"wkv.head_size": 16}, (2 * 128, 16 * 128)),
        ("rwkv6qwen2", {"wkv.head_size": 16, "token_shift_count": 1}, (128, 16 * 128)),
        ("lfm2moe", {"shortconv.l_cache": 3, "attention.head_count_kv": 0}, (2 * 128, 0)),
        ("kimi-k3", {"kda.head_dim": 16, "attention.head_count_kv": 0},
         (3 * 3 * 4 * 16, 16 * 16 * 4)),
        ("kimi-k3", {"kda.head_dim": 16, "attention.head_count_kv": 0, "ssm.conv_kernel": 0},
         (3 * 3 * 4 * 16, 16 * 16 * 4)),
    ],
)  # fmt: skip
def test_a_recurrent_block_keeps_a_state_of_its_family_s_size(
    architecture: str, keys: dict[str, object], expected: tuple[int, int]
) -> None:
    layer = spec_of(architecture, small() | SSM | keys).layers[0]

    assert (layer.state_r_elements, layer.state_s_elements) == expected


def test_the_n_gram_module_keeps_a_history_in_its_own_block() -> None:
    keys = small(attention__indexer__key_length=32) | SSM
    ple = {
        "ple.layers": (1,),
        "ple.conv_kernel": 4,
        "ple.ngram_size": 3,
        "hyper_connection.count": 2,
    }
    without, with_ple = (spec_of("qwen4exp", keys | more).layers for more in ({}, ple))

    extra = [
        b.state_r_elements - a.state_r_elements for a, b in zip(without, with_ple, strict=True)
    ]

    assert extra == [0, 3 * 3 * 2 * 128, 0, 0]


def test_only_families_with_snapshots_can_take_drafted_tokens_back() -> None:
    assert spec_of("qwen35", small() | SSM).can_roll_back_state
    assert not spec_of("qwen3next", small() | SSM).can_roll_back_state
    assert not spec_of("llama", small()).can_roll_back_state


def test_an_unknown_family_counts_every_block_as_full_attention() -> None:
    unknown = spec_of("never-heard-of", small(block_count=5, nextn_predict_layers=1))
    hybrid = spec_of("never-heard-of", small() | SSM)
    known = spec_of("llama", small())

    assert marks(unknown) == "FFFFF"
    assert hybrid.layers[0].state_s_elements == 64 * 256
    assert hybrid.layers[0].k_elements == unknown.layers[4].k_elements
    assert (unknown.is_known, known.is_known) == (False, True)
    assert unknown.notes
    assert known.notes != unknown.notes


def test_the_bytes_of_an_unknown_family_are_as_exact_as_any() -> None:
    tensors = [tensor(f"blk.{i}.something_new.weight", 128, 128) for i in range(4)]

    assert spec_of("never-heard-of", small(), tensors).n_bytes == 4 * 128 * 128 * 2


def test_a_model_is_called_by_its_name_in_one_line_or_by_its_file() -> None:
    table = [tensor("blk.0.attn_q.weight", 128, 128)]
    base = metadata("llama", small())

    named, unnamed = (
        build_model_spec(base | more, table, source="file.gguf")
        for more in ({"general.name": "Two\nlines"}, {"general.name": 7})
    )

    assert named.name == "Two lines"
    assert unnamed.name == "file.gguf"
    tokens = {"tokenizer.ggml.tokens": (), "tokenizer.chat_template": "x"}
    with_words = build_model_spec(base | tokens, table, source="file.gguf")
    assert (with_words.has_vocabulary, with_words.has_chat_template) == (True, True)
    assert (named.has_vocabulary, named.has_chat_template) == (False, False)
