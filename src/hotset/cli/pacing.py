"""What answers and starts have shown: from the kept file into a plan, from a log into the file.

Nothing here ever stops a command: what cannot be read is not used, what cannot be written is not
kept.
"""

from __future__ import annotations

import os
import time
from contextlib import suppress
from dataclasses import replace
from functools import cache
from typing import TYPE_CHECKING

from hotset.cli.machine_options import measured_file
from hotset.core.errors import HotsetError

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.cli.launching import Launchable
    from hotset.core.machine import Machine
    from hotset.core.modelspec import ModelSpec
    from hotset.engine.answers import AnswerTimes
    from hotset.engine.base import Engine

__all__ = ["PaceKeeper", "starts_file", "with_experience"]

# A shorter answer or prompt is over before its time means anything.
_LEAST_ANSWER_TOKENS = 32
_LEAST_PROMPT_TOKENS = 128
# A busy server need not write its file for every answer.
_EVERY_S = 5.0


def starts_file() -> Path:
    """Where what starts and answers have shown is kept: beside the measurements."""
    return measured_file(os.environ).with_name("starts.json")


def with_experience(machine: Machine, spec: ModelSpec, engine: Engine) -> Machine:
    """The machine with what is known of this model and this engine on it."""
    from hotset.core.errors import EngineProblem
    from hotset.core.plan.pace import machine_key, model_key
    from hotset.probe.starts import experience_of, load_kept

    kept, complaint = load_kept(starts_file())
    if complaint:
        _complain(complaint)
    if not kept.starts and not kept.answers:
        return machine
    try:
        identity = engine.identity
    except EngineProblem:
        return machine
    found = experience_of(kept, identity, model_key(spec), machine_key(machine))
    return replace(machine, experience=found)


@cache
def _complain(text: str) -> None:
    """Once is enough, however many models are planned."""
    from hotset.cli.screen import note

    note(text)


class PaceKeeper:
    """Listens to an engine's log and keeps how fast its answers were. For one engine."""

    def __init__(self, ready: Launchable) -> None:
        from hotset.engine.answers import AnswerLog

        self._ready = ready
        self._log = AnswerLog()
        self._next_at = 0.0

    @property
    def num_answers(self) -> int:
        """Answers that the engine has finished so far."""
        return self._log.num_finished

    def hear(self, line: str) -> None:
        """Called on the thread that reads the log."""
        times = self._log.hear(line)
        if times is not None and self._ready.basis is not None and not self._ready.is_embedding:
            # Whatever is odd about this answer, the log must be read on.
            with suppress(HotsetError, ArithmeticError):
                self._keep(times)

    def _keep(self, times: AnswerTimes) -> None:
        from hotset.core.plan.pace import (
            expected_decode,
            expected_prefill,
            machine_key,
            model_key,
            setup_of,
        )
        from hotset.probe.starts import Answers, keep_answer

        is_long = times.answer_tokens >= _LEAST_ANSWER_TOKENS and times.answer_s > 0
        is_read = times.prompt_tokens >= _LEAST_PROMPT_TOKENS and times.prompt_s > 0
        if not (is_long or is_read) or time.monotonic() < self._next_at:
            return
        self._next_at = time.monotonic() + _EVERY_S
        ready, basis = self._ready, self._ready.basis
        if basis is None:
            return
        spec, plan, machine = ready.spec, ready.plan, basis.machine
        decode = prefill = None
        if is_long:
            measured = times.answer_tokens / times.answer_s
            decode = measured / expected_decode(spec, machine, plan, times.depth_tokens)
        if is_read:
            measured = times.prompt_tokens / times.prompt_s
            prefill = measured / expected_prefill(spec, machine, plan, times.prompt_tokens)
        about = Answers(
            ready.engine.identity, model_key(spec), machine_key(machine), setup_of(spec, plan)
        )
        keep_answer(starts_file(), about, decode=decode, prefill=prefill)
