"""Products of expert matrices, by the stock CPU backend and by the store, byte for byte.

Argument: a JSON object with `plugin`, `file`, `layers` (gate, up and down, as `Stack` has them),
`num_tokens` (one batch each), `num_used`, `num_threads` and `num_streams` (backends at the same
time). One JSON line per layer on stdout: how many products were compared, and which differed.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.core.tensortypes import tensor_type_named
from hotset.store.embedded import load_into_embedded
from store.enginecalls import DEVICE_CPU, TYPE_F32, TYPE_I32, InitParams, engine_calls
from store.expertstacks import Stack

engine = engine_calls()


class Arena:
    """A ggml context: the descriptions of tensors and graphs."""

    def __init__(self, num_tensors: int, num_graphs: int = 0) -> None:
        num_bytes = num_tensors * engine.ggml_tensor_overhead()
        num_bytes += num_graphs * engine.ggml_graph_overhead()
        self.handle = engine.ggml_init(InitParams(num_bytes, None, True))

    def __enter__(self) -> int:
        assert isinstance(self.handle, int)
        return self.handle

    def __exit__(self, *_: object) -> None:
        engine.ggml_free(self.handle)


class Side:
    """A device, the weights mapped to it, and one backend per stream."""

    def __init__(self, device: int, file: NDArray[np.uint8], num_streams: int) -> None:
        self.device = device
        self.file = file
        self.buffer = engine.ggml_backend_dev_buffer_from_host_ptr(
            device, file.ctypes.data, file.size, file.size
        )
        assert self.buffer
        self.num_streams = num_streams
        self.backends: list[int] = []

    def place(self, arena: int, stack: Stack) -> int:
        """The tensor of `stack`, where it is mapped."""
        kind = tensor_type_named(stack.type).number
        tensor = engine.ggml_new_tensor_3d(
            arena, kind, stack.row_elements, stack.num_rows, stack.num_experts
        )
        engine.ggml_set_name(tensor, stack.name.encode())
        address = self.file.ctypes.data + stack.offset
        assert engine.ggml_backend_tensor_alloc(self.buffer, tensor, address) == 0
        assert isinstance(tensor, int)
        return tensor

    def open(self, num_threads: int) -> None:
        """Make the backends: after the weights, as an engine does."""
        self.backends = [
            engine.ggml_backend_dev_init(self.device, None) for _ in range(self.num_streams)
        ]
        assert all(self.backends), "the backend does not start"
        registration = engine.ggml_backend_dev_backend_reg(self.device)
        address = engine.ggml_backend_reg_get_proc_address(
            registration, b"ggml_backend_set_n_threads"
        )
        function = ctypes.CFUNCTYPE(None, ctypes.c_void_p, ctypes.c_int)(address)
        for backend in self.backends:
            function(backend, num_threads)

    def close(self) -> None:
        for backend in self.backends:
            engine.ggml_backend_free(backend)
        engine.ggml_backend_buffer_free(self.buffer)


@dataclass(frozen=True, slots=True)
class Weights:
    """The matrices of a layer, as each side has them."""

    stacks: Sequence[Stack]
    stock: Sequence[int]
    stored: Sequence[int]


def route(num_tokens: int, num_experts: int, num_used: int) -> NDArray[np.int32]:
    """All experts of each token in order of preference; some are preferred by most tokens."""
    rng = np.random.default_rng(num_tokens)
    liking = 2 * rng.standard_normal(num_experts) + rng.standard_normal((num_tokens, num_experts))
    order = np.argsort(-liking, axis=1)
    assert len(np.unique(order[:, :num_used])) >= min(num_used, num_experts)
    return np.ascontiguousarray(order, dtype=np.int32)


def set_tensor(tensor: int, values: NDArray[Any]) -> None:
    engine.ggml_backend_tensor_set(tensor, values.ctypes.data, 0, values.nbytes)


class Batch:
    """One batch through some matrices of a layer that share rows: gate and up, or down."""

    def __init__(self, stock: Side, stored: Side, stream: int) -> None:
        self.stock = stock
        self.stored = stored
        self.stream = stream

    def differing(
        self, weights: Weights, parts: Sequence[int], rows: NDArray[np.float32], num_used: int
    ) -> list[str]:
        """Multiply `rows`, (tokens, 1 or slots, elements), on both sides; names what differs."""
        num_tokens, num_slots, row_elements = rows.shape
        num_experts = weights.stacks[0].num_experts
        cpu = self.stock.backends[self.stream]
        with Arena(2 * len(parts) + 4, num_graphs=2) as arena:
            given = engine.ggml_new_tensor_3d(arena, TYPE_F32, row_elements, num_slots, num_tokens)
            # As in an engine, the chosen experts are the beginning of a longer row.
            order = engine.ggml_new_tensor_3d(arena, TYPE_I32, num_experts, num_tokens, 1)
            ids = engine.ggml_view_2d(arena, order, num_used, num_tokens, 4 * num_experts, 0)
            sides = ((self.stock, weights.stock), (self.stored, weights.stored))
            products = [
                [engine.ggml_mul_mat_id(arena, tensors[part], given, ids) for part in parts]
                for _, tensors in sides
            ]
            buffer = engine.ggml_backend_alloc_ctx_tensors(arena, cpu)
            set_tensor(given, rows)
            set_tensor(order, route(num_tokens, num_experts, num_used))
            for (side, _), nodes in zip(sides, products, strict=True):
                self._compute(arena, side, nodes, weights, parts, num_used * num_tokens)
            names = []
            for part, *pair in zip(parts, *products, strict=True):
                stack = weights.stacks[part]
                expected, found = (
                    self._values(product, num_used * num_tokens * stack.num_rows)
                    for product in pair
                )
                assert np.isfinite(expected).all()
                assert expected.any()
                if expected.tobytes() != found.tobytes():
                    at = np.flatnonzero(expected.view(np.uint32) != found.view(np.uint32))
                    names.append(
                        f"{stack.name} {num_tokens} tokens: {at.size} of {expected.size} values,"
                        f" first {at[0]}: {expected[at[0]]!r} became {found[at[0]]!r}"
                    )
            engine.ggml_backend_buffer_free(buffer)
        return names

    def _compute(
        self,
        arena: int,
        side: Side,
        nodes: Sequence[int],
        weights: Weights,
        parts: Sequence[int],
        num_pairs: int,
    ) -> None:
        graph = engine.ggml_new_graph(arena)
        for part, node in zip(parts, nodes, strict=True):
            assert engine.ggml_backend_dev_supports_op(side.device, node)
            # What is not computed must not look like the other side's.
            set_tensor(node, np.full(num_pairs * weights.stacks[part].num_rows, np.nan, np.float32))
            engine.ggml_build_forward_expand(graph, node)
        status = engine.ggml_backend_graph_compute(side.backends[self.stream], graph)
        assert status == 0, f"the graph failed with {status}"

    def _values(self, tensor: int, count: int) -> NDArray[np.float32]:
        values = np.empty(count, dtype=np.float32)
        engine.ggml_backend_tensor_get(tensor, values.ctypes.data, 0, values.nbytes)
        return values


class Comparison:
    """All batches of the task through each layer, on both sides."""

    def __init__(self, task: dict[str, Any], stock: Side, stored: Side) -> None:
        self.task = task
        self.stock = stock
        self.stored = stored

    def run(self, weights: Sequence[Weights]) -> None:
        with ThreadPoolExecutor(self.task["num_streams"]) as pool:
            # Streams begin at different layers.
            streams = [
                pool.submit(self._stream, stream, [*weights[stream:], *weights[:stream]])
                for stream in range(self.task["num_streams"])
            ]
            for stream in streams:
                stream.result()

    def _stream(self, stream: int, weights: Sequence[Weights]) -> None:
        for layer in weights:
            sys.stdout.write(json.dumps(self._layer(stream, layer)) + "\n")
            sys.stdout.flush()

    def _layer(self, stream: int, layer: Weights) -> dict[str, object]:
        batch = Batch(self.stock, self.stored, stream)
        num_used = self.task["num_used"]
        differing: list[str] = []
        compared = 0
        for num_tokens in self.task["num_tokens"]:
            rng = np.random.default_rng(num_tokens)
            for parts, num_slots in (((0, 1), 1), ((2,), num_used)):
                shape = (num_tokens, num_slots, layer.stacks[parts[0]].row_elements)
                rows = rng.standard_normal(shape, dtype=np.float32)
                differing += batch.differing(layer, parts, rows, num_used)
                compared += len(parts)
        return {"type": layer.stacks[0].type, "compared": compared, "differing": differing}


def main() -> None:
    task = json.loads(sys.argv[1])
    layers = [[Stack(**stack) for stack in layer] for layer in task["layers"]]
    load_into_embedded(Path(task["plugin"]))
    file = np.memmap(task["file"], dtype=np.uint8, mode="r")
    stock = Side(engine.ggml_backend_dev_by_type(DEVICE_CPU), file, task["num_streams"])
    stored = Side(engine.ggml_backend_dev_by_name(b"HOTSET"), file, task["num_streams"])
    with Arena(2 * sum(map(len, layers))) as arena:
        weights = [
            Weights(
                layer,
                [stock.place(arena, stack) for stack in layer],
                [stored.place(arena, stack) for stack in layer],
            )
            for layer in layers
        ]
        for side in (stock, stored):
            side.open(task["num_threads"])
        Comparison(task, stock, stored).run(weights)
        for side in (stored, stock):
            side.close()


if __name__ == "__main__":
    main()
