"""The simulator and the C++ store count the same: same trace, same policy, same memory."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.lab.policies import POLICIES
from hotset.lab.routing import routing_of
from hotset.lab.simulate import simulate
from hotset.store.trace import write_trace
from lab.routingkit import Record, skewed_records

NATIVE = Path(__file__).parents[2] / "native"
BUILD = Path(__file__).parents[2] / "build" / "replay"

DECODE = [1] * 150
# Equal layers; layers of two sizes with prompts between; steps of a few tokens, as drafts make
# them; prompts of more experts than memory may hold at once.
TRACES = {
    "equal": skewed_records([16] * 6, [900_000] * 6, used=3, batches=DECODE, seed=1),
    "two sizes": skewed_records(
        [24, 24, 40, 24, 40], [700, 700, 1300, 700, 1300], used=4,
        batches=[30, *DECODE[:60], 200, *DECODE[:60]], seed=2,
    ),
    "several tokens": skewed_records(
        [32] * 4, [50_000] * 4, used=2, batches=[5, 2, 1, 3] * 40, seed=3
    ),
    "large prompts": skewed_records(
        [64] * 3, [4096] * 3, used=6, batches=[40, *DECODE[:30], 17, 16, 33, *DECODE[:30]], seed=4
    ),
}  # fmt: skip


def tool(name: str) -> str:
    """A build tool of this environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


@pytest.fixture(name="replay", scope="module")
def _replay() -> Path:
    """The native program, built from the store's sources."""
    if shutil.which("c++") is None:
        pytest.skip("no C++ compiler")
    for command in (
        [
            tool("cmake"),
            *("-S", str(NATIVE), "-B", str(BUILD), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            *("-DCMAKE_BUILD_TYPE=Release", "-DHOTSET_TESTS=ON"),
        ],
        [tool("cmake"), "--build", str(BUILD), "--target", "replay"],
    ):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return BUILD / "replay"


@pytest.mark.parametrize("share", [0.07, 0.1, 0.2, 0.4, 1.0])
@pytest.mark.parametrize("policy", ["quota", "lru", "decayed"])
@pytest.mark.parametrize("name", TRACES)
def test_the_simulator_and_the_store_count_the_same(
    replay: Path, tmp_path: Path, name: str, policy: str, share: float
) -> None:
    records: list[Record] = TRACES[name]
    trace = tmp_path / "routing.trace"
    write_trace(trace, records)
    routing = routing_of(name, records)
    ram_bytes = int(share * sum(n.num_experts * (n.expert_bytes + 4096) for n in routing.layers))
    command = [str(replay), str(trace), policy, str(ram_bytes)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    counts = simulate(routing, POLICIES[policy], ram_bytes=ram_bytes).both()
    simulated = (counts.num_requests, counts.num_hits, counts.num_evictions, counts.num_disk)
    assert simulated == tuple(map(int, done.stdout.split()))
    assert counts.num_evictions > 0 or share == 1.0
