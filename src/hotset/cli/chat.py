"""A conversation in the terminal: one engine, the messages so far, one answer at a time."""

from __future__ import annotations

import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from types import FrameType
from typing import TYPE_CHECKING, Any

from hotset.cli.experts import ExpertWatch
from hotset.cli.live import LiveLine
from hotset.cli.meter import AnswerMeter
from hotset.cli.screen import harmless

if TYPE_CHECKING:
    from hotset.engine.client import Timings
    from hotset.engine.running import Running

__all__ = ["Answer", "Conversation"]


@dataclass(frozen=True, slots=True)
class Answer:
    """One finished, or stopped, answer.

    Attributes:
        finish_reason: "stop", "length", or "interrupted" (by Ctrl-C).
        timings: the engine's figures; None for an interrupted answer.
    """

    text: str
    reasoning: str
    finish_reason: str
    timings: Timings | None


class _Stopped(Exception):  # never leaves this module
    """Ctrl-C while an answer was coming."""


@contextmanager
def _ctrl_c_stops_the_answer() -> Iterator[None]:
    """Within the block Ctrl-C ends the answer; after it, it means again what it meant before."""

    def stop(number: int, frame: FrameType | None) -> None:
        del number, frame
        # A second Ctrl-C while the answer is being given up ends the program.
        signal.signal(signal.SIGINT, before)
        raise _Stopped

    before = signal.getsignal(signal.SIGINT)
    signal.signal(signal.SIGINT, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)


class Conversation:
    """The messages so far, and how to ask for more.

    Args:
        running: the engine.
        system: a system message; "" for none.
        options: sampling options of every request.
        experts: for the line of figures below an answer that comes; they are told, not taken.
        is_shown: print the answer as it comes.
    """

    def __init__(
        self,
        running: Running,
        system: str,
        options: dict[str, Any],
        experts: ExpertWatch | None = None,
        *,
        is_shown: bool,
    ) -> None:
        self._running = running
        self._experts = experts or ExpertWatch(None)
        self._system = system
        self._options = options
        self._is_shown = is_shown
        self.messages: list[dict[str, str]] = []
        self.clear()

    def clear(self) -> None:
        self.messages = [{"role": "system", "content": self._system}] if self._system else []

    def ask(self, text: str) -> Answer:
        """Send `text`, show the answer as it comes, and remember both.

        A question whose answer was refused or broken off is forgotten, so that the next one
        starts from a sound conversation; one that was interrupted stays, with the part that came.

        Raises:
            ClientProblem: the engine refuses the request.
            EngineProblem: the engine died.
        """
        from hotset.engine.client import ChatStream

        said: list[str] = []
        thought: list[str] = []
        reason, timings = "interrupted", None
        messages = [*self.messages, {"role": "user", "content": text}]
        with ChatStream(self._running, messages, self._options, is_watched=True) as stream:
            meter = AnswerMeter(stream, self._experts)
            try:
                with (
                    LiveLine(meter.line, is_wanted=self._is_shown) as live,
                    _ctrl_c_stops_the_answer(),
                ):
                    for piece in stream:
                        (thought if piece.is_reasoning else said).append(piece.text)
                        self._show(piece.text, live, is_reasoning=piece.is_reasoning)
                    reason, timings = stream.finish_reason, stream.timings
            except _Stopped:
                pass
            finally:
                # Whatever comes next, an error's line included, starts on a line of its own.
                if self._is_shown and (said or thought):
                    print(flush=True)
        answer = Answer("".join(said), "".join(thought), reason, timings)
        self.messages = [*messages, {"role": "assistant", "content": answer.text}]
        return answer

    def _show(self, text: str, live: LiveLine, *, is_reasoning: bool) -> None:
        if not self._is_shown:
            return
        # Reasoning is not the answer: it goes where notes go, so that a pipe gets the answer only.
        stream = sys.stderr if is_reasoning else sys.stdout
        live.print(harmless(text) if stream.isatty() else text, stream)
