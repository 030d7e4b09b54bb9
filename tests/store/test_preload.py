"""The preload library: no reading ahead for the files it is told of, and for no others."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.store import NativeStore
from store.engines import TESTS

NUM_PAGES = 4096
PAGE_BYTES = 4096

# Maps the file as an engine does and says how many of its pages that brought in.
CHILD = """
import ctypes, mmap, os, sys
from pathlib import Path
from store.mapped import mapped_share
path, how = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
for name in ("madvise", "posix_madvise"):
    getattr(libc, name).argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
file = os.open(path, os.O_RDONLY)
size = os.fstat(file).st_size
populate = mmap.MAP_POPULATE if how == "populate" else 0
address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED | populate, file, 0)
if how == "madvise":
    MADV_POPULATE_READ = 22
    assert libc.madvise(address, size, MADV_POPULATE_READ) == 0
if how == "nonsense":
    assert libc.posix_madvise(address, size, 99) == 22
    assert libc.madvise(address, size, 99) == -1 and ctypes.get_errno() == 22
print(mapped_share("self", Path(path)))
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(PAGE_BYTES) * NUM_PAGES)
    return path


def share(native: NativeStore, file: Path, how: str, listed: str) -> float:
    child = subprocess.run(
        [sys.executable, "-c", CHILD, str(file), how],
        env={
            **os.environ,
            "PYTHONPATH": str(TESTS),
            "LD_PRELOAD": str(native.preload),
            "HOTSET_NO_PREFETCH": listed,
        },
        capture_output=True,
        text=True,
        check=False,
    )
    assert child.returncode == 0, child.stderr
    return float(child.stdout)


@pytest.mark.parametrize("how", ["populate", "madvise"])
def test_a_listed_file_is_not_read_ahead(native: NativeStore, file: Path, how: str) -> None:
    assert share(native, file, how, f"/missing:{file}:") == 0.0


@pytest.mark.parametrize("how", ["populate", "madvise"])
def test_any_other_file_is_read_ahead(native: NativeStore, file: Path, how: str) -> None:
    assert share(native, file, how, f"{file}.other") == 1.0


def test_a_file_is_known_by_what_it_is_not_by_its_name(native: NativeStore, file: Path) -> None:
    link = file.with_name("link")
    link.symlink_to(file)
    assert share(native, file, "populate", str(link)) == 0.0


def test_wrong_advice_is_still_an_error(native: NativeStore, file: Path) -> None:
    assert share(native, file, "nonsense", str(file)) == 0.0
