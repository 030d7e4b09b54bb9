"""Settings: one mutation of a valid start for each thing that is refused."""

from __future__ import annotations

from dataclasses import replace
from pathlib import PurePath

import pytest

from hotset.core.errors import ConfigProblem
from hotset.core.settings import KV_TYPES, ExpertStore, Secret, Settings, validate_settings

STORE = ExpertStore(
    plugin=PurePath("plugin.so"),
    ram_bytes=1,
    counters=PurePath("counters"),
    environment={},
    server_environment={},
    server_arguments=(),
)
CARDS: dict[str, object] = {"gpu_layers": 9, "devices": ("CUDA0", "CUDA1")}
VALID = Settings(model=PurePath("model.gguf"), alias="model", context_tokens=4096)


def test_the_plain_start_is_valid_with_every_kv_type() -> None:
    validate_settings(VALID)
    for kv_type in KV_TYPES:
        validate_settings(replace(VALID, kv_type_k=kv_type, kv_type_v=kv_type))


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        ({"context_tokens": 0}, "context_tokens is 0"),
        ({"slots": 0}, "slots is 0"),
        ({"batch_tokens": 0}, "batch_tokens is 0"),
        ({"ubatch_tokens": 0}, "ubatch_tokens is 0"),
        ({"threads": -1}, "threads is -1"),
        ({"prompt_cache_mib": -1}, "prompt_cache_mib is -1"),
        ({"checkpoints": -1}, "checkpoints is -1"),
        ({"port": -1}, "port is -1"),
        ({"port": 65536}, "port is 65536"),
        ({"slots": 257}, "slots is 257; it must be at most 256"),
        ({"host": ""}, "host is empty"),
        ({"chat_template": " "}, "chat_template is empty"),
        ({"kv_type_k": "q9"}, "kv_type_k is 'q9'; choose one of f32, f16"),
        ({"kv_type_v": "Q8_0"}, "kv_type_v is 'Q8_0'"),
        ({"flash_attention": "yes"}, "flash_attention is 'yes'; choose one of auto, on, off"),
        ({"load_mode": "dio"}, "load_mode is 'dio'"),
        ({"ubatch_tokens": 4096}, "ubatch_tokens is 4096, more than batch_tokens 2048"),
        ({"flash_attention": "off", "kv_type_v": "q8_0"}, "needs flash attention"),
        ({"cpu_moe_layers": 3}, "cpu_moe_layers is 3 without gpu_layers"),
        ({"cpu_moe_blocks": (3,)}, "cpu_moe_blocks is (3,) without gpu_layers"),
        ({"devices": ("CUDA0",)}, "devices is ('CUDA0',) without gpu_layers"),
        ({"device_layers": (3,)}, "device_layers is (3,) without gpu_layers"),
        ({**CARDS, "cpu_moe_layers": 2, "cpu_moe_blocks": (3,)}, "so give one"),
        ({**CARDS, "moe_cache_mib": 9}, "moe_cache_mib is 9 without experts in RAM"),
        ({"moe_cache_mib": -1}, "moe_cache_mib is -1"),
        (
            {**CARDS, "cpu_moe_layers": 2, "moe_cache_mib": 9, "expert_store": STORE},
            "moe_cache_mib is 9 with the expert store",
        ),
        ({**CARDS, "device_layers": (9,)}, "device_layers has 1 numbers for 2 devices"),
        ({**CARDS, "device_layers": (9, 9)}, "device_layers make 18 together, but gpu_layers is 9"),
        ({"load_mode": "none", "expert_store": STORE}, "load_mode is 'none' with the expert store"),
        ({"host": "0.0.0.0"}, "which other machines can reach; give an API key"),
        ({"host": "127.0.0.1.example.com"}, "which other machines can reach"),
        ({"host": "localhost.example.com"}, "which other machines can reach"),
    ],
)
def test_what_is_out_of_range_is_named_with_its_value_and_the_remedy(
    changes: dict[str, object], named: str
) -> None:
    with pytest.raises(ConfigProblem) as caught:
        validate_settings(replace(VALID, **changes))  # type: ignore[arg-type]  # wrong on purpose
    assert named in caught.value.message


@pytest.mark.parametrize(
    "changes",
    [
        {"host": "0.0.0.0", "api_key": Secret("k")},
        {"host": "127.0.0.7"},
        {"expert_store": STORE},
        {"host": "::1"},
        {"host": "localhost"},
        {"flash_attention": "off", "kv_type_v": "bf16", "kv_type_k": "q8_0"},
        {"gpu_layers": 10, "cpu_moe_layers": 3},
        {"gpu_layers": 0, "cpu_moe_layers": 0},
        {**CARDS, "device_layers": (4, 5), "cpu_moe_blocks": (1, 7), "moe_cache_mib": 100},
    ],
)
def test_what_has_a_meaning_is_allowed(changes: dict[str, object]) -> None:
    validate_settings(replace(VALID, **changes))  # type: ignore[arg-type]  # by name


def test_a_secret_shows_itself_to_nobody_but_the_one_who_asks() -> None:
    secret = Secret("open sesame")
    settings = replace(VALID, api_key=secret)
    assert "sesame" not in f"{secret} {secret!r} {settings}"
    assert secret.reveal() == "open sesame"
    assert secret == Secret("open sesame") != Secret("other")
    assert secret != "open sesame"
    assert len({secret, Secret("open sesame")}) == 1
