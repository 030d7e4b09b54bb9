"""Pages of a model file that a start brings into memory: those beside the experts, no others."""

from __future__ import annotations

import mmap
import os
import subprocess
import sys
from itertools import accumulate
from pathlib import Path

import pytest
from benchmarks.store.pagecache import drop, resident_pages

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.gguf.ranges import ByteRange, ranges_beside_experts
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import Dims, Mix, write_sized
from hotset.store import NativeStore, child_settings
from store.asking import ask
from store.engines import Engine, running

PAGE = mmap.PAGESIZE
FILE_PAGES = 8192

# Maps each file as an engine does, prefetch and all, and touches every page of its ranges. It holds
# the files until its input closes: pages that are mapped cannot leave the page cache.
CHILD = """
import ctypes, mmap, os, sys
libc = ctypes.CDLL(None, use_errno=True)
libc.mmap.restype = ctypes.c_void_p
libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t] + [ctypes.c_int] * 3 + [ctypes.c_long]
libc.posix_madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]
WILL_NEED = 3
for path, ranges in zip(sys.argv[1::2], sys.argv[2::2]):
    file = os.open(path, os.O_RDONLY)
    os.posix_fadvise(file, 0, 0, os.POSIX_FADV_SEQUENTIAL)
    size = os.fstat(file).st_size
    address = libc.mmap(None, size, mmap.PROT_READ, mmap.MAP_SHARED | mmap.MAP_POPULATE, file, 0)
    assert libc.posix_madvise(address, size, WILL_NEED) == 0
    for text in filter(None, ranges.split(",")):
        begin, end = map(int, text.split("-"))
        for page in range(begin // mmap.PAGESIZE, -(-end // mmap.PAGESIZE)):
            ctypes.string_at(address + page * mmap.PAGESIZE, 1)
print("touched", flush=True)
sys.stdin.read()
"""


def as_text(ranges: list[ByteRange]) -> str:
    return ",".join(f"{begin}-{end}" for begin, end in ranges)


