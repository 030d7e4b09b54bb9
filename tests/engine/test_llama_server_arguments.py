"""What a llama-server is told of graphics cards, and that a real one knows these words."""

from __future__ import annotations

import os
import re
import subprocess
from pathlib import Path

import pytest

from enginekit import can_run_llama_server, fake_engine, llama_server, settings_for
from hotset.core.errors import ConfigProblem
from hotset.core.settings import Settings, validate_settings
from hotset.engine.llama_server import planned_arguments

MODEL = Path("model.gguf")


def told(settings: Settings) -> dict[str, str]:
    """Options with a value, and those without as themselves."""
    validate_settings(settings)
    words = planned_arguments(settings)
    return {
        word: following if not following.startswith("--") else ""
        for word, following in zip(words, [*words[1:], "--"], strict=True)
        if word.startswith("--")
    }


def test_without_cards_the_engine_is_kept_from_using_any() -> None:
    said = told(settings_for(MODEL, gpu_layers=0))
    assert (said["--n-gpu-layers"], said["--device"]) == ("0", "none")
    silent = told(settings_for(MODEL))
    assert not {"--n-gpu-layers", "--device", "--tensor-split", "--n-cpu-moe"} & set(silent)


def test_one_card_gets_the_first_blocks_experts_kept_in_ram() -> None:
    said = told(
        settings_for(
            MODEL, gpu_layers=41, devices=("CUDA0",), cpu_moe_layers=23, moe_cache_mib=512,
            load_mode="none",
        )
    )  # fmt: skip
    assert (said["--n-gpu-layers"], said["--device"], said["--n-cpu-moe"]) == ("41", "CUDA0", "23")
    assert said["--moe-cache-mib"] == "512"
    assert said["--fit"] == "off"
    assert "--tensor-split" not in said


def test_two_cards_get_their_units_and_a_pattern_of_blocks() -> None:
    said = told(
        settings_for(
            MODEL, gpu_layers=41, devices=("CUDA0", "CUDA1"), device_layers=(29, 12),
            cpu_moe_blocks=(0, 1, 29),
        )
    )  # fmt: skip
    assert said["--tensor-split"] == "29,12"
    pattern, _, place = said["--override-tensor"].rpartition("=")
    assert place == "CPU"
    for block, part, is_meant in (
        (1, "ffn_up_exps", True),
        (29, "ffn_gate_up_exps", True),
        (0, "ffn_down_chexps", True),
        (2, "ffn_up_exps", False),
        (9, "ffn_up_exps", False),
        (1, "ffn_up_shexp", False),
        (1, "attn_q", False),
        (11, "ffn_up_exps", False),
    ):
        assert bool(re.search(pattern, f"blk.{block}.{part}.weight")) == is_meant


def test_the_projector_is_kept_off_the_card_where_the_plan_says_so() -> None:
    on_card = settings_for(MODEL, gpu_layers=41, projector=Path("mmproj.gguf"))
    assert "--no-mmproj-offload" not in told(on_card)
    in_ram = settings_for(MODEL, projector=Path("mmproj.gguf"), is_projector_on_card=False)
    assert told(in_ram)["--mmproj"] == "mmproj.gguf"
    assert "--no-mmproj-offload" in told(in_ram)


def test_a_build_without_an_expert_cache_is_not_asked_for_one(tmp_path: Path) -> None:
    settings = settings_for(tmp_path / "m.gguf", gpu_layers=4, cpu_moe_layers=2, moe_cache_mib=64)
    with pytest.raises(ConfigProblem, match=r"moe_cache_mib is 64, but fake-llama-server has no"):
        fake_engine(tmp_path, "").launch(settings, {})


@pytest.mark.skipif(not can_run_llama_server(), reason="no llama-server runs here")
def test_a_real_llama_server_knows_every_word() -> None:
    everything = settings_for(
        MODEL, gpu_layers=41, devices=("CUDA0", "CUDA1"), device_layers=(29, 12),
        cpu_moe_blocks=(0,), projector=Path("mmproj.gguf"), is_projector_on_card=False,
        is_repacked=False, threads=2,
    )  # fmt: skip
    leading = settings_for(MODEL, gpu_layers=41, devices=("CUDA0",), cpu_moe_layers=3)
    done = subprocess.run(
        [str(llama_server()), "--help"],
        capture_output=True, text=True, check=True, env=dict(os.environ),
    )  # fmt: skip
    for word in {**told(everything), **told(leading)}:
        assert re.search(rf"{word}\b", done.stdout), word
