"""Short measurements: how fast a disk reads, and how fast the processor reads its memory.

Nothing is ever written to a disk. Reads go past the page cache (O_DIRECT); where that is not
possible, or the file is not really there (a sparse one), there is no figure rather than a false
one. What cannot be seen from here is a cache below: the disk's own, or that of the computer that a
virtual machine runs on.
"""

from __future__ import annotations

import mmap
import os
import random
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

from hotset.core.units import KIB, MIB
from hotset.probe.sysfs import read_text

__all__ = ["LEAST_FILE_BYTES", "DiskSpeed", "RamSpeed", "measure_disk", "measure_ram"]

# A smaller file can lie in the disk's own cache as a whole.
LEAST_FILE_BYTES = 64 * MIB

_LARGE_BYTES = 4 * MIB
_LARGE_IN_FLIGHT = 2
# One expert's matrix is about as large, and the expert store reads with 6 threads.
_SMALL_BYTES = 512 * KIB
_SMALL_IN_FLIGHT = 6
# They take O_DIRECT and may answer from memory all the same.
_OWN_CACHE = frozenset({"zfs", "9p", "virtiofs"})
_DISK_TIME_S = 0.6
_MOST_READ_BYTES = 256 * MIB

_RAM_ROUNDS = 8
_LEAST_SHARE = 0.8
_LEAST_RAM_BYTES = 256 * MIB
_MOST_RAM_BYTES = 512 * MIB
_RAM_SHARE = 8


@dataclass(frozen=True, slots=True)
class DiskSpeed:
    """Bytes per second of reads from one file, past the page cache.

    Attributes:
        read_bytes_s: 4 MiB at a time, in sequence, two requests in flight.
        random_read_bytes_s: 512 KiB at a time, at random places, six in flight.
        num_bytes: what was read for both.
    """

    read_bytes_s: int
    random_read_bytes_s: int
    num_bytes: int


@dataclass(frozen=True, slots=True)
class RamSpeed:
    """Attributes:
    read_bytes_s: all threads together, each reading its own part of `num_bytes` in sequence,
        with numpy's sum: an instruction mix that keeps up with memory from a few cores on. The
        best of eight rounds.
    num_bytes: the memory that was read in each round.
    num_threads: how many read.
    is_beyond_cache: whether that is at least twice the processor's last-level cache; if not, the
        figure is partly the cache's.
    """

    read_bytes_s: int
    num_bytes: int
    num_threads: int
    is_beyond_cache: bool


def measure_disk(file: Path, file_system: str = "") -> DiskSpeed | str:
    """Read from an existing file for about a second, 256 MiB at most for either figure.

    Args:
        file_system: its type as the kernel names it, since some have a cache of their own.

    Returns:
        The figures, or the reason why there are none, in words that follow "not measured: ".
    """
    if file_system in _OWN_CACHE or file_system.startswith("fuse"):
        return f"{file_system} reads through a cache of its own"
    try:
        status = file.stat()
        if status.st_size < LEAST_FILE_BYTES:
            return f"{file.name} is smaller than {LEAST_FILE_BYTES // MIB} MiB"
        # A block of st_blocks is 512 bytes whatever the file system's is (stat(2)).
        if status.st_blocks * 512 < status.st_size * 9 // 10:
            return f"{file.name} is sparse: most of it is not on the disk"
        if not hasattr(os, "O_DIRECT"):
            return "this system has no reads past its cache"
        descriptor = os.open(file, os.O_RDONLY | os.O_DIRECT | os.O_CLOEXEC)
    except OSError as error:
        return f"{file.name} cannot be read past the page cache ({error.strerror})"
    try:
        large = _read_rate(descriptor, status.st_size, _LARGE_BYTES, _LARGE_IN_FLIGHT, None)
        places = random.Random(status.st_size)  # noqa: S311 - places to read, no secret
        small = _read_rate(descriptor, status.st_size, _SMALL_BYTES, _SMALL_IN_FLIGHT, places)
    except OSError as error:
        return f"reading {file.name} failed ({error.strerror})"
    finally:
        os.close(descriptor)
    return DiskSpeed(large[0], small[0], large[1] + small[1])


