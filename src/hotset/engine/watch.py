"""Whether a starting engine gets anywhere, and how far."""

from __future__ import annotations

import time
from dataclasses import dataclass

import psutil

from hotset.engine import loadlog
from hotset.engine.process import EngineProcess

__all__ = ["Patience", "Progress", "Watch"]


@dataclass(frozen=True, slots=True)
class Patience:
    """How long a start may show no progress. No limit on a start that moves.

    Attributes:
        idle_s: without any sign: no output, no processor time, no memory, no reads.
        busy_s: with processor time as the only sign (a compiler of shaders is silent for minutes;
            a loop that never ends looks the same).
    """

    idle_s: float = 60.0
    busy_s: float = 900.0


@dataclass(frozen=True, slots=True)
class Progress:
    """A sign of life during a start.

    Attributes:
        phase: what the engine is at, in words.
        fraction: of the weights in memory, 0..1; None outside that phase.
        elapsed_s: since the start.
    """

    phase: str
    fraction: float | None
    elapsed_s: float


class Watch:
    """Signs of life of a starting engine."""

    def __init__(self, patience: Patience, weights_bytes: int) -> None:
        self.phase = "starting the engine"
        self.fraction: float | None = None
        self._patience = patience
        self._weights_bytes = weights_bytes
        self._num_lines = 0
        self._signs: tuple[int, ...] = ()
        self._cpu_s = 0.0
        self._began = self._moved_at = self._worked_at = time.monotonic()

    def on_line(self, line: str) -> None:
        self._num_lines += 1
        phase = loadlog.phase_of(line)
        if phase:
            self.phase = phase

    def progress(self) -> Progress:
        return Progress(self.phase, self.fraction, time.monotonic() - self._began)

    def look(self, process: EngineProcess) -> float:
        """Seconds without progress once that is too long, else 0."""
        now = time.monotonic()
        try:
            seen = psutil.Process(process.pid)
            with seen.oneshot():
                memory = seen.memory_info().rss
                times = seen.cpu_times()
                reads = seen.io_counters().read_bytes
        except (psutil.Error, AttributeError):
            return 0.0  # it has just ended; the next look at the process says so
        signs = (self._num_lines, memory >> 20, reads)
        if signs != self._signs:
            self._signs = signs
            self._moved_at = self._worked_at = now
        cpu_s = times.user + times.system
        if cpu_s > self._cpu_s:
            self._cpu_s, self._worked_at = cpu_s, now
        is_loading = self.phase == "loading the weights" and self._weights_bytes
        self.fraction = min(1.0, memory / self._weights_bytes) if is_loading else None
        silent_s = now - self._moved_at
        if now - self._worked_at > self._patience.idle_s or silent_s > self._patience.busy_s:
            return silent_s
        return 0.0
