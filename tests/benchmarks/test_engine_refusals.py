"""What `core/refusals.py` says of small models, and what the engine does with them."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.planner.dry import first_breakdown

from hotset.core.cachesettings import CacheSettings
from hotset.core.errors import EngineProblem
from hotset.core.refusals import refusal
from hotset.core.settings import Settings
from hotset.core.tensortypes import tensor_type_named
from hotset.engine.embedded import EmbeddedEngine
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_tiny

# Family, sizes, types of K and V, flash attention, whether a rule is against it.
TRIALS: tuple[tuple[str, dict[str, int], str, str, str, bool], ...] = (
    ("llama", {"head_dim": 48}, "q8_0", "q8_0", "auto", True),
    ("llama", {"head_dim": 96}, "q8_0", "q8_0", "auto", False),
    ("qwen35moe", {"head_dim": 80}, "q4_0", "q4_0", "auto", True),
    ("gpt-oss", {"head_dim": 48}, "q8_0", "f16", "off", False),
    ("deepseek2-mla", {}, "q8_0", "f16", "auto", True),
    ("deepseek2-mla", {}, "q8_0", "q8_0", "auto", False),
    ("mixtral", {"n_layers": 11, "n_used": 8}, "q8_0", "q8_0", "auto", False),
    ("mixtral", {"n_layers": 25, "n_used": 8}, "q8_0", "q8_0", "auto", True),
    ("mixtral", {"n_layers": 25, "n_used": 8}, "f16", "f16", "auto", False),
)


@pytest.mark.parametrize("trial", TRIALS, ids=lambda t: f"{t[0]}-{t[1]}-{t[2]}-{t[3]}-{t[4]}")
def test_the_engine_refuses_what_a_rule_is_against_and_takes_the_rest(
    tmp_path: Path, trial: tuple[str, dict[str, int], str, str, str, bool]
) -> None:
    family, sizes, k, v, flash, is_refused = trial
    file = _written(family, tmp_path / "tiny.gguf", **sizes)
    kept = CacheSettings(
        context_tokens=512,
        slots=1,
        type_k=tensor_type_named(k),
        type_v=tensor_type_named(v),
        ubatch_tokens=512,
        has_flash_attention=flash != "off",
    )
    assert bool(refusal(model_spec(open_model(file)), kept)) == is_refused
    settings = Settings(
        model=file, alias="tiny", context_tokens=512, kv_type_k=k, kv_type_v=v,
        flash_attention=flash, load_mode="none", is_repacked=False, is_warmed_up=False,
    )  # fmt: skip
    if is_refused:
        with pytest.raises(EngineProblem):
            first_breakdown(EmbeddedEngine(), settings, os.environ)
    else:
        assert first_breakdown(EmbeddedEngine(), settings, os.environ)


def _written(
    family: str, path: Path, *, head_dim: int = 64, n_layers: int = 4, n_used: int = 2
) -> Path:
    (file,) = write_tiny(family, path, head_dim=head_dim, n_layers=n_layers, n_used=n_used)
    return file
