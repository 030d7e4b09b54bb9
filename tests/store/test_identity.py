"""The same bits with and without the store: every family with experts, every expert type.

Greedy tokens and the log-probabilities of the likeliest ones, over HTTP, in the embedded engine.
The stock engine runs without repacked weights: that layout has other kernels and other bits.
"""

from __future__ import annotations

import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from enginekit import settings_for
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES, write_tiny
from hotset.gguf.synth.blocks import SYNTHETIC_TYPES
from hotset.gguf.synth.recipe import ModelKind
from hotset.store import NativeStore
from hotset.store.page import CountersPage
from store.storekit import answer, expert_store

PROMPTS = [
    "Once upon a time",
    "x " * 150,  # a batch of many tokens, all experts among them
    "In the beginning there was a word, and another word, and so on.",
]
# For requests at once. Which of them share a batch is chance, and the stock engine's own bits
# depend on it: attention is computed in tiles from 64 rows on (GGML_FA_TILE_Q of ggml-cpu), and
# where two experts nearly tie, another kernel for one row than for several can choose the other.
# These are short, and none has such a tie: the stock engine gives the same bits in any company.
SHORT_PROMPTS = ["Once", "a b c", "In the beginning", "why?", "x x x", "go on", "7 + 5", "blue sky"]
MOE_FAMILIES = sorted(
    name for name, r in FAMILIES.items() if r.has_experts and r.kind is ModelKind.CHAT
)
SPLIT_AND_FUSED = sorted(name for name in MOE_FAMILIES if FAMILIES[name].can_fuse)


def assert_same_bits(
    native: NativeStore, files: tuple[Path, ...], *, share: float = 0.5, slots: int = 1
) -> None:
    """The store, with memory for `share` of the experts, answers as the stock engine does.

    With several `slots` all requests come at once; the stock engine gets one after another.
    """
    experts = model_spec(open_model(files[0])).experts
    assert experts is not None
    prompts = PROMPTS if slots == 1 else SHORT_PROMPTS[:slots]
    common: dict[str, object] = {
        "is_repacked": False,
        "context_tokens": 512 * slots,
        "slots": slots,
        "ubatch_tokens": 128,
    }
    with start(EmbeddedEngine(), settings_for(files[0], **common), os.environ) as running:
        stock = [answer(running, prompt) for prompt in prompts]
    with CountersPage() as page:
        ram = int(share * experts.n_bytes)
        common["expert_store"] = expert_store(native, page, files, ram)
        with start(EmbeddedEngine(), settings_for(files[0], **common), os.environ) as running:
            with ThreadPoolExecutor(slots) as askers:
                stored = list(askers.map(lambda prompt: answer(running, prompt), prompts))
            counters = page.read()
    assert stored == stock
    # The comparison means something only if the experts did come from the store, and not all fit.
    assert counters.num_requests > 0
    assert counters.read_bytes > 0
    assert counters.resident_bytes <= ram
    assert counters.num_evictions > 0 or share >= 1


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_every_family_with_experts(native: NativeStore, tmp_path: Path, family: str) -> None:
    assert_same_bits(native, write_tiny(family, tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("expert_type", sorted(SYNTHETIC_TYPES))
def test_every_expert_type(native: NativeStore, tmp_path: Path, expert_type: str) -> None:
    files = write_tiny("qwen3moe", tmp_path / "tiny.gguf", experts_type=expert_type)
    assert_same_bits(native, files)


@pytest.mark.parametrize("family", SPLIT_AND_FUSED)
def test_gate_and_up_in_one_tensor(native: NativeStore, tmp_path: Path, family: str) -> None:
    assert_same_bits(native, write_tiny(family, tmp_path / "tiny.gguf", fused=True))


def test_another_type_for_down_and_four_shards(native: NativeStore, tmp_path: Path) -> None:
    files = write_tiny(
        "qwen3moe", tmp_path / "tiny", experts_type="Q4_K", down_type="Q6_K", n_shards=4
    )
    assert len(files) == 4
    assert_same_bits(native, files)


@pytest.mark.parametrize("share", [0.15, 0.3, 0.8, 1.0])
def test_every_budget(native: NativeStore, tmp_path: Path, share: float) -> None:
    assert_same_bits(native, write_tiny("olmoe", tmp_path / "tiny.gguf"), share=share)


@pytest.mark.parametrize("slots", [2, 5, 8])
def test_requests_at_once_get_the_bits_of_one_alone(
    native: NativeStore, tmp_path: Path, slots: int
) -> None:
    assert_same_bits(native, write_tiny("qwen3moe", tmp_path / "tiny.gguf"), slots=slots)
