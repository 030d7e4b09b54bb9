"""Expert products by the store and by the stock CPU backend, on the same rows: the same bits."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from itertools import chain
from math import gcd
from pathlib import Path

import pytest

from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.synth.blocks import SYNTHETIC_TYPES
from hotset.store import Counters, NativeStore, child_settings, read_counters
from store.engines import TESTS
from store.expertstacks import Layer, Stack, write_stacks

NUM_EXPERTS = 10
NUM_USED = 3
# Around the sizes where kernels change: one row, pairs, eights, sixteens; and a whole batch.
NUM_TOKENS = [1, 2, 7, 8, 16, 17, 33, 128, 512]
MATRICES_PER_LAYER = 3
LAYERS_PER_TYPE = 2
DISK_BLOCK_BYTES = 4096
# Shares of all expert bytes.
LEAST, EVERYTHING, MAPPED = "least", 1.2, 0.0
BUDGETS = [LEAST, 0.3, 0.6, EVERYTHING, MAPPED]


@dataclass(frozen=True, slots=True)
class Stacks:
    """Matrices of every type, and how many bytes they are together."""

    path: Path
    layers: Sequence[Sequence[Stack]]

    @property
    def num_bytes(self) -> int:
        return sum(stack.num_bytes for layer in self.layers for stack in layer)


@dataclass(frozen=True, slots=True)
class Outcome:
    """What the child found: products compared and those that differ, by type.

    `due` is how many products of each layer it was to compare.
    """

    due: int
    compared: dict[str, int]
    differing: dict[str, list[str]]
    counters: Counters | None
    status: int
    said: str


@pytest.fixture(scope="module")
def stacks(tmp_path_factory: pytest.TempPathFactory) -> Stacks:
    path = tmp_path_factory.mktemp("stacks") / "experts.bin"
    return Stacks(path, write_stacks(path, chain.from_iterable(map(layers_of, SYNTHETIC_TYPES))))


def layers_of(kind: str) -> list[Layer]:
    """Matrices of whole blocks of the disk, which the store may multiply as a bank, and others."""
    row_bytes = tensor_type_named(kind).row_bytes(512)
    num_rows = max(64, DISK_BLOCK_BYTES // gcd(row_bytes, DISK_BLOCK_BYTES))
    whole, odd, odd_too = (512, num_rows), (256, 121), (256, 89)
    return [Layer(kind, whole, odd, NUM_EXPERTS), Layer(kind, odd_too, whole, NUM_EXPERTS)]


def compare(
    native: NativeStore,
    stacks: Stacks,
    ram_bytes: int,
    *,
    num_tokens: Sequence[int] = NUM_TOKENS,
    num_threads: int = 1,
    num_used: int = NUM_USED,
    num_streams: int = 1,
) -> Outcome:
    """Run the child, which computes everything twice."""
    page = stacks.path.with_name("counters")
    page.unlink(missing_ok=True)
    settings = child_settings(
        native, native.plugins[3], [stacks.path], ram_bytes=ram_bytes, counters=page
    )
    task = {
        "plugin": str(native.plugins[3]),
        "file": str(stacks.path),
        "layers": [[asdict(stack) for stack in layer] for layer in stacks.layers],
        "num_tokens": num_tokens,
        "num_threads": num_threads,
        "num_used": num_used,
        "num_streams": num_streams,
    }
    child = subprocess.run(
        [sys.executable, "-m", "store.product_child", json.dumps(task)],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "GGML_NO_BACKTRACE": "1",
            **settings.environment,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    compared: dict[str, int] = defaultdict(int)
    differing: dict[str, list[str]] = defaultdict(list)
    # An engine that aborts writes there, too.
    lines = [line for line in child.stdout.splitlines() if line.startswith("{")]
    for line in map(json.loads, lines):
        compared[line["type"]] += line["compared"]
        differing[line["type"]] += line["differing"]
    counters = read_counters(page) if page.exists() else None
    due = MATRICES_PER_LAYER * len(num_tokens) * num_streams
    return Outcome(due, compared, differing, counters, child.returncode, child.stderr)


def least_budget(native: NativeStore, stacks: Stacks) -> int:
    """Named by the store when it is given too little."""
    refused = compare(native, stacks, 1)
    assert refused.status != 0
    return int(refused.said.partition("the least is ")[2].split()[0])


@pytest.fixture(scope="module", params=BUDGETS)
def outcome(request: pytest.FixtureRequest, native: NativeStore, stacks: Stacks) -> Outcome:
    """All types, at one budget."""
    if request.param == LEAST:
        ram_bytes = least_budget(native, stacks)
    else:
        ram_bytes = int(request.param * stacks.num_bytes)
    found = compare(native, stacks, ram_bytes)
    counters = found.counters
    assert counters is not None, found.said
    assert counters.resident_bytes <= ram_bytes
    # The comparison means something only if the store did what the budget makes it do.
    assert (counters.read_bytes > 0) == (ram_bytes > 0), found.said
    assert (counters.num_evictions > 0) == (0 < ram_bytes < stacks.num_bytes), found.said
    return found


@pytest.mark.parametrize("kind", SYNTHETIC_TYPES)
def test_every_type_and_batch_size_gives_the_bits_of_the_stock_backend(
    outcome: Outcome, kind: str
) -> None:
    assert outcome.compared.get(kind) == LAYERS_PER_TYPE * outcome.due, outcome.said
    assert outcome.differing[kind] == []
    assert outcome.status == 0, outcome.said


def test_two_threads_give_the_bits_of_two_threads(native: NativeStore, stacks: Stacks) -> None:
    # Few batches: threads without a processor of their own wait long for each other.
    found = compare(native, stacks, stacks.num_bytes // 3, num_tokens=[2, 17, 200], num_threads=2)
    assert found.status == 0, found.said
    assert sum(found.compared.values()) == found.due * len(stacks.layers)
    assert all(differing == [] for differing in found.differing.values())


@pytest.mark.parametrize("share", [0.3, EVERYTHING])
def test_backends_at_the_same_time_do_not_disturb_each_other(
    native: NativeStore, stacks: Stacks, share: float
) -> None:
    ram_bytes = int(share * stacks.num_bytes)
    found = compare(native, stacks, ram_bytes, num_tokens=[1, 4, 40], num_streams=3)
    assert found.status == 0, found.said
    assert sum(found.compared.values()) == found.due * len(stacks.layers)
    assert all(differing == [] for differing in found.differing.values())


@pytest.mark.parametrize("share", [0.2, EVERYTHING])
def test_a_big_batch_over_a_thousand_experts(
    native: NativeStore, tmp_path: Path, share: float
) -> None:
    path = tmp_path / "experts.bin"
    # 4 KiB each: the rows of a big batch times the matrices are too many for one operation.
    wide = Stacks(path, write_stacks(path, [Layer("F32", (64, 16), (64, 16), 1024)]))
    found = compare(
        native,
        wide,
        int(share * wide.num_bytes),
        num_tokens=[1, 100, 512],
        num_used=8,
    )
    assert found.status == 0, found.said
    assert found.compared == {"F32": found.due}
    assert found.differing == {"F32": []}
