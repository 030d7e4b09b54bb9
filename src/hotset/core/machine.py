"""What a plan needs to know of the machine."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Machine"]


@dataclass(frozen=True, slots=True)
class Machine:
    """One computer, or the part of it that a container may use.

    Attributes:
        ram_total_bytes: physical memory, or the cgroup's limit where that is lower.
        ram_available_bytes: what can be taken now without swapping: free memory and the page
            cache that gives way, below the cgroup's limit.
        num_cores: physical processor cores that this process may use.
        num_threads: logical processors that this process may use.
    """

    ram_total_bytes: int
    ram_available_bytes: int
    num_cores: int
    num_threads: int
