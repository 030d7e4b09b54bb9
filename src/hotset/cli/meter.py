"""What the live line says: of one answer, and of an engine that serves."""

from __future__ import annotations

import time
from collections import deque
from typing import TYPE_CHECKING

from hotset.cli.experts import ExpertWatch, ExpertWork

if TYPE_CHECKING:
    from hotset.engine.client import ChatStream

__all__ = ["AnswerMeter", "ServiceMeter"]

_SPEED_OVER_S = 5.0


class AnswerMeter:
    """One answer while it comes: first how far the prompt is, then the tokens so far."""

    def __init__(self, stream: ChatStream, experts: ExpertWatch) -> None:
        self._stream = stream
        self._experts = experts
        self._began = time.monotonic()
        self._at_first_token: ExpertWork | None = None

    def line(self) -> str:
        """`142 tokens · 9.8 tok/s · experts 91% from RAM · 1.1 GB read`

        The share of hits is that of the prompt, then that of the answer; the bytes are of both.
        """
        work = self._experts.work()
        timings = self._stream.timings
        if timings is None or not timings.answer_tokens:
            return " · ".join([*self._prompt(work), *_experts(work, work.read_bytes)])
        if self._at_first_token is None:
            self._at_first_token = work
        answer = work - self._at_first_token
        return " · ".join(
            [
                f"{timings.answer_tokens:,} token{'s' if timings.answer_tokens > 1 else ''}",
                f"{timings.answer_per_s:.1f} tok/s",
                *_experts(answer, work.read_bytes),
            ]
        )

    def _prompt(self, work: ExpertWork) -> list[str]:
        told = self._stream.prompt
        waited = f"{time.monotonic() - self._began:.0f} s"
        if told is None:
            return ["reading the prompt", waited]
        # The engine tells of whole batches; the experts are nearer to the truth.
        done = min(told.num_tokens, max(told.num_done, told.num_cached + int(work.num_tokens)))
        return [f"reading the prompt, {done:,} of {told.num_tokens:,} tokens", waited]


class ServiceMeter:
    """What the experts do for all clients together, over the last seconds."""

    def __init__(self, experts: ExpertWatch) -> None:
        self._experts = experts
        self._seen: deque[tuple[float, ExpertWork]] = deque()

    def line(self) -> str:
        """`12.3 tok/s · experts 91% from RAM · 0.3 GB/s`; "" before anything was asked for."""
        now, work = time.monotonic(), self._experts.work()
        while self._seen and self._seen[0][0] < now - _SPEED_OVER_S:
            self._seen.popleft()
        self._seen.append((now, work))
        since, before = self._seen[0]
        recent = work - before
        if recent.num_tokens >= 1 and now > since:
            return (
                f"{recent.num_tokens / (now - since):.1f} tok/s, prompts and answers"
                f" · experts {recent.hit_share:.0%} from RAM"
                f" · {recent.read_bytes / 1e9 / (now - since):.2f} GB/s"
            )
        if not work.num_requests:
            return ""
        return (
            f"idle · {work.num_tokens:,.0f} tokens so far"
            f" · {' · '.join(_experts(work, work.read_bytes))}"
        )


def _experts(work: ExpertWork, read_bytes: int) -> list[str]:
    hits = [f"experts {work.hit_share:.0%} from RAM"] if work.num_requests else []
    return [*hits, f"{read_bytes / 1e9:.1f} GB read"] if hits or read_bytes else []
