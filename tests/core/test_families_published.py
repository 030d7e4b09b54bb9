"""Published models: their dimensions in, their known cache sizes out.

Dimensions are those of the models' own config.json files on the makers' Hugging Face pages; the
expected figures were worked out from the same pages by hand, not with hotset.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from hotset.core.memory import cache_bytes, window_cells
from hotset.core.modelspec import CacheKind
from speckit import Q8_0, settings, spec_of


@dataclass(frozen=True)
class Published:
    """A model; bytes are per token with F16 caches, state is per sequence."""

    name: str
    architecture: str
    n_blocks: int
    n_embd: int
    n_heads: int
    n_kv: object
    context_tokens: int
    kv_bytes: int
    n_kept: int
    n_experts: int = 0
    n_used: int = 0
    head: int = 0
    n_mtp: int = 0
    window_tokens: int = 0
    window_bytes: int = 0
    state_bytes: int = 0
    keys: dict[str, object] = field(default_factory=dict)

    def metadata(self) -> dict[str, object]:
        keys: dict[str, object] = {
            "block_count": self.n_blocks + self.n_mtp,
            "context_length": self.context_tokens,
            "embedding_length": self.n_embd,
            "attention.head_count": self.n_heads,
            "attention.head_count_kv": self.n_kv,
        }
        if self.n_experts:
            keys |= {"expert_count": self.n_experts, "expert_used_count": self.n_used}
        if self.head:
            keys |= {"attention.key_length": self.head, "attention.value_length": self.head}
        if self.n_mtp:
            keys["nextn_predict_layers"] = self.n_mtp
        if self.window_tokens:
            keys["attention.sliding_window"] = self.window_tokens
        return keys | self.keys


def delta_net(inner: int, rank: int) -> dict[str, object]:
    return {
        "full_attention_interval": 4,
        "ssm.conv_kernel": 4,
        "ssm.inner_size": inner,
        "ssm.state_size": 128,
        "ssm.time_step_rank": rank,
        "ssm.group_count": 16,
    }


PUBLISHED = (
    Published(
        "Qwen3-30B-A3B", "qwen3moe", 48, 2048, 32, 4, 40960, 98304, 48, 128, 8, head=128
    ),
    Published(
        "Qwen3.5-35B-A3B", "qwen35moe", 40, 2048, 16, 2, 262144, 20480, 10, 256, 8, head=256,
        n_mtp=1, state_bytes=65863680, keys=delta_net(4096, 32),
    ),
    Published(
        "Qwen3.5-122B-A10B", "qwen35moe", 48, 3072, 32, 2, 262144, 24576, 12, 256, 8, head=256,
        n_mtp=1, state_bytes=156303360, keys=delta_net(8192, 64),
    ),
    Published(
        "Qwen3.8-Flash-Next", "qwen4exp", 48, 2560, 24, 2, 262144, 24576, 12, 512, 10, head=256,
        n_mtp=1, state_bytes=117669888,
        keys=delta_net(6144, 48) | {"attention.indexer.key_length": 128},
    ),
    Published(
        "gpt-oss-20b", "gpt-oss", 24, 2880, 64, 8, 131072, 24576, 12, 32, 4, head=64,
        window_tokens=128, window_bytes=24576,
    ),
    Published(
        "gpt-oss-120b", "gpt-oss", 36, 2880, 64, 8, 131072, 36864, 18, 128, 4, head=64,
        window_tokens=128, window_bytes=36864,
    ),
    Published(
        "Gemma-4-26B-A4B", "gemma4", 30, 2816, 16, ((8,) * 5 + (2,)) * 5, 262144, 20480, 5, 128, 8,
        head=512, window_tokens=1024, window_bytes=204800,
        keys={
            "attention.sliding_window_pattern": ((True,) * 5 + (False,)) * 5,
            "attention.key_length_swa": 256,
            "attention.value_length_swa": 256,
        },
    ),
    Published(
        "GLM-4.5-Air", "glm4moe", 46, 4096, 96, 8, 131072, 188416, 46, 128, 8, head=128, n_mtp=1
    ),
    Published(
        "GLM-4.7-Flash", "deepseek2", 47, 2048, 20, 1, 202752, 54144, 47, 64, 4,
        keys={
            "attention.key_length": 576,
            "attention.value_length": 512,
            "attention.key_length_mla": 256,
            "attention.value_length_mla": 256,
        },
    ),
    Published("Mixtral-8x7B", "llama", 32, 4096, 32, 8, 32768, 131072, 32, 8, 2),
    Published("OLMoE-1B-7B", "olmoe", 16, 2048, 16, 16, 4096, 131072, 16, 64, 8),
    Published("Granite-3.1-3B-A800M", "granitemoe", 32, 1536, 24, 8, 131072, 65536, 32, 40, 8),
    Published("Granite-3.1-1B-A400M", "granitemoe", 24, 1024, 16, 8, 131072, 49152, 24, 32, 8),
)  # fmt: skip


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_a_published_model_keeps_what_its_dimensions_say(model: Published) -> None:
    spec = spec_of(model.architecture, model.metadata())
    n_tokens = 8192
    one, two = (settings(n_tokens, slots, is_unified=True) for slots in (1, 2))

    kept = cache_bytes(spec, one)

    assert kept.full + kept.latent == model.kv_bytes * n_tokens
    assert kept.window == model.window_bytes * window_cells(spec, one)
    assert kept.recurrent == model.state_bytes
    assert cache_bytes(spec, two).recurrent == 2 * model.state_bytes
    assert spec.is_known
    assert (spec.n_layers, spec.n_mtp_layers) == (model.n_blocks, model.n_mtp)


@pytest.mark.parametrize("model", PUBLISHED, ids=lambda model: model.name)
def test_a_published_model_keeps_whole_context_in_the_right_number_of_blocks(
    model: Published,
) -> None:
    spec = spec_of(model.architecture, model.metadata())

    kept = [x.index for x in spec.layers if x.cache in (CacheKind.FULL, CacheKind.LATENT)]

    assert len(kept) == model.n_kept
    assert all(x.cache is CacheKind.NONE for x in spec.layers[model.n_blocks :])


def test_qwen_hybrids_keep_every_fourth_block_whole() -> None:
    model = PUBLISHED[1]

    spec = spec_of(model.architecture, model.metadata())

    assert [x.index for x in spec.layers if x.cache is CacheKind.FULL] == list(range(3, 40, 4))
    assert {
        (x.state_r_elements, x.state_s_elements) for x in spec.layers if x.state_s_elements
    } == {(24576, 524288)}


def test_q8_0_caches_cost_17_thirty_seconds_of_f16() -> None:
    model = PUBLISHED[0]
    spec = spec_of(model.architecture, model.metadata())

    small = cache_bytes(spec, settings(40960, type_k=Q8_0, type_v=Q8_0)).total

    assert small * 32 == cache_bytes(spec, settings(40960)).total * 17
    # The engine reports 2040 MiB of context for this model at 40960 tokens in q8_0.
    assert small == 2040 * 2**20
