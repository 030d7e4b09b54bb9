"""llama_decode with the store and without: the same logits, bit for bit, for the same batches."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES, write_tiny
from hotset.gguf.synth.blocks import SYNTHETIC_TYPES
from hotset.gguf.synth.recipe import ModelKind
from hotset.store import NativeStore, child_settings, read_counters
from store.decode_child import NUM_SINGLE_TOKENS
from store.engines import TESTS

MOE_FAMILIES = sorted(
    name for name, r in FAMILIES.items() if r.has_experts and r.kind is ModelKind.CHAT
)
FUSED_TOO = sorted(name for name in MOE_FAMILIES if FAMILIES[name].can_fuse)
Context = dict[str, Any]


def context(ubatch_tokens: int, prompts: Sequence[int], together: Sequence[int] = ()) -> Context:
    return {"ubatch_tokens": ubatch_tokens, "prompts": prompts, "together": together}


# Sizes around those where kernels, and the store's ways, change.
SOME_BATCHES = [context(128, [1, 8, 17, 150], together=[3, 8])]
ALL_BATCHES = [
    context(512, [1, 2, 7, 8, 16, 17, 33, 128, 512], together=range(1, 9)),
    *(context(ubatch, [200], together=[8]) for ubatch in (1, 3, 16, 17, 64)),
]


def decode(
    native: NativeStore,
    files: Sequence[Path],
    contexts: Sequence[Context],
    ram_bytes: int,
    num_threads: int = 1,
) -> subprocess.CompletedProcess[str]:
    """Run the child, which decodes everything twice."""
    plugin = native.plugins[3]
    page = files[0].with_name("counters")
    page.unlink(missing_ok=True)
    settings = child_settings(native, plugin, files, ram_bytes=ram_bytes, counters=page)
    task = {
        "plugin": str(plugin),
        "model": str(files[0]),
        "num_threads": num_threads,
        "contexts": [{**context, "together": list(context["together"])} for context in contexts],
    }
    return subprocess.run(
        [sys.executable, "-m", "store.decode_child", json.dumps(task)],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "GGML_NO_BACKTRACE": "1",
            **settings.environment,
        },
        capture_output=True,
        text=True,
        errors="replace",
        check=False,
    )


def least_budget(native: NativeStore, files: Sequence[Path]) -> int:
    """Named by the store when it is given too little."""
    refused = decode(native, files, [context(1, [])], ram_bytes=1)
    assert refused.returncode != 0
    return int(refused.stderr.partition("the least is ")[2].split()[0])


def assert_same_logits(
    native: NativeStore,
    files: Sequence[Path],
    contexts: Sequence[Context] = SOME_BATCHES,
    *,
    share: float | None = 0.4,
    num_threads: int = 1,
) -> None:
    """The store with memory for `share` of the experts; None for the least that it takes."""
    experts = model_spec(open_model(files[0])).experts
    assert experts is not None
    ram_bytes = least_budget(native, files) if share is None else int(share * experts.n_bytes)
    done = decode(native, files, contexts, ram_bytes, num_threads)
    assert done.returncode == 0, done.stderr
    # Both engines map the weights as they are in the file.
    assert "REPACK" not in done.stderr
    result = json.loads(done.stdout)
    assert result["differing"] == [], done.stderr
    assert result["batches"] == sum(
        len(batches["prompts"]) + len(batches["together"]) for batches in contexts
    ) * (1 + NUM_SINGLE_TOKENS)
    # The comparison means something only if the experts did come from the store, and not all fit.
    counters = read_counters(files[0].with_name("counters"))
    assert 0 < counters.resident_bytes <= ram_bytes
    assert (counters.num_evictions > 0) == (share is None or share < 1)


@pytest.mark.parametrize("family", MOE_FAMILIES)
def test_every_family_with_experts(native: NativeStore, tmp_path: Path, family: str) -> None:
    assert_same_logits(native, write_tiny(family, tmp_path / "tiny.gguf"))


@pytest.mark.parametrize("kind", SYNTHETIC_TYPES)
def test_every_expert_type(native: NativeStore, tmp_path: Path, kind: str) -> None:
    files = write_tiny("qwen3moe", tmp_path / "tiny.gguf", experts_type=kind)
    assert_same_logits(native, files)


@pytest.mark.parametrize("family", FUSED_TOO)
def test_gate_and_up_in_one_tensor(native: NativeStore, tmp_path: Path, family: str) -> None:
    assert_same_logits(native, write_tiny(family, tmp_path / "tiny.gguf", fused=True))


def test_another_type_for_down_and_four_shards(native: NativeStore, tmp_path: Path) -> None:
    files = write_tiny(
        "qwen3moe", tmp_path / "tiny", experts_type="Q4_K", down_type="Q6_K", n_shards=4
    )
    assert len(files) == 4
    assert_same_logits(native, files)


@pytest.mark.parametrize("share", [None, 0.3, 0.7, 1.5])
def test_all_batches_at_every_budget(
    native: NativeStore, tmp_path: Path, share: float | None
) -> None:
    files = write_tiny(
        "qwen3moe", tmp_path / "tiny.gguf", experts_type="Q4_K", n_experts=32, n_used=4
    )
    assert_same_logits(native, files, ALL_BATCHES, share=share)


def test_two_threads(native: NativeStore, tmp_path: Path) -> None:
    assert_same_logits(native, write_tiny("gpt-oss", tmp_path / "tiny.gguf"), num_threads=2)
