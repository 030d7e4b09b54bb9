"""`python -m benchmarks.store.soak`: does the store keep its budget and its answers for long?"""

from __future__ import annotations

import argparse
import json
import os
import signal
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

from benchmarks.store.__main__ import cache_folder, end_by_signal
from benchmarks.store.engine import Running, running
from benchmarks.store.limits import memory_group, remove_stale
from benchmarks.store.models import DIMS, MIXES, QUICK_DIMS, BenchModel, prepare
from benchmarks.store.soak.memory import Sampler
from benchmarks.store.soak.report import SoakResult, as_lines, broken_bounds
from benchmarks.store.soak.traffic import Traffic, reference_tokens
from benchmarks.store.variants import IN_RAM, Variant

from hotset.core.errors import ConfigProblem, HotsetError
from hotset.core.units import MIB
from hotset.gguf.synth import Locality

__all__ = ["main"]

_BOUNDS_BROKEN = 1
_COMPARE_EVERY_S = 60.0
_COMPARE_EVERY_QUICK_S = 10.0
# Above the budget, so that what goes over it is seen and not pushed out by the kernel.
_LIMIT_SHARE = 1.25


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the soak; returns the exit code: 1 where a bound was broken."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, end_by_signal)
    try:
        for name in remove_stale():
            _say(f"removed {name}, left by a benchmark that was killed")
        with memory_group(None):
            pass  # refuse now, and not after a model has been written
        result = _soak(options)
    except HotsetError as problem:
        _say(f"soak: {problem.message}")
        return problem.exit_code
    except KeyboardInterrupt:
        return 130
    if options.json:
        options.json.write_text(json.dumps(asdict(result), indent=1), encoding="utf-8")
    print("\n".join(as_lines(result)))
    broken = broken_bounds(result)
    for line in broken:
        print(f"BROKEN: {line}")
    return _BOUNDS_BROKEN if broken else 0


def _soak(options: argparse.Namespace) -> SoakResult:
    model = prepare(
        options.folder, options.mix, options.locality, QUICK_DIMS if options.quick else DIMS
    )
    budget_bytes, store_bytes = _budget(options, model)
    with running(model, IN_RAM, threads=options.threads, readers=None) as stock:
        expected = reference_tokens(stock, model.n_vocab)
    _say(f"the stock engine's answer to the fixed prompt: {len(expected)} tokens")
    variant = Variant(
        "soak", "hotset", limit_bytes=int(budget_bytes * _LIMIT_SHARE), store_bytes=store_bytes
    )
    with running(model, variant, threads=options.threads, readers=None) as engine:
        return _soaked(options, model, engine, expected, budget_bytes)


def _budget(options: argparse.Namespace, model: BenchModel) -> tuple[int, int]:
    """For the whole process, and of it for experts."""
    if options.quick:
        store_bytes = model.expert_bytes * 2 // 5
        return store_bytes + model.other_bytes + options.reserve * MIB, store_bytes
    budget_bytes = options.ram * MIB
    store_bytes = budget_bytes - model.other_bytes - options.reserve * MIB
    if store_bytes <= 0:
        raise ConfigProblem(
            f"--ram {options.ram}: what is not an expert and the reserve take more; give more"
        )
    return budget_bytes, store_bytes


def _soaked(
    options: argparse.Namespace,
    model: BenchModel,
    engine: Running,
    expected: list[int],
    budget_bytes: int,
) -> SoakResult:
    traffic = Traffic(engine, model.n_vocab, "soak")
    every_s = _COMPARE_EVERY_QUICK_S if options.quick else _COMPARE_EVERY_S
    begun = compared = time.monotonic()
    num_compared = num_changed = 0
    with Sampler(engine) as sampler:
        while time.monotonic() < begun + options.minutes * 60:
            traffic.episode()
            if time.monotonic() >= compared + every_s:
                num_compared += 1
                num_changed += reference_tokens(engine, model.n_vocab) != expected
                compared = time.monotonic()
                used = sampler.samples[-1].total_bytes / MIB
                _say(
                    f"{(compared - begun) / 60:.1f} min: {used:.0f} MiB,"
                    f" {traffic.num_requests.total()} requests,"
                    f" {num_changed} of {num_compared} fixed answers changed"
                )
    counters = engine.counters()
    return SoakResult(
        budget_bytes, counters.budget_bytes if counters else 0, engine.group.peak_bytes(),
        sampler.samples, dict(traffic.num_requests), traffic.errors, num_compared, num_changed,
    )  # fmt: skip


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store.soak",
        description="Mixed requests for a long time: is the budget kept, does memory grow, does "
        "any request fail, does a fixed answer change? Exit status 1 where one of them is so.",
    )
    parser.add_argument("--minutes", type=float, default=20.0)
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try the soak")
    parser.add_argument("--mix", choices=list(MIXES), default="q4_0")
    parser.add_argument(
        "--locality", type=Locality, choices=list(Locality), default=Locality.UNIFORM
    )
    parser.add_argument(
        "--ram", type=int, default=2500, metavar="MIB",
        help="budget of the whole process and its page cache (2500)",
    )  # fmt: skip
    parser.add_argument(
        "--reserve", type=int, default=350, metavar="MIB",
        help="of it, for the process beside experts and what is mapped (350)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="for the models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all samples")
    return parser


if __name__ == "__main__":
    sys.exit(main())
