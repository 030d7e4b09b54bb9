"""The next model's file on its way into memory while the present one still answers.

Only into memory that nobody needs, so that no page of a running model has to give way. The kernel
reads by itself once it is told what will be needed, which takes less than to read and throw away.
It is told little by little, and what it was told is awaited, so that the disk stays free for others
and the reading can end at any moment.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path

from hotset.core.units import KIB, MIB

__all__ = ["Piece", "read_ahead"]

_CHUNK_BYTES = 32 * MIB
# How much is asked for before the first of it is awaited.
_QUEUE_BYTES = 8 * MIB
# The kernel quietly leaves out what goes beyond a device's read-ahead window, 128 KiB as a rule.
_ASK_BYTES = 128 * KIB
# Of 19. A GiB takes 0.14 s of processor time; beside a busy engine this gets a quarter of a core.
_NICENESS = 5

Piece = tuple[Path, int, int]
"""A file, the first byte that is needed of it, and the byte behind the last."""


def read_ahead(
    pieces: Sequence[Piece], room_bytes: Callable[[], int], is_over: Callable[[], bool]
) -> int:
    """Have the pieces read into the page cache, as far as there is room; returns once they are.

    Lowers the priority of the calling thread for good.

    Args:
        room_bytes: memory that nobody needs now. What was read ahead before counts as such, since
            it gives way on demand.
        is_over: looked at before each piece of 32 MiB.

    Returns:
        Bytes read. 0 where the system cannot be told.
    """
    if not hasattr(os, "posix_fadvise"):
        return 0
    with suppress(OSError):
        os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _NICENESS)
    n_read = 0
    for path, begin, end in pieces:
        file = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        try:
            for at in range(begin, end, _CHUNK_BYTES):
                n_bytes = min(_CHUNK_BYTES, end - at)
                if is_over() or n_read + n_bytes > room_bytes():
                    return n_read
                _read(file, at, at + n_bytes)
                n_read += n_bytes
        finally:
            os.close(file)
    return n_read


def _read(file: int, begin: int, end: int) -> None:
    """Ask for a piece, and wait for it."""
    for at in range(begin, end, _ASK_BYTES):
        os.posix_fadvise(file, at, min(_ASK_BYTES, end - at), os.POSIX_FADV_WILLNEED)
        if at - begin >= _QUEUE_BYTES:
            os.pread(file, 1, at - _QUEUE_BYTES)
    os.pread(file, 1, end - 1)