def pages_of(ranges: list[ByteRange] | tuple[ByteRange, ...]) -> set[int]:
    return {page for begin, end in ranges for page in range(begin // PAGE, -(-end // PAGE))}


def resident(path: Path) -> set[int]:
    return {page for page, is_resident in enumerate(resident_pages(path)) if is_resident}


def cold(path: Path) -> None:
    """Take the file out of the page cache; skip where the file system has it nowhere else."""
    try:
        drop(path)
    except MachineProblem as problem:
        pytest.skip(problem.message)
    assert resident(path) == set()


def file_of(path: Path, n_bytes: int = FILE_PAGES * PAGE) -> Path:
    path.write_bytes(os.urandom(PAGE) * (n_bytes // PAGE) + b"x" * (n_bytes % PAGE))
    return path


def resident_after(
    native: NativeStore, ranges_of_files: dict[Path, list[ByteRange]], listed: list[Path]
) -> list[set[int]]:
    """Pages of each file in memory once a child has mapped it and touched its ranges."""
    settings = child_settings(
        native,
        native.preload,
        listed,
        ram_bytes=1,
        read_first=[ranges_of_files.get(path, []) for path in listed],
    )
    for path in ranges_of_files:
        cold(path)
    words = [word for path, rs in ranges_of_files.items() for word in (str(path), as_text(rs))]
    with subprocess.Popen(
        [sys.executable, "-c", CHILD, *words],
        env={**os.environ, **settings.environment},
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as child:
        assert child.stdout is not None
        assert child.stdout.readline() == "touched\n"
        found = [resident(path) for path in ranges_of_files]
        child.communicate()
    return found


SHAPES: dict[str, list[ByteRange]] = {
    "nothing": [],
    "one byte in the middle": [(1000 * PAGE + 7, 1000 * PAGE + 8)],
    "two bytes on both sides of a page's edge": [(77 * PAGE - 1, 77 * PAGE + 1)],
    "longer than what the kernel reads at once": [(100 * PAGE, 3100 * PAGE + 17)],
    "many norms between experts": [(k * 40 * PAGE + 96, k * 40 * PAGE + 900) for k in range(200)],
    "first and last page": [(0, 5), (FILE_PAGES * PAGE - 5, FILE_PAGES * PAGE)],
    "all": [(0, FILE_PAGES * PAGE)],
}


@pytest.mark.parametrize("ranges", SHAPES.values(), ids=SHAPES)
def test_exactly_the_pages_of_the_ranges_come_into_memory(
    native: NativeStore, tmp_path: Path, ranges: list[ByteRange]
) -> None:
    path = file_of(tmp_path / "model")
    assert resident_after(native, {path: ranges}, [path]) == [pages_of(ranges)]


def test_a_file_that_ends_within_a_page_is_read_to_its_end(
    native: NativeStore, tmp_path: Path
) -> None:
    path = file_of(tmp_path / "model", 500 * PAGE + 123)
    ranges = [(490 * PAGE, 500 * PAGE + 123)]
    assert resident_after(native, {path: ranges}, [path]) == [set(range(490, 501))]


def test_each_shard_has_ranges_of_its_own_and_other_files_none(
    native: NativeStore, tmp_path: Path
) -> None:
    first, second, third = (file_of(tmp_path / name) for name in ("a", "b", "c"))
    ranges = {first: [(0, 10), (PAGE * 900, PAGE * 950)], second: [], third: [(PAGE * 5, PAGE * 6)]}
    found = resident_after(native, ranges, [first, second, third])
    assert found == [pages_of(of_file) for of_file in ranges.values()]
    unlisted = resident_after(native, {second: []}, [first])
    assert unlisted == [set(range(FILE_PAGES))]


@pytest.mark.parametrize(
    "text", ["", ":", "12", "12-", "-5", "5-1", "x", "1-2;3-4", "99999999999999999999-5", "0-,0-"]
)
def test_a_text_that_is_no_range_reads_nothing_ahead_and_breaks_nothing(
    native: NativeStore, tmp_path: Path, text: str
) -> None:
    path = file_of(tmp_path / "model", 64 * PAGE)
    cold(path)
    done = subprocess.run(
        [sys.executable, "-c", CHILD, str(path), ""],
        env={
            **os.environ,
            "LD_PRELOAD": str(native.preload),
            "HOTSET_NO_PREFETCH": str(path),
            "HOTSET_READ_FIRST": text,
        },
        input="",
        text=True,
        capture_output=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (0, "touched\n"), done.stderr
    assert resident(path) <= {0}  # "1-2;3-4" begins with a range


@pytest.mark.parametrize("n_files", [1, 3])
def test_more_ranges_than_a_variable_holds_are_cut_off_between_two(n_files: int) -> None:
    starts = accumulate([9_999_999_999] * 9000)
    ranges = [(begin, begin + 5_000_000) for begin in starts]
    paths = [Path(f"/model-{number}") for number in range(n_files)]
    native = NativeStore({3: Path("/plugin.so")}, Path("/preload.so"))
    settings = child_settings(
        native, Path("/plugin.so"), paths, ram_bytes=1, read_first=[ranges] * n_files
    )
    text = settings.environment["HOTSET_READ_FIRST"]
    kept = [tuple(map(int, one.split("-"))) for one in text.replace(":", ",").split(",")]
    assert kept == (ranges * n_files)[: len(kept)]
    assert len(kept) > 3000
    # The kernel is the judge of what fits.
    subprocess.run(["/bin/true"], env=dict(settings.environment), check=True)


def test_paths_too_long_for_a_variable_are_refused_before_the_start() -> None:
    native = NativeStore({3: Path("/plugin.so")}, Path("/preload.so"))
    paths = [Path(f"/{'long' * 60}/model-{number:05}.gguf") for number in range(1024)]
    with pytest.raises(ConfigProblem, match="paths of its 1024 files are too long together"):
        child_settings(native, Path("/plugin.so"), paths, ram_bytes=1)


@pytest.mark.parametrize("n_shards", [1, 3])
def test_a_started_engine_holds_no_page_of_experts_and_all_beside_them(
    engine: Engine, native: NativeStore, tmp_path: Path, n_shards: int
) -> None:
    dims = Dims(n_layers=4, n_embd=256, n_ff_exp=256, n_experts=32, n_used=4)
    paths = write_sized(
        "qwen3moe", tmp_path / "model.gguf", dims, Mix("Q4_0", "Q4_0"), n_shards=n_shards
    )
    model = open_model(paths[0])
    needed = ranges_beside_experts(model, model_spec(model).n_layers)
    plugin = engine.check().plugin
    assert plugin is not None
    settings = child_settings(native, plugin, paths, ram_bytes=1 << 20, read_first=needed)
    for path in paths:
        cold(path)
    with running(engine, paths[0], settings) as stored:
        ask(stored.address, "A prompt that asks for some experts in every layer.", 3)
        for path, header, ranges in zip(paths, model.headers, needed, strict=True):
            pages = resident(path)
            assert pages_of(ranges) <= pages
            # The header is read like any file, and a bit beyond it; and looking for the end of a
            # file, the C library reads its last page.
            beyond, last = header.data_offset_bytes // PAGE + 32, (header.file_bytes - 1) // PAGE
            assert {page for page in pages if beyond < page < last} <= pages_of(ranges)
