#!/usr/bin/env python3
"""Read many damaged GGUF headers: `.venv/bin/python scripts/fuzz_headers.py [COUNT [FIRST]]`.

Every header must be read or refused with a FileProblem, in less than 64 MiB. The run stops at
the first that is not;
`fuzz_headers.py 1 NUMBER` makes it again. A TMPDIR in memory makes it four times as fast.
"""

from __future__ import annotations

import importlib
import re
import resource
import sys
import tempfile
import time
import tracemalloc
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from hotset.core.errors import FileProblem
from hotset.core.units import MIB
from hotset.gguf.reader import read_header

LIMIT_BYTES = 64 * MIB
VARYING = re.compile(r"'.*?'(?=[ :;,])|\b[A-Z]+\d\w*|\d[\d,]*( x [\d x]+)?|\(.*?\)")


@dataclass
class Tally:
    """What came out, and the extremes with the numbers that gave them."""

    outcomes: Counter[str] = field(default_factory=Counter)
    peak: tuple[int, int] = (0, 0)
    slowest: tuple[float, int] = (0.0, 0)


def main() -> int:
    """Exit code 0 when every header was read or refused within the limit."""
    count = int(sys.argv[1]) if len(sys.argv) > 1 else 100_000
    first = int(sys.argv[2]) if len(sys.argv) > 2 else 0
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent / "tests"))
    damage = importlib.import_module("ggufmutate")
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    tally = Tally()
    started = time.monotonic()
    tracemalloc.start()
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder) / "damaged.gguf"
        for number in range(first, first + count):
            read_one(path, number, damage, tally)
            if tally.peak[0] >= LIMIT_BYTES:
                say(f"number {number}: {tally.peak[0] / MIB:.1f} MiB allocated")
                return 1
            done = number - first + 1
            if done % 10_000 == 0:
                say(f"{done:,} of {count:,} in {time.monotonic() - started:.0f} s")
    for outcome, n in tally.outcomes.most_common():
        say(f"{n:>8,}  {outcome}")
    after_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    say(f"{count:,} headers, {len(tally.outcomes)} outcomes, no crash, no other exception")
    say(f"most memory: {tally.peak[0] / MIB:.1f} MiB (number {tally.peak[1]})")
    say(f"process: {before_kib / 1024:.0f} MiB before, {after_kib / 1024:.0f} MiB at most")
    say(f"slowest: {tally.slowest[0]:.2f} s with memory tracing (number {tally.slowest[1]})")
    return 0


def read_one(path: Path, number: int, damage: Any, tally: Tally) -> None:
    """Make the damaged file `number`, read it, note what came out."""
    damaged, want = damage.damaged_file(number)
    damaged.write(path)
    tracemalloc.reset_peak()
    held_bytes = tracemalloc.get_traced_memory()[0]
    begun = time.perf_counter()
    try:
        header = read_header(path, want=want)
        outcome = "read"
    except FileProblem as problem:
        header = None
        outcome = VARYING.sub("_", problem.message.removeprefix(f"{path.name}: "))
    except BaseException:
        say(f"number {number}: neither read nor refused")
        raise
    took_s = time.perf_counter() - begun
    used_bytes = tracemalloc.get_traced_memory()[1] - held_bytes
    tally.peak = max(tally.peak, (used_bytes, number))
    tally.slowest = max(tally.slowest, (took_s, number))
    tally.outcomes[outcome] += 1
    if header is not None:
        damage.assert_sound(header)


def say(line: str) -> None:
    sys.stdout.write(line + "\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())
