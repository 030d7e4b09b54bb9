"""How fast the engine was, from its own log: one line of times for each answer.

Read from the log and not from answers: so it is known of every answer, whoever asked for it and by
which protocol.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["AnswerLog", "AnswerTimes"]

# llama.cpp tools/server: `slot print_timing: id  0 | task 7 | prompt eval time = ...`
_SLOT = re.compile(r"\bid +(?P<id>\d+) \| task +(?P<task>-?\d+) \| (?P<text>.*)$")
_TIMES = re.compile(
    r"^ *(?P<which>prompt eval|eval) time = +(?P<ms>[\d.]+) ms / +(?P<n>\d+) tokens"
)
_END = re.compile(r"^stop processing: n_tokens = (?P<n>\d+)")
_BEGIN = "processing task"


@dataclass(frozen=True, slots=True)
class AnswerTimes:
    """One answer that had the engine for itself.

    Attributes:
        prompt_tokens: that were computed; those in the cache are not among them.
        end_tokens: in the context when it was finished.
    """

    prompt_tokens: int
    prompt_s: float
    answer_tokens: int
    answer_s: float
    end_tokens: int

    @property
    def depth_tokens(self) -> int:
        """In the context while the answer was written, on average."""
        return max(0, self.end_tokens - self.answer_tokens // 2)


@dataclass(slots=True)
class _Task:
    is_alone: bool
    prompt: tuple[int, float] = (0, 0.0)
    answer: tuple[int, float] = (0, 0.0)


class AnswerLog:
    """Takes the log line by line. Not for several threads at once.

    Attributes:
        num_finished: answers so far, alone or beside others.
    """

    def __init__(self) -> None:
        self.num_finished = 0
        self._tasks: dict[str, _Task] = {}

    def hear(self, line: str) -> AnswerTimes | None:
        """The times of an answer, with the line that ends it.

        An answer beside which another was computed tells nothing of the engine's speed: none.
        """
        match = _SLOT.search(line)
        if match is None:
            return None
        slot, text = match["id"], match["text"]
        if text.startswith(_BEGIN):
            for other in self._tasks.values():
                other.is_alone = False
            self._tasks[slot] = _Task(is_alone=not self._tasks)
            return None
        task = self._tasks.get(slot)
        if task is None:
            return None
        if times := _TIMES.match(text):
            taken = int(times["n"]), float(times["ms"]) / 1000
            if times["which"] == "eval":
                task.answer = taken
            else:
                task.prompt = taken
        elif end := _END.match(text):
            del self._tasks[slot]
            self.num_finished += 1
            if task.is_alone:
                return AnswerTimes(*task.prompt, *task.answer, int(end["n"]))
        return None
