"""The same batches through llama_decode without and with the store; all logits, byte for byte.

Argument: a JSON object with `plugin`, `model`, `num_threads` and `contexts`, each with
`ubatch_tokens`, `prompts` (numbers of tokens) and `together` (numbers of sequences). One JSON line
on stdout: the batches and values compared, and the batches that differ.
"""

from __future__ import annotations

import ctypes
import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hotset.store.embedded import load_into_embedded
from store.enginecalls import context_params, engine_calls, model_params

engine = engine_calls()

LOAD_MODE_MMAP = 1  # enum llama_load_mode
BATCH_TOKENS = 512
MOST_SEQUENCES = 8
TOKENS_PER_SEQUENCE = 1024
NUM_SINGLE_TOKENS = 3


@dataclass(frozen=True, slots=True)
class Step:
    """One call of llama_decode: how many tokens each sequence adds."""

    name: str
    is_first: bool  # of a conversation: nothing is remembered
    added: Sequence[int]


def steps_of(context: dict[str, Any]) -> Iterator[Step]:
    """Prompts, each followed by single tokens; then several sequences in every batch."""
    ubatch = context["ubatch_tokens"]
    for num_tokens in context["prompts"]:
        yield Step(f"prompt of {num_tokens}, ubatch {ubatch}", True, [num_tokens])
        for number in range(NUM_SINGLE_TOKENS):
            yield Step(f"token {number} after {num_tokens}, ubatch {ubatch}", False, [1])
    for num_sequences in context["together"]:
        prompts = [3 + 7 * sequence for sequence in range(num_sequences)]
        yield Step(f"{num_sequences} prompts, ubatch {ubatch}", True, prompts)
        for number in range(NUM_SINGLE_TOKENS):
            name = f"token {number} of {num_sequences} sequences, ubatch {ubatch}"
            yield Step(name, False, [1] * num_sequences)


class Context:
    """A context of the engine; decodes steps and gives their logits."""

    def __init__(self, model: int, ubatch_tokens: int, num_threads: int) -> None:
        params = context_params(engine)
        params.n_ctx = MOST_SEQUENCES * TOKENS_PER_SEQUENCE
        params.n_batch = BATCH_TOKENS
        params.n_ubatch = ubatch_tokens
        params.n_seq_max = MOST_SEQUENCES
        params.n_outputs_max_per_seq = 0  # as many as in a batch
        params.n_threads = params.n_threads_batch = num_threads
        self.handle = engine.llama_init_from_model(model, params)
        assert self.handle, "the context is not made"
        found = (
            *(engine.llama_n_batch(self.handle), engine.llama_n_ubatch(self.handle)),
            *(engine.llama_n_seq_max(self.handle), engine.llama_n_threads(self.handle)),
            *(engine.llama_n_ctx(self.handle), engine.llama_n_threads_batch(self.handle)),
        )
        expected = (
            *(BATCH_TOKENS, ubatch_tokens, MOST_SEQUENCES, num_threads),
            *(MOST_SEQUENCES * TOKENS_PER_SEQUENCE, num_threads),
        )
        assert found == expected, f"llama_context_params has another layout: {found}"
        self.num_vocab: int = engine.llama_vocab_n_tokens(engine.llama_model_get_vocab(model))
        self.lengths = [0] * MOST_SEQUENCES

    def decode(self, step: Step) -> NDArray[np.float32]:
        """Logits of all tokens of the step, (tokens, vocabulary)."""
        if step.is_first:
            engine.llama_memory_clear(engine.llama_get_memory(self.handle), True)
            self.lengths = [0] * MOST_SEQUENCES
        num_tokens = sum(step.added)
        batch = engine.llama_batch_init(num_tokens, 0, 1)
        batch.n_tokens = num_tokens
        at = 0
        for sequence, num_added in enumerate(step.added):
            for _ in range(num_added):
                position = self.lengths[sequence]
                batch.token[at] = self._token(sequence, position)
                batch.pos[at] = position
                batch.n_seq_id[at] = 1
                batch.seq_id[at][0] = sequence
                batch.logits[at] = 1
                self.lengths[sequence] += 1
                at += 1
        status = engine.llama_decode(self.handle, batch)
        engine.llama_batch_free(batch)
        assert status == 0, f"{step.name}: llama_decode gave {status}"
        rows = []
        for token in range(num_tokens):
            row = (ctypes.c_float * self.num_vocab).from_address(
                engine.llama_get_logits_ith(self.handle, token)
            )
            rows.append(np.array(row, dtype=np.float32))
        return np.stack(rows)

    def _token(self, sequence: int, position: int) -> int:
        """Any token, the same every time; no two sequences are alike."""
        return (7919 * position + 104729 * sequence + position * position) % self.num_vocab

    def close(self) -> None:
        engine.llama_free(self.handle)


def logits(task: dict[str, Any]) -> dict[str, NDArray[np.float32]]:
    """Load the model, decode all steps of all contexts."""
    params = model_params(engine)
    params.use_extra_bufts = False  # no repacked weights: they have other bits
    params.load_mode = LOAD_MODE_MMAP
    model = engine.llama_model_load_from_file(task["model"].encode(), params)
    assert model, "the model does not load"
    found = {}
    for wanted in task["contexts"]:
        context = Context(model, wanted["ubatch_tokens"], task["num_threads"])
        for step in steps_of(wanted):
            found[step.name] = context.decode(step)
        context.close()
    engine.llama_model_free(model)
    return found


def difference(name: str, expected: NDArray[np.float32], found: NDArray[np.float32]) -> str:
    """One line, or nothing if both are the same bits."""
    assert np.isfinite(expected).all(), name
    assert len(np.unique(expected)) > 1, name
    if expected.tobytes() == found.tobytes():
        return ""
    rows = np.flatnonzero((expected.view(np.uint32) != found.view(np.uint32)).any(axis=1))
    most = float(np.nanmax(np.abs(expected - found)))
    return f"{name}: {rows.size} of {len(expected)} tokens, the first {rows[0]}, by up to {most}"


def main() -> None:
    task = json.loads(sys.argv[1])
    engine.llama_backend_init()
    stock = logits(task)
    load_into_embedded(Path(task["plugin"]))
    stored = logits(task)
    differences = [difference(name, stock[name], stored[name]) for name in stock]
    result = {
        "batches": len(stock),
        "values": sum(values.size for values in stored.values()),
        "differing": [line for line in differences if line],
    }
    sys.stdout.write(json.dumps(result) + "\n")


if __name__ == "__main__":
    main()
