"""What `hotset doctor` reports: findings, each with a level, and a remedy where one is needed."""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any

__all__ = ["Finding", "Level"]


class Level(StrEnum):
    OK = "ok"
    WARNING = "warning"
    PROBLEM = "problem"


@dataclass(frozen=True, slots=True)
class Finding:
    """One line. `remedy` is there for whatever is not ok; `facts` is for scripts."""

    level: Level
    subject: str
    text: str
    remedy: str = ""
    facts: dict[str, Any] = field(default_factory=dict)
