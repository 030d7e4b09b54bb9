"""The parts of the conversion, each against something that knows better."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import gguf
from enginekit import smollm2
from hotset.core.errors import FileProblem, MachineProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.lab.moe.attention import Attention
from hotset.lab.moe.blocks import Floats, as_floats, as_q8_0
from hotset.lab.moe.bpe import Tokenizer
from hotset.lab.moe.cache import first_usable, kept_file
from hotset.lab.moe.dense import Block, open_dense
from hotset.lab.moe.forward import Forward, dense_feed_forward
from hotset.lab.moe.router import RouterFit, chosen_experts, expert_scores
from hotset.lab.moe.sensitivity import sensitivities
from hotset.lab.moe.split import better_split, first_split


@pytest.mark.parametrize("name", ["F32", "F16", "Q8_0", "Q4_0", "Q4_1"])
def test_blocks_become_the_numbers_that_the_reference_reads(name: str) -> None:
    values = np.random.default_rng(1).standard_normal((6, 64)).astype(np.float32)
    kind = gguf.GGMLQuantizationType[name]
    raw = gguf.quants.quantize(values, kind)
    ours = as_floats(tensor_type_named(name), raw.view(np.uint8).reshape(-1), 64)
    np.testing.assert_array_equal(ours, gguf.quants.dequantize(raw, kind))


def test_numbers_become_the_q8_0_blocks_that_the_reference_writes() -> None:
    values = np.random.default_rng(2).standard_normal((6, 64)).astype(np.float32)
    values[2] = 0
    expected = gguf.quants.quantize(values, gguf.GGMLQuantizationType.Q8_0)
    ours = as_floats(tensor_type_named("Q8_0"), as_q8_0(values), 64)
    theirs = gguf.quants.dequantize(expected, gguf.GGMLQuantizationType.Q8_0)
    # A value just between two steps may go either way.
    steps = np.abs(values).max(axis=1, keepdims=True) / 127
    assert (np.abs(ours - theirs) <= 1.01 * steps).all()
    assert (ours == theirs).mean() > 0.99


def test_a_type_that_is_not_known_is_refused() -> None:
    with pytest.raises(FileProblem, match="Q6_K"):
        as_floats(tensor_type_named("Q6_K"), np.zeros(210, dtype=np.uint8), 256)


def test_the_tokenizer_cuts_text_as_the_reference_does() -> None:
    """Tokens of these texts as the engine's /tokenize gave them for this model."""
    tokenizer = Tokenizer(open_dense(smollm2()).header)
    assert tokenizer.encode("The sky is blue because the molecules of the air") == [
        504, 6376, 314, 4461, 975, 260, 6756, 282, 260, 1512,
    ]  # fmt: skip
    assert tokenizer.encode("<|im_start|>") == [1]
    # Whatever is cut, nothing is lost.
    letters = {token: number for number, token in enumerate(tokens_of_model())}
    text = "def f(x):\n    return x ** 2  # naïve, 3 times\n\n你好!"
    joined = "".join(list(letters)[token] for token in tokenizer.encode(text))
    byte_of = {letter: byte for byte, letter in enumerate(byte_letters())}
    assert bytes(byte_of[letter] for letter in joined).decode() == text


def tokens_of_model() -> list[str]:
    tokens = open_dense(smollm2()).header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    return [str(token) for token in tokens]


