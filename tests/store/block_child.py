"""Whole layers of experts, by the stock CPU backend and by the store, byte for byte.

Argument: a JSON object with `plugin`, `file`, `layers` (gate, up and down, as `Stack` has them; of
the second layer gate and up are one matrix), `num_tokens` (one batch each), `num_used` and
`num_threads`. One JSON line per case on stdout: the case, and the results that differ.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.store.embedded import load_into_embedded
from store.enginecalls import DEVICE_CPU, TYPE_F32, TYPE_I32
from store.expertstacks import Stack
from store.product_child import Arena, Side, engine, route

MEMORY_BYTES = 1 << 22
ALIGNMENT_BYTES = 64
NUM_EXPERTS = 10
ROW_ELEMENTS, WIDE = 512, 512  # of a token; of the results of gate and up
GATE, UP, DOWN = range(3)


@dataclass(slots=True)
class Memory:
    """What one side computes in: tensors lie where they are put, over each other if need be."""

    arena: int
    room: NDArray[np.uint8] = field(init=False)
    buffer: int = 0
    end: int = 0

    def __post_init__(self) -> None:
        room = np.empty(MEMORY_BYTES + ALIGNMENT_BYTES, np.uint8)
        begin = -room.ctypes.data % ALIGNMENT_BYTES
        self.room = room[begin : begin + MEMORY_BYTES]
        # What is not computed must not look like the other side's.
        self.room.view(np.float32)[:] = np.nan
        self.buffer = engine.ggml_backend_cpu_buffer_from_ptr(self.room.ctypes.data, MEMORY_BYTES)

    def put(self, tensor: int, over: int | None = None) -> int:
        """Where the tensor begins: behind all others, or where `over` says."""
        at = self.end if over is None else over
        address = self.room.ctypes.data + at
        assert engine.ggml_backend_tensor_alloc(self.buffer, tensor, address) == 0
        self.end = max(self.end, at + (engine.ggml_nbytes(tensor) + 63) // 64 * 64)
        assert self.end <= MEMORY_BYTES
        return at

    def given(self, kind: int, values: NDArray[np.float32] | NDArray[np.int32]) -> int:
        shape = (*reversed(values.shape), 1, 1)[:3]
        tensor = engine.ggml_new_tensor_3d(self.arena, kind, *shape)
        self.put(tensor)
        engine.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)
        assert isinstance(tensor, int)
        return tensor

    def values(self, tensor: int) -> bytes:
        data = np.empty(engine.ggml_nbytes(tensor), np.uint8)
        engine.ggml_backend_tensor_get(tensor, data.ctypes.data, 0, data.nbytes)
        return data.tobytes()


@dataclass(frozen=True, slots=True)
class Case:
    """One layer for one batch on one side: nodes in order, and those still needed afterwards."""

    nodes: Sequence[int]
    needed: Sequence[int]
    views: Sequence[int] = ()


@dataclass(frozen=True, slots=True)
class Given:
    """A batch, and the weights as one side has them."""

    memory: Memory
    weights: Sequence[int]
    rows: int
    ids: int
    num_slots: int
    num_tokens: int

    def product(self, part: int, rows: int) -> int:
        node = engine.ggml_mul_mat_id(self.memory.arena, self.weights[part], rows, self.ids)
        assert isinstance(node, int)
        return node

    def four(self) -> tuple[int, int, int, int]:
        """Up, gate, what follows from them, and down; nowhere yet."""
        up, gate = self.product(UP, self.rows), self.product(GATE, self.rows)
        active = engine.ggml_swiglu_split(self.memory.arena, gate, up)
        return up, gate, active, self.product(DOWN, active)


def plain(given: Given) -> Case:
    """Every result has memory of its own, and any may be wanted by others."""
    nodes = given.four()
    for node in nodes:
        given.memory.put(node)
    return Case(nodes, nodes)


def crowded(given: Given) -> Case:
    """Memory is used again when nobody needs what is in it: down lies across up and gate."""
    up, gate, active, down = given.four()
    given.memory.put(active)
    at = given.memory.put(up)
    given.memory.put(gate)
    given.memory.put(down, over=at + ALIGNMENT_BYTES)
    return Case((up, gate, active, down), (active, down))


def over_its_rows(given: Given) -> Case:
    """Down lies where the rows were that up and gate read."""
    nodes = given.four()
    for node in nodes[:-1]:
        given.memory.put(node)
    given.memory.put(nodes[-1], over=0)
    return Case(nodes, nodes)


def biased(given: Given) -> Case:
    """With a bias for each expert, added in place, as an engine's allocator does it."""
    memory = given.memory
    rng = np.random.default_rng(5)
    nodes = []
    for part in (UP, GATE):
        bias = rng.standard_normal((NUM_EXPERTS, WIDE), dtype=np.float32)
        product = given.product(part, given.rows)
        added = engine.ggml_add_id(memory.arena, product, memory.given(TYPE_F32, bias), given.ids)
        memory.put(added, over=memory.put(product))
        nodes += [product, added]
    active = engine.ggml_swiglu_oai(memory.arena, nodes[3], nodes[1], 1.702, 7.0)
    nodes += [active, given.product(DOWN, active)]
    for node in nodes[-2:]:
        memory.put(node)
    return Case(nodes, (nodes[1], *nodes[3:]))


