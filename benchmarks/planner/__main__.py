"""`python -m benchmarks.planner speed`: the speed model against published runs."""

from __future__ import annotations

import argparse

from benchmarks.planner.speed import print_table


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.planner", description=__doc__)
    parser.add_argument("what", choices=["speed"])
    parser.parse_args()
    print_table()


if __name__ == "__main__":
    main()
