"""The planner against the world: `speed` compares the speed model with published runs, `fuzz`
makes plans for random machines and models."""

from __future__ import annotations

import argparse
import sys

from benchmarks.planner.fuzz import print_report
from benchmarks.planner.speed import print_table


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("speed")
    fuzz = commands.add_parser("fuzz")
    fuzz.add_argument("--examples", type=int, default=10_000)
    fuzz.add_argument("--seed", type=int, default=0, help="of the first example")
    arguments = parser.parse_args()
    if arguments.command == "speed":
        print_table()
        return 0
    return 1 if print_report(arguments.examples, arguments.seed) else 0


if __name__ == "__main__":
    sys.exit(main())
