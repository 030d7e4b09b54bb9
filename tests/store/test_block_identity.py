"""Whole layers by the store and by the stock CPU backend: the same bits, wherever results lie."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

import pytest

from hotset.store import NativeStore, child_settings, read_counters
from store import block_child
from store.engines import TESTS
from store.expertstacks import Layer, write_stacks

NUM_USED = 4
NUM_TOKENS = [1, 2, 3, 16, 17, 40]


@pytest.mark.parametrize("kind", ["F32", "Q4_0", "Q6_K"])
@pytest.mark.parametrize("share", [0.5, 0.8, 1.2, 0.0])
def test_a_layer_gives_the_bits_of_the_stock_backend_wherever_its_results_lie(
    native: NativeStore, tmp_path: Path, share: float, kind: str
) -> None:
    path, page = tmp_path / "experts.bin", tmp_path / "counters"
    shape = (block_child.ROW_ELEMENTS, block_child.WIDE)
    downs = (block_child.WIDE, 512), (block_child.WIDE // 2, 512)
    layers = write_stacks(path, [Layer(kind, shape, d, block_child.NUM_EXPERTS) for d in downs])
    num_bytes = sum(stack.num_bytes for layer in layers for stack in layer)
    settings = child_settings(
        native, native.plugins[3], [path], ram_bytes=int(share * num_bytes), counters=page
    )
    task = {
        "plugin": str(native.plugins[3]), "file": str(path), "num_used": NUM_USED,
        "layers": [[asdict(stack) for stack in layer] for layer in layers],
        "num_tokens": NUM_TOKENS, "num_threads": 1,
    }  # fmt: skip
    environment = {"PYTHONPATH": str(TESTS), "GGML_NO_BACKTRACE": "1", **settings.environment}
    child = subprocess.run(
        [sys.executable, "-m", "store.block_child", json.dumps(task)],
        env={**os.environ, **environment}, capture_output=True, text=True,
        check=False,
    )  # fmt: skip
    assert child.returncode == 0, child.stderr
    found = [json.loads(line) for line in child.stdout.splitlines() if line.startswith("{")]
    assert len(found) == len(block_child.CASES) * len(NUM_TOKENS)
    assert [case for case in found if case["differing"]] == []
    counters = read_counters(page)
    assert (counters.num_evictions > 0) == (0 < share < 1)
    assert counters.num_rows > 0
