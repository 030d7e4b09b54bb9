"""How much of a mapped file is in a process's memory."""

from __future__ import annotations

from pathlib import Path


def mapped_share(pid: str, file: Path) -> float:
    """Resident share, 0 to 1, of the ranges of `file` that process `pid` has mapped."""
    size_kib = resident_kib = 0
    is_file = False
    for line in Path(f"/proc/{pid}/smaps").read_text(encoding="utf-8").splitlines():
        words = line.split()
        if "-" in words[0]:
            is_file = words[-1] == str(file)
        elif is_file and words[0] == "Size:":
            size_kib += int(words[1])
        elif is_file and words[0] == "Rss:":
            resident_kib += int(words[1])
    return resident_kib / size_kib