def byte_letters() -> list[str]:
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def planted(rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Strengths of 4 groups of 8 neurons that fire together and of 16 that always fire; and which
    group fires at each token."""
    active = rng.integers(0, 4, 400)
    routed = (np.arange(32)[None, :] // 8 == active[:, None]) * (1 + rng.random((400, 32)))
    always = 2 + rng.random((400, 16))
    return np.concatenate([routed + 0.01, always], axis=1).astype(np.float32), active


def test_neurons_that_fire_together_become_an_expert_and_the_strong_ones_are_shared() -> None:
    strengths, _ = planted(np.random.default_rng(3))
    split = first_split(strengths, 4, 8, np.random.default_rng(4))
    assert split.shared.tolist() == list(range(32, 48))
    groups = sorted(tuple(neurons) for neurons in split.experts.tolist())
    assert groups == [tuple(range(first, first + 8)) for first in range(0, 32, 8)]


def test_a_neuron_goes_to_the_expert_that_is_chosen_when_it_fires() -> None:
    strengths, active = planted(np.random.default_rng(3))
    chosen = np.eye(4, dtype=np.float32)[active]
    nothing = np.zeros(48, dtype=np.float32)
    split = better_split(strengths, nothing, chosen, 8)
    assert split.shared.tolist() == list(range(32, 48))
    assert [sorted(neurons) for neurons in split.experts.tolist()] == [
        list(range(first, first + 8)) for first in range(0, 32, 8)
    ]
    # What makes the first tokens is shared however rarely it fires, and another one is not.
    at_first = nothing.copy()
    at_first[5] = 1e6
    assert 5 in better_split(strengths, at_first, chosen, 8).shared


def test_every_neuron_is_in_exactly_one_place_whatever_they_do() -> None:
    rng = np.random.default_rng(5)
    strengths = rng.random((50, 96)).astype(np.float32)
    router, states = (rng.random((n, 6)).astype(np.float32) for n in (8, 50))
    chosen = chosen_experts(router, states, 3)
    assert chosen.sum(axis=1).tolist() == [3] * 50
    for split in (
        first_split(strengths, 8, 8, rng),
        better_split(strengths, strengths[0], chosen, 8),
    ):
        assert sorted([*split.shared, *split.experts.reshape(-1)]) == list(range(96))
        assert split.experts.shape == (8, 8)


def test_the_router_finds_the_expert_that_the_state_tells() -> None:
    rng = np.random.default_rng(6)
    strengths, active = planted(rng)
    split = first_split(strengths, 4, 8, rng)
    down = rng.standard_normal((12, 48)).astype(np.float32)
    scores = expert_scores(strengths, down, split)
    of_expert = strengths[:, split.experts[1]] @ down[:, split.experts[1]].T
    np.testing.assert_allclose(scores[:, 1], np.square(of_expert).sum(axis=1), rtol=1e-3)
    states = np.eye(4, dtype=np.float32)[active] @ rng.standard_normal((4, 12)).astype(np.float32)
    states += 0.05 * rng.standard_normal(states.shape).astype(np.float32)
    fit = RouterFit(states)
    for router in (fit.by_scores(scores), fit.by_logarithms(scores)):
        logits = states @ router.T
        assert (logits.argmax(axis=1) == scores.argmax(axis=1)).mean() > 0.95
        # Chosen experts all count as one.
        weights = np.exp(logits) / np.exp(logits).sum(axis=1, keepdims=True) * 4
        assert np.abs(weights - 1).max() < 0.02


# ---- Which errors matter.


def test_the_gradient_of_attention_is_what_small_steps_show() -> None:
    model = open_dense(smollm2())
    block, rng = model.block(3), np.random.default_rng(7)
    attention = Attention(model, [[1] * 5, [1] * 3])
    inputs, direction, wanted = rng.standard_normal((3, 8, model.width)).astype(np.float32)
    inputs *= np.float32(0.1)  # as large as normed states are, so that small steps are small
    step = np.float32(1e-3)

    def total(at: np.ndarray) -> float:
        return float((attention.output(block, at) * wanted).sum(dtype=np.float64))

    slope = (total(inputs + step * direction) - total(inputs - step * direction)) / (2 * step)
    gradient = (attention.gradient(block, inputs, wanted) * direction).sum()
    assert gradient == pytest.approx(slope, rel=0.01)


def test_errors_that_are_said_to_matter_change_what_comes_next() -> None:
    """An error of one length, in the direction that matters most and in one that matters least."""
    model = open_dense(smollm2())
    tokenizer = Tokenizer(model.header)
    text = tokenizer.encode("Ships carry most of the goods that are traded between countries.")
    root = sensitivities(model, [text], np.random.default_rng(8))[20]
    values, vectors = np.linalg.eigh(root)
    assert values[-1] > 5 * values[0] > 0

    def chances(error: np.ndarray) -> np.ndarray:
        def with_error(number: int, block: Block, inputs: Floats) -> Floats:
            added = dense_feed_forward(number, block, inputs)
            return added + error if number == 20 else added

        forward = Forward(model, [text])
        for number in range(model.num_blocks):
            forward.step(number, model.block(number), with_error)
        logits = forward.outputs() @ model.embedding.T
        shares = np.exp(logits - logits.max(axis=1, keepdims=True)).astype(np.float64)
        shares /= shares.sum(axis=1, keepdims=True)
        return np.asarray(shares)

    dense, most, least = (chances(vectors[:, n] * size) for n, size in ((0, 0), (-1, 2), (0, 2)))
    costs = [(dense * np.log(dense / other)).sum(axis=1).mean() for other in (most, least)]
    assert costs[0] > 3 * costs[1] > 0


# ---- The folder that keeps what was made.


class Maker:
    def __init__(self) -> None:
        self.count = 0

    def __call__(self, path: Path) -> None:
        self.count += 1
        path.write_bytes(b"made" * 100)


def test_a_kept_file_is_made_once_and_again_only_for_a_reason(tmp_path: Path) -> None:
    make = Maker()
    path = kept_file(tmp_path, "model.gguf", "a", make)
    assert kept_file(tmp_path, "model.gguf", "a", make) == path
    assert make.count == 1
    path.write_bytes(path.read_bytes()[:-1])  # damaged
    kept_file(tmp_path, "model.gguf", "a", make)
    assert make.count == 2
    kept_file(tmp_path, "model.gguf", "b", make)  # made by another recipe
    assert make.count == 3
    (tmp_path / "model.gguf.json").write_text("[]")
    kept_file(tmp_path, "model.gguf", "b", make)
    path.unlink()
    kept_file(tmp_path, "model.gguf", "b", make)
    assert make.count == 5


def test_a_maker_that_fails_leaves_nothing_that_looks_made(tmp_path: Path) -> None:
    def fail(path: Path) -> None:
        path.write_bytes(b"half")
        raise MachineProblem("disk full")

    with pytest.raises(MachineProblem):
        kept_file(tmp_path, "model.gguf", "a", fail)
    make = Maker()
    kept_file(tmp_path, "model.gguf", "a", make)
    assert make.count == 1


_KILLED = """
import os, signal, sys
from pathlib import Path
from hotset.lab.moe.cache import kept_file

def make(path):
    path.with_name(f".{path.name}.{os.getpid()}.part").write_bytes(b"half")
    os.kill(os.getpid(), signal.SIGKILL)

kept_file(Path(sys.argv[1]), "model.gguf", "a", make)
"""


def test_a_kill_while_making_holds_up_nobody_and_its_leavings_go(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _KILLED, str(tmp_path)]
    assert subprocess.run(command, check=False).returncode == -signal.SIGKILL
    assert list(tmp_path.glob(".*.part"))
    kept_file(tmp_path, "model.gguf", "a", Maker())
    assert not list(tmp_path.glob(".*.part"))
    assert json.loads((tmp_path / "model.gguf.json").read_text())["key"] == "a"


def test_what_has_no_room_is_not_begun_and_what_is_there_needs_none(tmp_path: Path) -> None:
    too_large = 1 << 60
    with pytest.raises(
        MachineProblem, match=r"model\.gguf: takes 1,073,741,824\.0 GiB, .* are free"
    ):
        kept_file(tmp_path, "model.gguf", "a", Maker(), too_large)
    kept_file(tmp_path, "model.gguf", "a", Maker())
    assert kept_file(tmp_path, "model.gguf", "a", Maker(), too_large).exists()


def test_the_first_folder_that_can_be_written_to_is_taken(tmp_path: Path) -> None:
    blocked = tmp_path / "file" / "below"
    blocked.parent.write_text("no folder")
    good = tmp_path / "good" / "deep"
    assert first_usable([blocked, good]) == good
    assert good.stat().st_mode & 0o777 == 0o700
    with pytest.raises(MachineProblem, match="XDG_CACHE_HOME"):
        first_usable([blocked])


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_somebody_else_is_not_trusted(tmp_path: Path) -> None:
    planted_by_another = tmp_path / "theirs"
    planted_by_another.mkdir(mode=0o777)
    os.chown(planted_by_another, 12345, 12345)
    assert first_usable([planted_by_another, tmp_path / "ours"]) == tmp_path / "ours"
