"""`python -m benchmarks.store.mechanisms FILE`: giving the memory of one expert to another.

Three ways to keep some experts of a file in memory, each measured as a stream of misses from six
threads: the oldest expert goes, a random one is read by direct reads.

- slots: experts lie wherever a slot is free, and are found through a table;
- madvise: each expert has an address of its own, filled by the read and emptied by MADV_DONTNEED;
- mremap: the same, but the pages of the leaving expert are moved to the one that comes.
"""

from __future__ import annotations

import argparse
import ctypes
import mmap
import os
import random
import resource
import sys
import threading
import time
from collections import deque
from collections.abc import Callable
from pathlib import Path

from hotset.core.units import MIB

_READERS = 6
_SECONDS = 3.0
_ROUNDS = 3
_BLOCK_BYTES = 4096
_MREMAP_FLAGS = 1 | 2 | 4  # MAYMOVE, FIXED, DONTUNMAP: linux/mman.h
_NORESERVE = 0x4000
_FAILED = ctypes.c_void_p(-1).value

_libc = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_long]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
_libc.mremap.restype = ctypes.c_void_p
_libc.mremap.argtypes = [
    ctypes.c_void_p, ctypes.c_size_t, ctypes.c_size_t, ctypes.c_int, ctypes.c_void_p,
]  # fmt: skip
_libc.pread.restype = ctypes.c_ssize_t
_libc.pread.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_long]


def _check(is_fine: bool, what: str) -> None:
    if not is_fine:
        raise OSError(ctypes.get_errno(), f"{what}: {os.strerror(ctypes.get_errno())}")


class _Memory:
    """Address space for `n_bytes`; nothing in it is touched yet."""

    def __init__(self, n_bytes: int, *, is_huge: bool) -> None:
        self.n_bytes = n_bytes
        flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _NORESERVE
        protection = mmap.PROT_READ | mmap.PROT_WRITE
        address = _libc.mmap(None, n_bytes, protection, flags, -1, 0)
        _check(address != _FAILED, "mmap")
        self.address: int = address
        _libc.madvise(address, n_bytes, mmap.MADV_HUGEPAGE if is_huge else mmap.MADV_NOHUGEPAGE)

    def close(self) -> None:
        _libc.munmap(self.address, self.n_bytes)


def _mechanisms(
    memory_of: Callable[[int, bool], _Memory], n_experts: int, n_resident: int, size: int
) -> dict[str, Callable[[int | None, int], int]]:
    """For each way: (who leaves, who comes) -> where to read to. Nobody leaves while there is
    room."""
    slots = memory_of(n_resident * size, True)
    places: dict[int, int] = {}

    def by_slots(leaving: int | None, coming: int) -> int:
        places[coming] = len(places) if leaving is None else places.pop(leaving)
        return slots.address + places[coming] * size

    emptied = memory_of(n_experts * size, False)

    def by_madvise(leaving: int | None, coming: int) -> int:
        if leaving is not None:
            address = emptied.address + leaving * size
            _check(not _libc.madvise(address, size, mmap.MADV_DONTNEED), "madvise")
        return emptied.address + coming * size

    moved = memory_of(n_experts * size, False)

    def by_mremap(leaving: int | None, coming: int) -> int:
        target = moved.address + coming * size
        if leaving is not None:
            source = moved.address + leaving * size
            _check(_libc.mremap(source, size, size, _MREMAP_FLAGS, target) == target, "mremap")
        return target

    return {"slots": by_slots, "madvise": by_madvise, "mremap": by_mremap}


def _measure(
    file: int, size: int, n_experts: int, n_resident: int, place: Callable[[int | None, int], int]
) -> tuple[float, float]:
    """Fill, then stream misses. MiB per second, and CPU seconds per GiB."""
    lock = threading.Lock()
    order: deque[int] = deque()
    absent = list(range(n_experts))
    rng = random.Random(0)
    end = 0.0
    failures: list[BaseException] = []

    def miss() -> None:
        with lock:
            leaving = order.popleft() if len(order) >= n_resident - _READERS else None
            # Drawn before the leaving one is back among the absent, so that it is another one.
            coming = absent.pop(rng.randrange(len(absent)))
            if leaving is not None:
                absent.append(leaving)
            address = place(leaving, coming)
        got = _libc.pread(file, address, size, coming * size)
        _check(got == size, "pread")
        with lock:
            order.append(coming)

    for _ in range(n_resident):
        miss()
    moved = [0] * _READERS

    def work(reader: int) -> None:
        try:
            while time.monotonic() < end:
                miss()
                moved[reader] += size
        except BaseException as error:
            failures.append(error)

    used = resource.getrusage(resource.RUSAGE_SELF)
    begun = time.monotonic()
    end = begun + _SECONDS
    threads = [threading.Thread(target=work, args=(reader,)) for reader in range(_READERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]
    seconds = time.monotonic() - begun
    after = resource.getrusage(resource.RUSAGE_SELF)
    cpu_s = after.ru_utime - used.ru_utime + after.ru_stime - used.ru_stime
    return sum(moved) / MIB / seconds, cpu_s / (sum(moved) / (1024 * MIB))


def main() -> int:
    """Measure all three in turn, several rounds; print each round."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("file", type=Path, help="a large file on the disk of the models")
    parser.add_argument("--expert-kib", type=int, default=864, help="size of a matrix (864)")
    parser.add_argument("--resident-mib", type=int, default=1024, help="memory for experts (1024)")
    options = parser.parse_args()
    size = options.expert_kib * 1024 // _BLOCK_BYTES * _BLOCK_BYTES
    n_experts = options.file.stat().st_size // size
    n_resident = options.resident_mib * MIB // size
    if n_experts < 2 * n_resident:
        sys.stderr.write(
            f"{options.file}: holds {n_experts} experts of {options.expert_kib} KiB, fewer than"
            f" twice the {n_resident} to be kept; choose a larger file or smaller --resident-mib\n"
        )
        return 4
    file = os.open(options.file, os.O_RDONLY | os.O_DIRECT)
    for number in range(_ROUNDS):
        opened: list[_Memory] = []

        def memory_of(n_bytes: int, is_huge: bool, opened: list[_Memory] = opened) -> _Memory:
            opened.append(_Memory(n_bytes, is_huge=is_huge))
            return opened[-1]

        for name, place in _mechanisms(memory_of, n_experts, n_resident, size).items():
            rate, cpu = _measure(file, size, n_experts, n_resident, place)
            print(
                f"round {number + 1}  {name:8} {rate:6.0f} MiB/s  {cpu:.3f} CPU s per GiB",
                flush=True,
            )
        for memory in opened:
            memory.close()
    os.close(file)
    return 0


if __name__ == "__main__":
    sys.exit(main())
