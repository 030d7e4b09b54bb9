"""The engine's allocator of compute buffers, as far as it decides how large a buffer gets.

The rule is ggml_dyn_tallocr_alloc's in ggml/src/ggml-alloc.c: the smallest gap that is large
enough, or else the end of the buffer.
"""

from __future__ import annotations

from bisect import bisect

__all__ = ["NOTHING", "Heap", "Held"]

_ALIGNMENT = 128  # of CUDA; 16 to 256 elsewhere, which makes no difference of note
_ENDLESS = 1 << 62

Held = tuple[int, int]
"""A place: offset and size, bytes."""

NOTHING: Held = (0, 0)
"""The place of what takes none."""


class Heap:
    """A buffer that grows at its end.

    Attributes:
        peak_bytes: the most that it has ever reached.
    """

    def __init__(self) -> None:
        self._free: list[Held] = [(0, _ENDLESS)]  # ascending; the last one is the end
        self.peak_bytes = 0

    @property
    def gaps(self) -> tuple[Held, ...]:
        """All that is free, ascending: what the heap does next depends on nothing else."""
        return tuple(self._free)

    @gaps.setter
    def gaps(self, gaps: tuple[Held, ...]) -> None:
        self._free = list(gaps)

    def take(self, n_bytes: int) -> Held:
        """A place for `n_bytes`: the smallest gap that holds them, of equal ones the last."""
        if not n_bytes:
            return NOTHING
        size = -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        free = self._free
        best, best_room = -1, _ENDLESS
        for index, (_, room) in enumerate(free):
            if size <= room <= best_room:
                best, best_room = index, room
        offset, room = free[best]
        if room == size:
            del free[best]
        else:
            free[best] = (offset + size, room - size)
        self.peak_bytes = max(self.peak_bytes, offset + size)
        return offset, size

    def drop(self, *places: Held) -> None:
        """Give places back; gaps that touch become one."""
        free = self._free
        for held in places:
            offset, size = held
            if not size:
                continue
            index = bisect(free, held)
            free.insert(index, held)
            if offset + size == free[index + 1][0]:
                size += free[index + 1][1]
                free[index : index + 2] = [(offset, size)]
            if index and sum(free[index - 1]) == offset:
                before, room = free[index - 1]
                free[index - 1 : index + 1] = [(before, room + size)]
