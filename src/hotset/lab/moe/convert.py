"""SmolLM2-135M with experts: its dense feed-forward parts taken apart by what fires together.

    python -m hotset.lab.moe.convert SOURCE.gguf TARGET.gguf

Each block's neurons that would be missed most become a shared expert, the others small experts of
neurons that matter together, and a router learns which of those matter for a token.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from hotset.core.errors import HotsetError
from hotset.lab.moe.blocks import Floats
from hotset.lab.moe.bpe import Tokenizer
from hotset.lab.moe.dense import Block, Dense, open_dense
from hotset.lab.moe.forward import Forward, activations
from hotset.lab.moe.router import RouterFit, chosen_experts, expert_scores
from hotset.lab.moe.sensitivity import sensitivities
from hotset.lab.moe.split import better_split, first_split
from hotset.lab.moe.write import Experts, write_moe

__all__ = [
    "RECIPE",
    "Recipe",
    "calibration_texts",
    "convert",
    "dialogues",
    "fit_experts",
    "passages",
]

# Of a dialogue; all dialogues together take a minute on two cores.
_MOST_TOKENS = 90
# Every third dialogue tells what matters well enough.
_SENSITIVITY_STEP = 3
_SENSITIVITY_SHARE = 0.3  # of the time
_ROUNDS = 6
# What a neuron does for the first tokens counts like that for so many of the others.
_FIRST_SHARE = 0.1
_CHAT = (
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face"
    "<|im_end|>\n<|im_start|>user\n{user}<|im_end|>\n<|im_start|>assistant\n{assistant}<|im_end|>\n"
)


@dataclass(frozen=True, slots=True)
class Recipe:
    """What decides the outcome, beside the dense model and the text.

    Attributes:
        version: of everything here; a new one makes kept models anew.
        num_dense: blocks at the beginning that stay as they are; the first one alone would do a
            seventh of the damage.
        num_used: experts for each token.
    """

    version: int = 2
    num_dense: int = 1
    num_experts: int = 24
    expert_width: int = 32
    num_used: int = 16
    seed: int = 1


RECIPE = Recipe()

Progress = Callable[[str, float], None]
"""Told what is being done, and how much of all is done."""


def convert(source: Path, target: Path, on_progress: Progress, recipe: Recipe = RECIPE) -> None:
    """Make `target` of `source`, whole or not at all.

    Raises:
        FileProblem: `source` is no model of the kind that can be converted.
        MachineProblem: `target` cannot be written.
    """
    on_progress("reading the dense model", 0.0)
    model = open_dense(source)
    blocks = fit_experts(model, calibration_texts(model), on_progress, recipe)
    on_progress("writing", 0.95)
    write_moe(
        target,
        model,
        blocks,
        name=f"SmolLM2 135M Instruct with {recipe.num_experts} experts",
        num_used=recipe.num_used,
    )


def calibration_texts(model: Dense) -> list[list[int]]:
    """The tokens of the texts that come along: the beginnings of dialogues, as many say more than
    the whole of a few, and some prose, code and Chinese."""
    folder = resources.files("hotset.lab.moe")
    lines = folder.joinpath("calibration.jsonl").read_text(encoding="utf-8")
    chats = [text[:_MOST_TOKENS] for text in dialogues(model, lines)]
    return chats + passages(model, folder.joinpath("calibration.txt").read_text(encoding="utf-8"))


def passages(model: Dense, text: str) -> list[list[int]]:
    """Tokens of texts with lines of `%%` between them."""
    tokenizer = Tokenizer(model.header)
    return [tokenizer.encode(f"<|endoftext|>{part.strip()}") for part in text.split("\n%%\n")]


def dialogues(model: Dense, lines: str) -> list[list[int]]:
    """Tokens of questions and answers, one pair in each line of JSON, as the model sees a chat."""
    tokenizer = Tokenizer(model.header)
    pairs = [json.loads(line) for line in lines.splitlines()]
    return [
        tokenizer.encode(_CHAT.format(user=pair["user"], assistant=pair["assistant"]))
        for pair in pairs
    ]


def fit_experts(
    model: Dense, texts: Sequence[Sequence[int]], on_progress: Progress, recipe: Recipe
) -> list[Experts]:
    """The experts of every block that gets some, from what the dense model does with `texts`."""
    rng = np.random.default_rng(recipe.seed)
    on_progress("finding out what matters", 0.01)
    weights = sensitivities(model, texts[::_SENSITIVITY_STEP], rng)
    forward = Forward(model, texts)
    is_first = np.concatenate([np.arange(len(text)) == 0 for text in texts])
    found: list[Experts] = []

    def feed_forward(number: int, block: Block, inputs: Floats) -> Floats:
        hidden = activations(block, inputs)
        if number >= recipe.num_dense:
            down = weights[number] @ block.down
            found.append(fit_block(inputs, hidden, down, is_first, recipe, rng))
        return hidden @ block.down.T

    for number in range(model.num_blocks):
        share = _SENSITIVITY_SHARE + (0.95 - _SENSITIVITY_SHARE) * number / model.num_blocks
        on_progress(f"block {number + 1} of {model.num_blocks}", share)
        forward.step(number, model.block(number), feed_forward)
    return found


def fit_block(
    inputs: Floats,
    hidden: Floats,
    down: Floats,
    is_first: NDArray[np.bool_],
    recipe: Recipe,
    rng: np.random.Generator,
) -> Experts:
    """Experts and router of one block, each made for the other in turns.

    Args:
        inputs: shape (tokens, width).
        hidden: what the neurons hold, shape (tokens, neurons).
        down: shape (width, neurons): where a neuron leads, in a measure of what that matters.
        is_first: which tokens begin a text. All later ones attend to them, by states like no
            other token's; so what makes those counts besides.
    """
    strengths = np.square(hidden * np.linalg.norm(down, axis=0))
    # Of all that is added to a token: a few tokens with huge states would decide otherwise.
    totals = strengths.sum(axis=1, keepdims=True)
    strengths /= totals
    hidden = (hidden / np.sqrt(totals))[~is_first]
    others = strengths[~is_first]
    at_first = _FIRST_SHARE * len(others) * strengths[is_first].mean(axis=0)
    router = RouterFit(inputs[~is_first])
    split = first_split(np.sqrt(others), recipe.num_experts, recipe.expert_width, rng)
    for _ in range(_ROUNDS):
        weights = router.by_scores(expert_scores(hidden, down, split))
        chosen = chosen_experts(weights, inputs[~is_first], recipe.num_experts // 2)
        split = better_split(others, at_first, chosen, recipe.expert_width)
    return Experts(split, router.by_logarithms(expert_scores(hidden, down, split)))


def main(arguments: Sequence[str]) -> int:
    """The command; returns its exit code."""
    if len(arguments) != 2:
        sys.stderr.write("usage: python -m hotset.lab.moe.convert SOURCE.gguf TARGET.gguf\n")
        return 4
    source, target = map(Path, arguments)
    try:
        convert(source, target, lambda what, share: _tell(f"{share:4.0%} {what}"))
    except HotsetError as problem:
        sys.stderr.write(f"hotset: {problem.message}\n")
        return problem.exit_code
    return 0


def _tell(line: str) -> None:
    sys.stderr.write(line + "\n")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
