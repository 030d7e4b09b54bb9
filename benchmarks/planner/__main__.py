"""The planner against the world: `speed` compares the speed model with published runs, `memory` the
memory model with the engine's own account, `drafting` the same where an MTP head drafts, `fuzz`
makes plans for random machines and models, `calibration` runs models here and plans them again."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from benchmarks.planner.calibration import print_calibration
from benchmarks.planner.drafting import print_drafting
from benchmarks.planner.fuzz import print_report
from benchmarks.planner.memorytable import print_comparison, print_stores
from benchmarks.planner.speed import print_table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("speed")
    commands.add_parser("drafting")
    memory = commands.add_parser("memory")
    memory.add_argument("--quick", action="store_true", help="a few starts of each kind")
    memory.add_argument("--write", action="store_true", help="into docs/memory.md")
    memory.add_argument("--store", action="store_true", help="only with the expert store")
    fuzz = commands.add_parser("fuzz")
    fuzz.add_argument("--examples", type=int, default=10_000)
    fuzz.add_argument("--seed", type=int, default=0, help="of the first example")
    calibration = commands.add_parser("calibration")
    calibration.add_argument("models", type=Path, nargs="+", help="GGUF files")
    calibration.add_argument("--runs", type=int, default=3, help="answers before the second plan")
    calibration.add_argument("--tokens", type=int, default=96, help="of each answer")
    arguments = parser.parse_args()
    if arguments.command == "calibration":
        print_calibration(arguments.models, num_runs=arguments.runs, num_tokens=arguments.tokens)
        return 0
    if arguments.command == "speed":
        print_table()
        return 0
    if arguments.command == "drafting":
        return print_drafting()
    if arguments.command == "memory" and arguments.store:
        return print_stores(is_quick=arguments.quick, is_written=arguments.write)
    if arguments.command == "memory":
        return print_comparison(is_quick=arguments.quick, is_written=arguments.write)
    return 1 if print_report(arguments.examples, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