def _read_rate(
    descriptor: int, size: int, request_bytes: int, in_flight: int, places: random.Random | None
) -> tuple[int, int]:
    """Bytes per second and bytes read; in sequence, or at random `places`."""
    num_places = size // request_bytes
    order = range(num_places) if places is None else places.sample(range(num_places), num_places)
    order = order[: _MOST_READ_BYTES // request_bytes]
    claims = iter(order)
    lock = threading.Lock()
    deadline = time.monotonic() + _DISK_TIME_S

    def read() -> int:
        done = 0
        # Anonymous mappings begin at a page, as O_DIRECT wants it.
        with mmap.mmap(-1, request_bytes) as buffer:
            while time.monotonic() < deadline:
                with lock:
                    place = next(claims, None)
                if place is None:
                    break
                done += os.preadv(descriptor, [buffer], place * request_bytes)
        return done

    return _together(read, in_flight)


def measure_ram(
    num_threads: int,
    available_bytes: int,
    root: Path = Path("/"),
    *,
    least_share: float = _LEAST_SHARE,
) -> RamSpeed | str:
    """Read memory with all cores for less than a second.

    Args:
        num_threads: as many as there are physical cores.
        available_bytes: an eighth of it is used at most, and no more than 512 MiB.
        root: where /sys is looked for, for the size of the cache.
        least_share: of the time in which the threads must have had the processor; below it the
            figure would be that of the other programs.

    Returns:
        The figure, or the reason why there is none.
    """
    import numpy as np

    cache = _cache_bytes(root)
    wanted = min(max(_LEAST_RAM_BYTES, 2 * cache), _MOST_RAM_BYTES)
    num_bytes = min(wanted, available_bytes // _RAM_SHARE)
    if num_bytes < _LEAST_RAM_BYTES:
        return "too little memory is free"
    part = num_bytes // num_threads // 8
    # Ones, not zeros: untouched pages would all be the same page of zeros.
    with ThreadPoolExecutor(num_threads) as pool:
        arrays = list(pool.map(np.ones, [part] * num_threads))
    begin = threading.Barrier(num_threads)

    def read(array: Any) -> list[tuple[float, float]]:
        """Wall time and processor time of each round."""
        rounds = []
        for _ in range(_RAM_ROUNDS):
            begin.wait()
            wall_s, busy_s = time.monotonic(), time.thread_time()
            array.sum()
            rounds.append((time.monotonic() - wall_s, time.thread_time() - busy_s))
        return rounds

    with ThreadPoolExecutor(num_threads) as pool:
        threads = list(pool.map(read, arrays))
    wall_s = sum(wall for rounds in threads for wall, _ in rounds)
    busy_s = sum(busy for rounds in threads for _, busy in rounds)
    if busy_s < least_share * wall_s:
        return "other programs kept the processor busy"
    # A round is over when the last thread is; the best one was disturbed least.
    best_s = min(max(rounds[n][0] for rounds in threads) for n in range(_RAM_ROUNDS))
    read_bytes = part * 8 * num_threads
    rate = int(read_bytes / max(best_s, 1e-6))
    return RamSpeed(rate, read_bytes, num_threads, num_bytes >= 2 * cache)


def _together(work: Callable[[], int], num_threads: int) -> tuple[int, int]:
    """Bytes per second and bytes of several threads that each return what they did."""
    with ThreadPoolExecutor(num_threads) as pool:
        began = time.monotonic()
        done = sum(future.result() for future in [pool.submit(work) for _ in range(num_threads)])
        elapsed = time.monotonic() - began
    return int(done / max(elapsed, 1e-6)), done


def _cache_bytes(root: Path) -> int:
    """The last-level cache of the first processor; 0 where nothing tells."""
    base = root / "sys/devices/system/cpu/cpu0/cache"
    sizes = map(partial(_size_in, base), range(8))
    return max(sizes, default=0)


def _size_in(base: Path, index: int) -> int:
    text = read_text(base / f"index{index}/size") or ""
    number, unit = text[:-1], text[-1:]
    factor = {"K": KIB, "M": MIB}.get(unit, 0)
    return int(number) * factor if factor and number.isdecimal() else 0
