"""The speed model before and after a model has run on this machine: `calibration`.

For each model, with an empty record: the first plan, some answers, the plan again, and a fresh
answer that neither plan has seen. Estimates are compared for the context that the answer was
written in. The record is one of its own; the user's is not touched.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotset.cli.launching import Launchable, launch, prepare
from hotset.cli.settings import settings_of
from hotset.core.plan import Wishes
from hotset.core.plan.pace import expected_decode, setup_of
from hotset.engine.client import ChatStream

__all__ = ["Outcome", "calibrate", "print_calibration"]

_QUESTION = "Tell a long story about a lighthouse and the people who kept its light."
_CONTEXT_TOKENS = 1024


@dataclass(frozen=True, slots=True)
class Outcome:
    """Decode of one model in tokens per second, at the depth of the fresh answer."""

    name: str
    n_bytes: int
    first_estimate: float
    second_estimate: float
    measured: float

    @property
    def first_error(self) -> float:
        return self.first_estimate / self.measured - 1

    @property
    def second_error(self) -> float:
        return self.second_estimate / self.measured - 1


def calibrate(model: Path, *, num_runs: int, num_tokens: int, engine: str = "embedded") -> Outcome:
    """Run `model` `num_runs` times, plan again, and run it once more."""
    first = _prepared(model, engine)
    for _ in range(num_runs):
        _answer(_prepared(model, engine), num_tokens)
    second = _prepared(model, engine)
    measured, depth = _answer(second, num_tokens)
    return Outcome(
        name=model.stem,
        n_bytes=first.spec.n_bytes,
        first_estimate=_estimate(first, depth),
        second_estimate=_estimate(second, depth),
        measured=measured,
    )


def _prepared(model: Path, engine: str) -> Launchable:
    return prepare(str(model), Wishes(context_tokens=_CONTEXT_TOKENS), engine)


def _estimate(ready: Launchable, depth_tokens: int) -> float:
    """What the plan says for this depth, corrected by what it knows of earlier answers."""
    if ready.basis is None:
        raise ValueError("a plan that nobody changed has a basis")
    machine = ready.basis.machine
    paces = machine.experience.own.get(setup_of(ready.spec, ready.plan))
    ratio = paces.decode.ratio if paces and paces.decode else 1.0
    return ratio * expected_decode(ready.spec, machine, ready.plan, depth_tokens)


def _answer(ready: Launchable, num_tokens: int) -> tuple[float, int]:
    """Tokens per second of one answer in an engine of its own, and its mean depth."""
    options = {"max_tokens": num_tokens, "seed": 1, "ignore_eos": True}
    with launch(ready, settings_of(ready), lambda _: None) as running:
        messages = [{"role": "user", "content": _QUESTION}]
        with ChatStream(running, messages, options) as stream:
            for _ in stream:
                pass
        times = stream.timings
    if times is None:
        raise ValueError("the engine gave no times")
    depth = times.prompt_tokens + times.cached_tokens + times.answer_tokens // 2
    return times.answer_per_s, depth


@contextmanager
def _own_record() -> Iterator[None]:
    """Within the block nothing that is known of this machine is used or changed, but for what
    `hotset doctor --measure` has measured."""
    before = os.environ.get("XDG_CACHE_HOME")
    kept = Path(before or Path.home() / ".cache") / "hotset" / "machine.json"
    with tempfile.TemporaryDirectory() as folder:
        if kept.is_file():
            (Path(folder) / "hotset").mkdir()
            (Path(folder) / "hotset" / kept.name).write_bytes(kept.read_bytes())
        os.environ["XDG_CACHE_HOME"] = folder
        try:
            yield
        finally:
            if before is None:
                del os.environ["XDG_CACHE_HOME"]
            else:
                os.environ["XDG_CACHE_HOME"] = before


def print_calibration(models: Sequence[Path], *, num_runs: int, num_tokens: int) -> None:
    print("| Model | GiB | First estimate | Second | Fresh answer | First error | Second |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    with _own_record():
        for model in models:
            found = calibrate(model, num_runs=num_runs, num_tokens=num_tokens)
            print(
                f"| {found.name} | {found.n_bytes / 2**30:.2f} | {found.first_estimate:.1f}"
                f" | {found.second_estimate:.1f} | {found.measured:.1f}"
                f" | {found.first_error:+.0%} | {found.second_error:+.1%} |",
                flush=True,
            )