def joined(given: Given) -> Case:
    """Gate and up are one matrix; their halves of each result are views."""
    memory = given.memory
    both = given.product(GATE, given.rows)
    memory.put(both)
    shape = (WIDE // 2, given.num_slots, given.num_tokens, 4 * WIDE, 4 * WIDE * given.num_slots)
    halves = [engine.ggml_view_3d(memory.arena, both, *shape, at) for at in (0, 2 * WIDE)]
    active = engine.ggml_swiglu_split(memory.arena, *halves)
    nodes = (both, *halves, active, given.product(DOWN, active))
    for node in nodes[-2:]:
        memory.put(node)
    return Case(nodes, (both, *nodes[-2:]), halves)


CASES: dict[Callable[[Given], Case], int] = {
    plain: 0, crowded: 0, over_its_rows: 0, biased: 0, joined: 1,
}  # fmt: skip


def outcome(
    build: Callable[[Given], Case], side: Side, weights: Sequence[int], num_used: int, tokens: int
) -> list[bytes]:
    """The results that are still needed when all is done."""
    rows = np.random.default_rng(tokens).standard_normal((tokens, 1, ROW_ELEMENTS), np.float32)
    with Arena(64, num_graphs=1) as arena:
        memory = Memory(arena)
        given_rows = memory.given(TYPE_F32, rows)
        ids = np.ascontiguousarray(route(tokens, NUM_EXPERTS, num_used)[:, :num_used])
        given_ids = memory.given(TYPE_I32, ids)
        case = build(Given(memory, weights, given_rows, given_ids, num_used, tokens))
        graph = engine.ggml_new_graph(arena)
        for node in case.nodes:
            # All of it is taken, so that an engine leaves a layer whole.
            assert node in case.views or engine.ggml_backend_dev_supports_op(side.device, node)
            engine.ggml_build_forward_expand(graph, node)
        assert engine.ggml_backend_graph_compute(side.backends[0], graph) == 0
        found = [memory.values(node) for node in case.needed]
        engine.ggml_backend_buffer_free(memory.buffer)
    return found


def refuse_foreign(stored: Side) -> None:
    """Operations on other rows than our products' belong to whoever made those."""
    with Arena(8) as arena:
        rows = engine.ggml_new_tensor_3d(arena, TYPE_F32, WIDE, 4, 1)
        ids = engine.ggml_new_tensor_3d(arena, TYPE_I32, 4, 1, 1)
        bias = engine.ggml_new_tensor_3d(arena, TYPE_F32, WIDE, NUM_EXPERTS, 1)
        for node in (
            engine.ggml_swiglu_split(arena, rows, rows),
            engine.ggml_add_id(arena, rows, bias, ids),
        ):
            assert not engine.ggml_backend_dev_supports_op(stored.device, node)


def main() -> None:
    task = json.loads(sys.argv[1])
    layers = [[Stack(**stack) for stack in layer] for layer in task["layers"]]
    load_into_embedded(Path(task["plugin"]))
    file = np.memmap(task["file"], dtype=np.uint8, mode="r")
    sides = [
        Side(engine.ggml_backend_dev_by_type(DEVICE_CPU), file, 1),
        Side(engine.ggml_backend_dev_by_name(b"HOTSET"), file, 1),
    ]
    with Arena(2 * sum(map(len, layers))) as arena:
        placed = [[[side.place(arena, s) for s in layer] for layer in layers] for side in sides]
        for side in sides:
            side.open(task["num_threads"])
        refuse_foreign(sides[1])
        for build, layer in CASES.items():
            for tokens in task["num_tokens"]:
                stock, stored = (
                    outcome(build, side, weights[layer], task["num_used"], tokens)
                    for side, weights in zip(sides, placed, strict=True)
                )
                assert all(np.isfinite(np.frombuffer(data, np.float32)).all() for data in stock)
                differing = [i for i, pair in enumerate(zip(stock, stored, strict=True))
                             if pair[0] != pair[1]]  # fmt: skip
                line = {"case": build.__name__, "tokens": tokens, "differing": differing}
                sys.stdout.write(json.dumps(line) + "\n")
        for side in reversed(sides):
            side.close()


if __name__ == "__main__":
    main()
