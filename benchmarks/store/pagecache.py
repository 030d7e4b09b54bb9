"""Which pages of a file are in memory, and how to get them out; how fast the disk reads."""

from __future__ import annotations

import ctypes
import mmap
import os
import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from hotset.core.errors import MachineProblem
from hotset.core.units import format_bytes

__all__ = ["drop", "read_rate", "resident_bytes", "resident_pages"]

_READERS = 6
_READ_S = 1.5
_BLOCK_BYTES = 4096
_HUGE_BYTES = 2 << 20
_TOLERATED_BYTES = 16 << 20
_DROP_CACHES = Path("/proc/sys/vm/drop_caches")


def drop(path: Path) -> None:
    """Take the file out of the page cache; the whole cache where the file alone does not go.

    Raises:
        MachineProblem: more than 16 MiB of it stay.
    """
    with path.open("rb") as file:
        os.fsync(file.fileno())
        os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    if resident_bytes(path) > _TOLERATED_BYTES and os.access(_DROP_CACHES, os.W_OK):
        _DROP_CACHES.write_text("1")
    if (left := resident_bytes(path)) > _TOLERATED_BYTES:
        raise MachineProblem(
            f"{path}: {format_bytes(left)} of it stay in the page cache; end what has it open, "
            "put it on a disk (not tmpfs) or run as root"
        )


def resident_bytes(path: Path) -> int:
    """How much of the file is in the page cache, whoever brought it there."""
    return sum(resident_pages(path)) * mmap.PAGESIZE


def resident_pages(path: Path) -> bytes:
    """For each page of the file, 1 if it is in the page cache, else 0 (mincore)."""
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mincore.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    with path.open("rb") as file:
        size = os.fstat(file.fileno()).st_size
        # Private and writable only because ctypes takes the address of nothing else; a page that
        # is not written stays the file's own.
        with mmap.mmap(file.fileno(), size, mmap.MAP_PRIVATE) as mapping:
            first = ctypes.c_char.from_buffer(mapping)
            pages = (ctypes.c_ubyte * (-(-size // mmap.PAGESIZE)))()
            failed = libc.mincore(ctypes.addressof(first), size, pages)
            del first
    if failed:
        raise MachineProblem(f"{path}: mincore: {os.strerror(ctypes.get_errno())}")
    return bytes(pages).translate(bytes(i & 1 for i in range(256)))


def read_rate(path: Path, matrices: Sequence[tuple[int, int]], seed: str) -> float:
    """Bytes per second of direct reads, one matrix (offset, size) each, from six threads.

    Into huge pages, which made 2.0 GB/s of 1.4 here: the store has them, and a limit that it could
    beat would be none.

    Raises:
        MachineProblem: the file system has no direct reads.
    """
    file = os.open(path, os.O_RDONLY | os.O_DIRECT)
    deadline = time.monotonic() + _READ_S
    # Room for a matrix within whole huge pages, wherever the mapping begins.
    size = max(n_bytes for _, n_bytes in matrices) + 2 * _BLOCK_BYTES

    def read(reader: int) -> int:
        rng = random.Random(f"{seed}/{reader}")
        total = 0
        with mmap.mmap(-1, size + 2 * _HUGE_BYTES) as memory:
            memory.madvise(mmap.MADV_HUGEPAGE)
            while time.monotonic() < deadline:
                offset, n_bytes = rng.choice(matrices)
                start = offset // _BLOCK_BYTES * _BLOCK_BYTES
                end = -(-(offset + n_bytes) // _BLOCK_BYTES) * _BLOCK_BYTES
                with memoryview(memory)[_HUGE_BYTES : _HUGE_BYTES + end - start] as room:
                    os.preadv(file, [room], start)
                total += n_bytes
        return total

    begun = time.monotonic()
    try:
        with ThreadPoolExecutor(_READERS) as pool:
            total = sum(pool.map(read, range(_READERS)))
    except OSError as error:
        raise MachineProblem(
            f"{path}: no direct reads ({error.strerror}); choose a folder on a disk"
        ) from error
    finally:
        os.close(file)
    return total / (time.monotonic() - begun)
