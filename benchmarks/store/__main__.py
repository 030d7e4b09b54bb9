"""`python -m benchmarks.store`: measure, and say what was measured."""

from __future__ import annotations

import argparse
import os
import platform
import signal
import sys
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import FrameType

import psutil
from benchmarks.store import pagecache
from benchmarks.store.engine import running
from benchmarks.store.limits import memory_group, remove_stale
from benchmarks.store.models import DIMS, MIXES, QUICK_DIMS, BenchModel, few_experts, prepare
from benchmarks.store.plot import as_svg
from benchmarks.store.results import ModelResults, Round
from benchmarks.store.routing import measure_routing
from benchmarks.store.table import as_json, as_table
from benchmarks.store.variants import FEW, Cell, cell_of_limit, cell_of_share, in_turn
from benchmarks.store.workload import Effort, decode_only, measure

from hotset.core.errors import ConfigProblem, HotsetError
from hotset.core.units import MIB
from hotset.engine.embedded import EmbeddedEngine
from hotset.gguf.synth import Dims, Locality

__all__ = ["cache_folder", "end_by_signal", "main"]

_QUICK_RESERVE_MIB = 100
_QUICK_EFFORT = Effort(tokens=24, seconds=2.0, prefills=(512,))


@dataclass(frozen=True, slots=True)
class _Setup:
    """What the options come to, the same for every model."""

    folder: Path
    dims: Dims
    effort: Effort
    rounds: int
    shares: tuple[int, ...]
    limits_mib: tuple[int, ...]
    reserve_bytes: int
    threads: int
    readers: int | None
    with_repacked: bool

    def cells(self, model: BenchModel) -> list[Cell]:
        """Limits first: they are what must be shown."""
        sizes = (model.other_bytes, self.reserve_bytes)
        cells = [cell_of_limit(mib, *sizes) for mib in self.limits_mib]
        for cell in cells:
            if cell.store_bytes <= 0:
                raise ConfigProblem(
                    f"limit {cell.name}: what is not an expert and the reserve take more; "
                    "choose a larger limit"
                )
        return cells + [cell_of_share(p, model.expert_bytes, *sizes) for p in self.shares]


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the benchmark; returns the exit code."""
    options = _parser().parse_args(arguments)
    signal.signal(signal.SIGTERM, end_by_signal)  # so that memory groups are removed then, too
    try:
        return _run(options, _setup(options))
    except HotsetError as problem:
        sys.stderr.write(f"benchmark: {problem.message}\n")
        return problem.exit_code
    except KeyboardInterrupt:
        return 130


def end_by_signal(number: int, _: FrameType | None) -> None:
    """A signal's handler: leave by an exception, so that memory groups are removed."""
    sys.exit(128 + number)


def _run(options: argparse.Namespace, setup: _Setup) -> int:
    for name in remove_stale():
        _say(f"removed {name}, left by a benchmark that was killed")
    with memory_group(None):
        pass  # refuse now, and not after a model has been written
    if options.routing:
        return _show_routing(options, setup)
    finished: list[ModelResults] = []
    for mix in options.mix:
        for locality in options.locality:
            results = _measure_model(setup, mix, locality, finished, options.json)
            finished.append(results)
            print(as_table(results), end="\n\n", flush=True)
            _save(finished, options.json)
            if options.plot:
                options.plot.write_text(as_svg(finished), encoding="utf-8")
    return 0


def _show_routing(options: argparse.Namespace, setup: _Setup) -> int:
    print("routing: hit rate at 40 % while decoding; experts per layer of a 32-token prompt")
    for mix in options.mix:
        for locality in options.locality:
            model = prepare(setup.folder, mix, locality, setup.dims)
            routing = measure_routing(model, threads=setup.threads)
            print(
                f"{mix:7} {locality:8} {routing.hit_rate:.3f}"
                f" {routing.prompt_experts:6.1f} of {setup.dims.n_experts}",
                flush=True,
            )
    return 0


