"""Small files of /sys and /proc: a value, or None for whatever cannot be read or meant."""

from __future__ import annotations

import re
from pathlib import Path

__all__ = ["cpu_numbers", "read_int", "read_text"]

# The kernel gives one value per file; more than this is no such file.
_MOST_BYTES = 1 << 20


def read_text(path: Path) -> str | None:
    """The content without white space around it; None if it cannot be read, or is empty."""
    try:
        with path.open("rb") as file:
            return file.read(_MOST_BYTES).decode(errors="replace").strip() or None
    except OSError:
        return None


def read_int(path: Path) -> int | None:
    """A number, decimal or with 0x before it; None for anything else, and for negative ones."""
    text = read_text(path)
    if text is None or not re.fullmatch(r"\d{1,20}|0x[0-9a-fA-F]{1,16}", text, re.ASCII):
        return None
    return int(text, 0) if text.startswith("0x") else int(text)


def cpu_numbers(path: Path) -> frozenset[int]:
    """A list of processors such as ``0-3,8``; empty for anything else.

    Form: the kernel's documentation, admin-guide/cputopology.rst.
    """
    text = read_text(path) or ""
    found: set[int] = set()
    for part in text.split(","):
        match = re.fullmatch(r"(\d{1,6})(?:-(\d{1,6}))?", part.strip(), re.ASCII)
        if match is None:
            return frozenset()
        found.update(range(int(match[1]), int(match[2] or match[1]) + 1))
    return frozenset(found)
