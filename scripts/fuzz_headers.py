#!/usr/bin/env python3
"""Read many damaged GGUF headers: `scripts/fuzz_headers.py [COUNT [SEED]]`.

Every header must be read or refused with a FileProblem, in less than 64 MiB. The run stops at
the first that is not, and names the number that makes it again.
"""

from __future__ import annotations

import random
import re
import resource
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests"))

from ggufmutate import SEEDS, assert_sound, damage  # noqa: E402 - the path is set just above

from hotset.core.errors import FileProblem  # noqa: E402
from hotset.core.units import MIB  # noqa: E402
from hotset.gguf.reader import read_header  # noqa: E402

LIMIT_BYTES = 64 * MIB
_VARYING = re.compile(r"'.*?'|\d[\d,]*(\.\d+)?( x [\d x]+)?|\(.*?\)")


def main() -> int:
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    kinds: Counter[str] = Counter()
    peak_bytes = slowest_s = 0.0
    peak_number = slowest_number = first
    rss_before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    started = time.monotonic()
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.gguf"
        for number in range(first, first + count):
            rng = random.Random(number)
            seed = rng.choice(SEEDS)
            damage(seed, rng).write(path)
            want = [str(key) for key, _ in seed.keys] if rng.random() < 0.5 else []
            tracemalloc.reset_peak()
            held_bytes = tracemalloc.get_traced_memory()[0]
            begun = time.perf_counter()
            try:
                kind = _outcome(path, want)
            except Exception:
                sys.stderr.write(f"number {number}: neither read nor refused\n")
                raise
            took_s = time.perf_counter() - begun
            used_bytes = tracemalloc.get_traced_memory()[1] - held_bytes
            kinds[kind] += 1
            if used_bytes > peak_bytes:
                peak_bytes, peak_number = used_bytes, number
            if took_s > slowest_s:
                slowest_s, slowest_number = took_s, number
            if used_bytes >= LIMIT_BYTES:
                sys.stderr.write(f"number {number}: {used_bytes / MIB:.1f} MiB\n")
                return 1
            done = number - first + 1
            if done % 10_000 == 0:
                print(f"{done:,} of {count:,} in {time.monotonic() - started:.0f} s", flush=True)
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for kind, n in kinds.most_common():
        print(f"{n:>8,}  {kind}")
    print(f"{count:,} headers, {len(kinds)} outcomes, no crash, no other exception")
    print(f"most memory: {peak_bytes / MIB:.1f} MiB (number {peak_number})")
    print(f"process: {rss_before_kib / 1024:.0f} MiB before, {rss_kib / 1024:.0f} MiB at most")
    print(f"slowest: {slowest_s:.2f} s with memory tracing (number {slowest_number})")
    return 0


def _outcome(path: Path, want: list[str]) -> str:
    """`read`, or the message without what varies."""
    try:
        header = read_header(path, want=want)
    except FileProblem as problem:
        return _VARYING.sub("_", problem.message.removeprefix(f"{path.name}: "))
    assert_sound(header)
    return "read"


if __name__ == "__main__":
    sys.exit(main())
