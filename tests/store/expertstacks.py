"""A file of expert matrices and no model around them, for products alone."""

from __future__ import annotations

import random
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.synth.blocks import Tile

ALIGNMENT_BYTES = 32  # of tensors in a model file
TILE_BLOCKS = 2048


@dataclass(frozen=True, slots=True)
class Stack:
    """`num_experts` matrices of one tensor, each `num_rows` rows of `row_elements`, at `offset`."""

    name: str
    type: str
    row_elements: int
    num_rows: int
    num_experts: int
    offset: int

    @property
    def num_bytes(self) -> int:
        return (
            tensor_type_named(self.type).row_bytes(self.row_elements)
            * self.num_rows
            * self.num_experts
        )


@dataclass(frozen=True, slots=True)
class Layer:
    """The shapes of one layer: elements per row and rows of gate and up, and of down."""

    type: str
    gate: tuple[int, int]
    down: tuple[int, int]
    num_experts: int


def write_stacks(path: Path, layers: Iterable[Layer]) -> list[list[Stack]]:
    """Write gate, up and down of each layer one after the other, as a model file has them."""
    written: list[list[Stack]] = []
    with path.open("wb") as file:
        for number, layer in enumerate(layers):
            kind = tensor_type_named(layer.type)
            tile = Tile(kind, 0.05, layer.type, TILE_BLOCKS)
            shapes = {"gate": layer.gate, "up": layer.gate, "down": layer.down}
            stacks = []
            for part, (row_elements, num_rows) in shapes.items():
                # Never at a page's beginning, as in most files.
                offset = file.tell() + ALIGNMENT_BYTES
                file.seek(offset)
                name = f"blk.{number}.ffn_{part}_exps.weight"
                stack = Stack(name, layer.type, row_elements, num_rows, layer.num_experts, offset)
                num_blocks = stack.num_bytes // kind.block_bytes
                file.writelines(tile.stream(num_blocks, random.Random(name)))
                file.seek(-file.tell() % ALIGNMENT_BYTES, 1)
                stacks.append(stack)
            written.append(stacks)
        file.truncate()
    return written
