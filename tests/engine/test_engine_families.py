"""Every family: its tiny model answers in the real engine, and allocates what ModelSpec says.

The engine is the judge of `core.families` and `core.memory`: it prints what it allocates, in MiB
with two decimals, and cells and layers as whole numbers.
"""

from __future__ import annotations

import math
import os
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from enginekit import settings_for
from hotset.core.errors import ConfigProblem
from hotset.core.loaded import BufferKind, Loaded
from hotset.core.memory import (
    CacheBytes,
    CacheSettings,
    cache_bytes,
    context_cells,
    window_cells,
)
from hotset.core.modelspec import CacheKind, ModelSpec
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.running import Running
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth.families import FAMILIES
from hotset.gguf.synth.models import write_tiny
from hotset.gguf.synth.recipe import ModelKind

CHAT_FAMILIES = sorted(name for name, r in FAMILIES.items() if r.kind is ModelKind.CHAT)


@dataclass(frozen=True)
class Shape:
    """How the caches are asked for."""

    context_tokens: int = 2048
    slots: int = 1
    kv_type: str = "f16"
    flash_attention: str = "on"
    ubatch_tokens: int = 128

    def settings(self) -> CacheSettings:
        kv_type = tensor_type_named(self.kv_type)
        return CacheSettings(
            context_tokens=self.context_tokens * self.slots,
            slots=self.slots,
            type_k=kv_type,
            type_v=kv_type,
            ubatch_tokens=self.ubatch_tokens,
            has_flash_attention=self.flash_attention != "off",
        )


SHAPES = (
    Shape(),
    Shape(slots=3, kv_type="q8_0", ubatch_tokens=256),
    Shape(context_tokens=1000, slots=2, flash_attention="off"),
)


def shown(n_bytes: int) -> str:
    """Bytes as the engine shows them."""
    return f"{n_bytes / MIB:.2f}"


def assert_same_caches(spec: ModelSpec, shape: Shape, loaded: Loaded) -> None:
    """The engine's caches are those of `spec`: bytes of each kind, cells and layers."""
    settings = shape.settings()
    expected = cache_bytes(spec, settings)
    kv = [c for c in loaded.caches if c.kind is BufferKind.KV]
    state = [c for c in loaded.caches if c.kind is BufferKind.RECURRENT]

    full_cells, swa_cells = context_cells(settings), window_cells(spec, settings)
    attention = expected.full + expected.window + expected.latent + expected.indexer
    # Each reported figure is rounded by itself.
    assert sum(c.n_bytes for c in kv) == pytest.approx(attention, abs=0.006 * MIB * len(kv))
    assert sum(c.n_bytes for c in state) == pytest.approx(
        expected.recurrent, abs=0.006 * MIB * len(state)
    )
    if len(kv) == 1 and not expected.indexer:
        assert shown(kv[0].n_bytes) == shown(attention)
    num_layers = {kind: sum(layer.cache is kind for layer in spec.layers) for kind in CacheKind}
    if expected.window:
        assert {(c.cells, c.layers) for c in kv} == {
            (full_cells, num_layers[CacheKind.FULL]),
            (swa_cells, num_layers[CacheKind.WINDOW]),
        }
    elif kv:
        attending = num_layers[CacheKind.FULL] + num_layers[CacheKind.LATENT]
        assert (full_cells, attending) in {(c.cells, c.layers) for c in kv}
    if state:
        assert state[0].cells == shape.slots


def assert_answers(running: Running) -> None:
    """Greedy tokens with finite probabilities, several different ones among them."""
    body = {"prompt": "Once upon a time", "n_predict": 12, "temperature": 0, "n_probs": 3}
    answer = httpx.post(
        f"{running.url}/completion", json=body, headers=running.headers(), timeout=120
    ).json()
    tokens = answer["completion_probabilities"]
    assert all(math.isfinite(top["logprob"]) for t in tokens for top in t["top_logprobs"])
    assert len({t["id"] for t in tokens}) > 1


@pytest.mark.parametrize("family", CHAT_FAMILIES)
def test_it_answers_and_allocates_what_its_header_says(family: str, tmp_path: Path) -> None:
    paths = write_tiny(family, tmp_path / "tiny.gguf")
    spec = model_spec(open_model(paths[0]))
    assert spec.is_known
    for shape in SHAPES:
        settings = settings_for(
            paths[0],
            context_tokens=shape.context_tokens,
            slots=shape.slots,
            kv_type_k=shape.kv_type,
            kv_type_v=shape.kv_type,
            ubatch_tokens=shape.ubatch_tokens,
            flash_attention=shape.flash_attention,
        )
        try:
            cache_bytes(spec, shape.settings())
        except ConfigProblem:
            # What we refuse for this model, the engine must refuse, too.
            with pytest.raises(Exception, match=r"tiny\.gguf"):
                start(EmbeddedEngine(), settings, os.environ)
            continue
        with start(EmbeddedEngine(), settings, os.environ) as running:
            assert_same_caches(spec, shape, running.loaded)
            if shape is SHAPES[0]:
                assert_answers(running)


def test_the_comparison_would_notice_a_wrong_rule(tmp_path: Path) -> None:
    """Guards the guard: caches of another shape are not taken for the same."""
    paths = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    spec = model_spec(open_model(paths[0]))
    settings = settings_for(paths[0], context_tokens=2048, ubatch_tokens=128)
    with start(EmbeddedEngine(), settings, os.environ) as running:
        loaded = running.loaded
    assert_same_caches(spec, Shape(), loaded)
    for wrong in (Shape(kv_type="q8_0"), Shape(slots=2), Shape(context_tokens=2304)):
        with pytest.raises(AssertionError):
            assert_same_caches(spec, wrong, loaded)
    assert cache_bytes(spec, Shape().settings()) != CacheBytes(0, 0, 0, 0, 0)
