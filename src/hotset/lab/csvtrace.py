"""Routing recorded by other programs, as CSV.

The form is that of the public recordings of BigMoeOnEdge (docs/bench-data there): lines that begin
with `#` tell the model's shape,

    # model=NAME arch=ARCH n_layer=48 n_expert=128 n_expert_used=6
    # layer=0 expert_bytes=3059712 dense_bytes=11953152

then come a line of column names and one row per expert that was chosen. The columns turn, phase
(1: decode), step, layer and expert are read, wherever they stand; a step is a token.
"""

from __future__ import annotations

import csv
import re
from array import array
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.store.trace import MOST_DECODE_TOKENS, TraceBatch, TraceLayer

__all__ = ["is_csv_trace", "read_csv_trace"]

_MARK = b"# route_trace"
_COLUMNS = ("turn", "phase", "step", "layer", "expert")
_FACT = re.compile(r"(\w+)=(\S+)")
_MOST_EXPERTS = 1 << 16  # as in a trace of the engine
_MOST_BYTES = 1 << 63


def is_csv_trace(path: Path) -> bool:
    """Does the file begin like one? False also where it cannot be read."""
    try:
        with path.open("rb") as file:
            return file.read(len(_MARK)) == _MARK
    except OSError:
        return False


def read_csv_trace(path: Path) -> Iterator[TraceLayer | TraceBatch]:
    """The records that the engine's own trace would hold.

    Decoded tokens are batches of one. The tokens of a prompt were recorded one by one; they become
    one batch, which is how hotset's engines compute a prompt.

    Raises:
        FileProblem: cannot be read, or a line makes no sense; with its number.
    """
    try:
        with path.open(encoding="utf-8", newline="") as file:
            yield from _Reader(path).records(file)
    except UnicodeDecodeError as error:
        raise FileProblem(f"routing trace {path}: no text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise FileProblem(f"routing trace {path}: cannot be read: {error.strerror}") from error


@dataclass(frozen=True, slots=True)
class _Row:
    line: int
    turn: int
    phase: int
    step: int
    layer: int
    expert: int


@dataclass(slots=True)
class _Reader:
    path: Path
    num_experts: int = 0
    expert_bytes: dict[int, int] = field(default_factory=dict)

    def records(self, file: Iterable[str]) -> Iterator[TraceLayer | TraceBatch]:
        rows = self._rows(file)
        first = next(rows, None)  # the shape has been read once a row comes
        if not 0 < self.num_experts <= _MOST_EXPERTS:
            raise self._wrong(1, f"n_expert is {self.num_experts}, not 1 to {_MOST_EXPERTS}")
        # A layer is told by the line of its size.
        numbers = {layer: number for number, layer in enumerate(sorted(self.expert_bytes))}
        for layer, number in numbers.items():
            yield TraceLayer(number, f"blk.{layer}", self.num_experts, self.expert_bytes[layer])
        if first is not None:
            yield from self._batches([first, *rows], numbers)

    def _batches(self, rows: list[_Row], numbers: dict[int, int]) -> Iterator[TraceBatch]:
        for number, (key, group) in enumerate(groupby(rows, _batch_of)):
            is_prompt = key[1] != 1
            tokens: dict[int, dict[int, list[int]]] = {}
            for row in group:
                if row.layer not in numbers or not 0 <= row.expert < self.num_experts:
                    raise self._wrong(
                        row.line, f"layer {row.layer}, expert {row.expert}: there is none"
                    )
                tokens.setdefault(row.layer, {}).setdefault(row.step, []).append(row.expert)
            for layer, steps in sorted(tokens.items()):
                num_used = max(map(len, steps.values()))
                whole = [experts for experts in steps.values() if len(experts) == num_used]
                yield TraceBatch(
                    batch=number,
                    layer=numbers[layer],
                    batch_tokens=max(len(steps), MOST_DECODE_TOKENS + 1) if is_prompt else 1,
                    num_tokens=len(whole),
                    num_used=num_used,
                    experts=array("H", [expert for experts in whole for expert in experts]),
                )

    def _rows(self, file: Iterable[str]) -> Iterator[_Row]:
        places: list[int] = []
        for number, line in enumerate(file, 1):
            if line.startswith("#"):
                self._take_facts(number, line)
                continue
            cells = next(csv.reader([line]), [])
            if not places:
                missing = [name for name in _COLUMNS if name not in cells]
                if missing:
                    raise self._wrong(number, f"no column '{missing[0]}'")
                places = [cells.index(name) for name in _COLUMNS]
            elif cells:
                yield _Row(number, *self._numbers(number, cells, places))

    def _take_facts(self, number: int, line: str) -> None:
        facts = dict(_FACT.findall(line))
        try:
            if "layer" in facts:
                size = int(facts["expert_bytes"])
                if not 0 < size < _MOST_BYTES:
                    raise ValueError
                self.expert_bytes[int(facts["layer"])] = size
            elif "n_expert" in facts:
                self.num_experts = int(facts["n_expert"])
        except (KeyError, ValueError):
            raise self._wrong(number, "the model's shape makes no sense") from None

    def _numbers(self, number: int, cells: list[str], places: list[int]) -> list[int]:
        try:
            return [int(cells[place]) for place in places]
        except (IndexError, ValueError):
            raise self._wrong(number, "a cell is missing or no number") from None

    def _wrong(self, line: int, what: str) -> FileProblem:
        return FileProblem(f"routing trace {self.path}: line {line:,}: {what}")


def _batch_of(row: _Row) -> tuple[int, int, int]:
    """What tells one batch from the next: all of a turn's prompt is one."""
    return (row.turn, row.phase, row.step if row.phase == 1 else 0)
