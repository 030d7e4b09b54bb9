"""The converted model in the real engine: what it answers, and what the simulator says of it."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

from enginekit import smollm2
from hotset.core.errors import EngineProblem
from hotset.gguf.reader import read_header
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.lab.moe.bpe import Tokenizer
from hotset.lab.moe.convert import RECIPE
from hotset.lab.moe.dense import open_dense
from hotset.lab.moe.forward import Forward
from hotset.lab.moe.quality import MixedFeedForward
from hotset.lab.moe.split import Split
from hotset.lab.moe.write import Experts
from hotset.lab.policies import POLICIES
from hotset.lab.routing import load_routing
from hotset.lab.simulate import simulate
from hotset.store import NativeStore, child_settings, find_native, read_counters
from store.asking import ask
from store.engines import Embedded, running

Ids = NDArray[np.intp]

TEXT = "The sky is blue because the molecules of the air scatter sunlight. At sunset"


@pytest.fixture(name="native")
def _native() -> NativeStore:
    try:
        return find_native()
    except EngineProblem as problem:
        pytest.skip(problem.message)


def test_the_file_says_what_was_made(smollm2_moe: Path) -> None:
    spec = model_spec(open_model(smollm2_moe))
    assert spec.experts is not None
    assert (spec.experts.count, spec.experts.used) == (RECIPE.num_experts, RECIPE.num_used)
    assert len(spec.experts.layers) == 30 - RECIPE.num_dense
    dense, ours = open_dense(smollm2()), read_header(smollm2_moe)
    # Gate and up rows went over as they are: each block's are the dense model's in another order.
    data = np.memmap(smollm2_moe, dtype=np.uint8, mode="r")
    tensors = {tensor.name: tensor for tensor in ours.tensors}
    for part in ("gate", "up"):
        rows = dense.raw(f"blk.7.ffn_{part}.weight")
        taken = [
            data[tensor.offset_bytes : tensor.end_bytes].reshape(-1, rows.shape[1])
            for tensor in (tensors[f"blk.7.ffn_{part}_{kind}.weight"] for kind in ("exps", "shexp"))
        ]
        assert sorted(row.tobytes() for row in np.concatenate(taken)) == sorted(
            row.tobytes() for row in rows
        )


def with_all_used(path: Path, target: Path) -> Path:
    """The same model, all of whose experts are used: one number of the header is another."""
    key = b"deepseek.expert_used_count"
    content = bytearray(path.read_bytes())
    at = content.index(key) + len(key) + 4  # behind the value's type
    assert int.from_bytes(content[at : at + 4], "little") == RECIPE.num_used
    content[at : at + 4] = RECIPE.num_experts.to_bytes(4, "little")
    target.write_bytes(content)
    return target


def test_with_all_experts_used_it_is_the_dense_model(smollm2_moe: Path, tmp_path: Path) -> None:
    everything = with_all_used(smollm2_moe, tmp_path / "all.gguf")
    answers = []
    for model in (smollm2(), everything):
        with running(Embedded(), model) as engine:
            answers.append(ask(engine.address, TEXT, 12))
    assert answers[0].tokens == answers[1].tokens
    # What differs is the rounding of one matrix per block.
    differences = np.abs(np.array(answers[0].logprobs) - np.array(answers[1].logprobs))
    assert differences.mean() < 0.1


def experts_of(path: Path) -> list[Experts]:
    """The experts as the file has them; a neuron is told by its row of the gate matrix."""
    dense, header = open_dense(smollm2()), read_header(path)
    data = np.memmap(path, dtype=np.uint8, mode="r")
    tensors = {tensor.name: tensor for tensor in header.tensors}

    def raw(name: str) -> np.ndarray:
        tensor = tensors[name]
        return data[tensor.offset_bytes : tensor.end_bytes]

    found = []
    for number in range(RECIPE.num_dense, 30):
        rows = dense.raw(f"blk.{number}.ffn_gate.weight")
        places = {row.tobytes(): neuron for neuron, row in enumerate(rows)}

        def neurons(part: str, places: dict[bytes, int] = places, number: int = number) -> Ids:
            stored = raw(f"blk.{number}.ffn_gate_{part}.weight").reshape(len(places) // 2, -1)
            return np.array([places[row.tobytes()] for row in stored])

        router = raw(f"blk.{number}.ffn_gate_inp.weight").view("<f4").reshape(-1, dense.width)
        routed = neurons("exps").reshape(RECIPE.num_experts, -1)
        found.append(Experts(Split(neurons("shexp"), routed), np.array(router)))
    return found


def test_the_engine_computes_what_the_quality_is_measured_on(smollm2_moe: Path) -> None:
    dense, blocks = open_dense(smollm2()), experts_of(smollm2_moe)
    with running(Embedded(), smollm2_moe) as engine:
        answer = ask(engine.address, TEXT, 12)
    tokens = [*Tokenizer(dense.header).encode(TEXT), *answer.tokens]

    def logprobs(num_used: int) -> np.ndarray:
        """Of the answer's tokens, by our own computation."""
        forward = Forward(dense, [tokens])
        mixed = MixedFeedForward(blocks, RECIPE.num_dense, num_used)
        for number in range(dense.num_blocks):
            forward.step(number, dense.block(number), mixed)
        rows = forward.outputs()[-1 - len(answer.tokens) : -1]
        logits = (rows @ dense.embedding.T).astype(np.float64)
        logits -= np.log(np.exp(logits).sum(axis=1, keepdims=True))
        return logits[np.arange(len(rows)), answer.tokens]

    theirs = np.array(answer.logprobs)[:, 0]  # the likeliest is what it took
    ours, fewer = (np.abs(logprobs(num_used) - theirs).mean() for num_used in (RECIPE.num_used, 8))
    # The engine rounds what goes into a product, and so takes another expert here and there.
    assert ours < 0.2
    assert ours < fewer / 2


@pytest.mark.parametrize("share", [0.3, 0.6])
def test_what_is_simulated_is_what_the_engine_counts(
    smollm2_moe: Path, tmp_path: Path, native: NativeStore, share: float
) -> None:
    plugin = Embedded().check().plugin
    assert plugin is not None
    sizes, num_units = slot_layout(smollm2_moe)
    counters, trace = tmp_path / "counters", tmp_path / "trace"
    settings = child_settings(
        native,
        plugin,
        [smollm2_moe],
        ram_bytes=int(share * num_units * sizes),
        counters=counters,
        trace=trace,
    )
    with running(Embedded(), smollm2_moe, settings) as engine:
        for text in (TEXT, "Bread is made of flour, water and salt."):
            ask(engine.address, text, 24)
    counted = read_counters(counters)
    num_slots = counted.budget_bytes // sizes
    outcome = simulate(load_routing(trace), POLICIES["quota"], share=num_slots / num_units).both()
    simulated = (outcome.num_requests, outcome.num_hits, outcome.num_evictions)
    assert simulated == (counted.num_requests, counted.num_hits, counted.num_evictions)
    assert 0.1 < outcome.hit_rate < 0.98


def slot_layout(model: Path) -> tuple[int, int]:
    """Bytes of a slot (native/store/arena.cpp: a block more for each matrix), and all units."""
    tensors = [tensor for tensor in read_header(model).tensors if "_exps." in tensor.name]
    per_unit = [tensor.n_bytes // RECIPE.num_experts for tensor in tensors[:3]]
    slot_bytes = sum(-(-(4095 + n_bytes) // 4096) * 4096 for n_bytes in per_unit)
    return slot_bytes, len(tensors) // 3 * RECIPE.num_experts
