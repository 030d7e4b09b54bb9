"""What an engine has printed: the last lines, numbered, within bounds."""

from __future__ import annotations

import threading
from collections import deque
from itertools import count

__all__ = ["EngineLog"]

_KEPT_LINES = 2000
_LONGEST_LINE = 1000


class EngineLog:
    """Safe for several threads. It outlives the engines of its model."""

    def __init__(self) -> None:
        self._lines: deque[tuple[int, str]] = deque(maxlen=_KEPT_LINES)
        self._numbers = count(1)
        self._lock = threading.Lock()

    def add(self, line: str) -> None:
        if len(line) > _LONGEST_LINE:
            line = line[:_LONGEST_LINE] + " ..."
        with self._lock:
            self._lines.append((next(self._numbers), line))

    def lines(self) -> list[tuple[int, str]]:
        """The kept lines with rising numbers, oldest first."""
        with self._lock:
            return list(self._lines)
