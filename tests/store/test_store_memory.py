"""What the engine gives the store's device and the CPU for a batch is what hotset counts.

One tiny model of each kind of expert: gate and up apart or in one tensor, with biases, without a
gate, beside a dense part, and where every query head has a key head of its own.
"""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginekit import settings_for
from hotset.core.compute import compute_bytes_estimate
from hotset.core.loaded import BufferKind
from hotset.core.memory import CacheSettings
from hotset.core.storecompute import store_compute_bytes
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_tiny
from hotset.store import NativeStore
from hotset.store.page import CountersPage
from store.storekit import expert_store

F16 = tensor_type_named("F16")


@pytest.mark.parametrize(
    "family", ["qwen3moe", "gpt-oss", "nemotron_h_moe", "gemma4-moe", "olmoe", "qwen35moe"]
)
def test_the_engine_gives_the_store_and_the_cpu_what_is_counted(
    native: NativeStore, family: str, tmp_path: Path
) -> None:
    files = write_tiny(family, tmp_path / "tiny.gguf")
    spec = model_spec(open_model(files[0]))
    assert spec.experts is not None
    asked = CacheSettings(1024, 1, F16, F16, ubatch_tokens=512)
    with CountersPage() as page:
        settings = settings_for(
            files[0],
            context_tokens=1024,
            ubatch_tokens=512,
            is_repacked=False,
            is_warmed_up=False,
            expert_store=expert_store(native, page, files, spec.experts.n_bytes),
        )
        with start(EmbeddedEngine(), settings, os.environ) as running:
            buffers = running.loaded.buffers

    taken = {b.device: b.n_bytes for b in buffers if b.kind is BufferKind.COMPUTE}

    rounded = 0.006 * MIB  # the engine shows two decimals
    assert store_compute_bytes(spec, asked) == pytest.approx(taken["HOTSET"], abs=rounded)
    rest = compute_bytes_estimate(spec, asked, has_experts=False)
    assert taken["CPU"] - rounded <= rest <= 1.35 * taken["CPU"]