def _measure_model(
    setup: _Setup, mix: str, locality: Locality, finished: Sequence[ModelResults], out: Path | None
) -> ModelResults:
    _say(f"{mix}, {locality}: model")
    model = prepare(setup.folder, mix, locality, setup.dims)
    cells = setup.cells(model)
    variants = in_turn(cells, with_repacked=setup.with_repacked)
    results = ModelResults(model, tuple(cells), tuple(variants), ())
    with few_experts(setup.folder, model, setup.dims) as sibling:
        for number in range(setup.rounds):
            seed = f"{mix}/{locality}/{number}"
            measured = {}
            disk = pagecache.read_rate(model.path, model.matrices, seed)
            for variant in variants:
                subject, run = (sibling, decode_only) if variant == FEW else (model, measure)
                with running(
                    subject, variant, threads=setup.threads, readers=setup.readers
                ) as engine:
                    one = run(engine, setup.effort, model.n_vocab, seed)
                measured[variant.key] = one
                _say(
                    f"{mix}, {locality}, round {number + 1} of {setup.rounds}: {variant.label}: "
                    f"decode {one.decode:.2f} over {one.decode_tokens} tokens"
                )
            results = replace(results, rounds=(*results.rounds, Round(disk, measured)))
            _save([*finished, results], out)
    return results


def _save(all_results: Sequence[ModelResults], path: Path | None) -> None:
    if path:
        path.write_text(as_json(_machine(), all_results), encoding="utf-8")


def _machine() -> dict[str, object]:
    return {
        "engine": EmbeddedEngine().build,
        "cpus": os.cpu_count(),
        "ram_bytes": psutil.virtual_memory().total,
        "system": f"{platform.system()} {platform.release()}",
        "load_average": os.getloadavg()[0],
    }


def _say(text: str) -> None:
    sys.stderr.write(f"{text}\n")
    sys.stderr.flush()


def _setup(options: argparse.Namespace) -> _Setup:
    # Seconds of a decode phase decide nothing but how many tokens the slow variants get.
    effort = Effort(options.tokens, options.seconds, tuple(options.prefill))
    return _Setup(
        folder=options.folder,
        dims=QUICK_DIMS if options.quick else DIMS,
        effort=_QUICK_EFFORT if options.quick else effort,
        rounds=1 if options.quick else options.rounds,
        shares=(40, 110) if options.quick else tuple(options.share),
        limits_mib=() if options.quick else tuple(options.limit),
        reserve_bytes=(_QUICK_RESERVE_MIB if options.quick else options.reserve) * MIB,
        threads=options.threads,
        readers=options.readers,
        with_repacked=not options.no_repacked,
    )


def cache_folder() -> Path:
    """Where models are kept unless --folder says otherwise."""
    home = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    return home / "hotset" / "benchmarks"


def _parser() -> argparse.ArgumentParser:
    effort = Effort()
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.store",
        description="The expert store against the stock engine, in turn, under a memory limit. "
        "Without options: the 4.3 GB model in Q4_0, strong and uniform routing, 2500 MiB.",
    )
    parser.add_argument("--quick", action="store_true", help="a tiny model, to try the benchmark")
    parser.add_argument("--routing", action="store_true", help="only check the models' locality")
    parser.add_argument("--mix", nargs="+", choices=list(MIXES), default=["q4_0"])
    parser.add_argument(
        "--locality", nargs="+", type=Locality, choices=list(Locality),
        default=[Locality.STRONG, Locality.UNIFORM],
    )  # fmt: skip
    parser.add_argument(
        "--limit", nargs="*", type=int, default=[2500], metavar="MIB",
        help="for the whole process and its page cache (2500)",
    )  # fmt: skip
    parser.add_argument(
        "--share", nargs="*", type=int, default=[], metavar="PERCENT",
        help="memory for experts in percent of their bytes, such as 25 40 50 75 110",
    )  # fmt: skip
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--tokens", type=int, default=effort.tokens, help="of a decode phase")
    parser.add_argument("--seconds", type=float, default=effort.seconds, help="of a slow one")
    parser.add_argument("--prefill", nargs="+", type=int, default=list(effort.prefills))
    parser.add_argument(
        "--reserve", type=int, default=350, metavar="MIB",
        help="for the process beside experts and what is mapped (350)",
    )  # fmt: skip
    parser.add_argument("--threads", type=int, default=os.cpu_count() or 1)
    parser.add_argument("--readers", type=int, help="threads of the store that read")
    parser.add_argument("--no-repacked", action="store_true", help="leave that variant out")
    parser.add_argument("--folder", type=Path, default=cache_folder(), help="for the models")
    parser.add_argument("--json", type=Path, metavar="FILE", help="all measurements")
    parser.add_argument("--plot", type=Path, metavar="FILE", help="decode rates as SVG")
    return parser


if __name__ == "__main__":
    sys.exit(main())
