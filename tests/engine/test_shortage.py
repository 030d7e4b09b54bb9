"""Memory in the engine's words: its first table, and what it says when it gets none."""

from __future__ import annotations

import signal
from collections.abc import Sequence
from pathlib import Path

import pytest

from enginekit import fake_engine, free_port, living_descendants, settings_for
from hotset.core.errors import MachineProblem
from hotset.core.experience import RAM
from hotset.core.units import MIB
from hotset.engine import loadlog
from hotset.engine.shortage import FirstLook, MemoryRow, MemoryShort, memory_row, shortage_in
from hotset.engine.start import start

# As b10434 prints them on a software card; the names of cards hold anything.
HEAD = "0.00.245.785 I common_memory_breakdown_print: | memory breakdown [MiB] | total free |"
CARD = (
    "0.00.246.259 I common_memory_breakdown_print: |   - Vulkan0 (llvmpipe (LLVM 15, 256 bits)) |"
    "  2048 = 1900 + ( 190 =    92 +      45 +      53) +        -190 |"
)
HOST = (
    "0.00.246.336 I common_memory_breakdown_print: |   - Host                                   |"
    "                   45 =    28 +       0 +      17                |"
)


def test_the_rows_of_the_table_are_read_to_the_mebibyte() -> None:
    assert memory_row(HEAD) is None
    assert memory_row(CARD) == MemoryRow("Vulkan0", 1900 * MIB, 92 * MIB, 45 * MIB, 53 * MIB)
    assert memory_row(HOST) == MemoryRow("Host", None, 28 * MIB, 0, 17 * MIB)
    older = CARD.replace("common_memory", "llama_memory")
    assert memory_row(older) == memory_row(CARD)


def test_the_first_table_is_judged_once_and_as_a_whole() -> None:
    seen: list[list[str]] = []

    def judge(rows: Sequence[MemoryRow]) -> None:
        seen.append([row.device for row in rows])

    look = FirstLook(judge)
    for line in (HEAD, CARD, HOST, "anything", HEAD, CARD, HOST):
        look.on_line(line)
    assert seen == [["Vulkan0", "Host"]]
    assert look.problem is None
    silent = FirstLook(None)
    silent.on_line(HOST)
    assert silent.problem is None


@pytest.mark.parametrize(
    ("said", "device", "asked"),
    [
        ("alloc_tensor_range: failed to allocate CUDA0 buffer of size 1048576", "CUDA0", MIB),
        ("ggml_gallocr: failed to allocate Vulkan1 buffer of size 2097152", "Vulkan1", 2 * MIB),
        ("x: allocating 12.50 MiB on device 1: cudaMalloc failed: oom", "CUDA1", int(12.5 * MIB)),
        ("ggml_vulkan: Device memory allocation of size 4096 failed.", "", 4096),
        ("unable to allocate CPU_REPACK buffer", RAM, 0),
        ("x: failed to allocate CUDA_Host buffer of size 8", RAM, 8),
        ("std::bad_alloc", "", 0),
    ],
)
def test_who_got_no_memory_and_how_much_it_was_is_found(said: str, device: str, asked: int) -> None:
    assert shortage_in(["noise", said, "more noise"]) == (device, asked)


def test_a_kill_while_loading_is_taken_for_want_of_memory_and_says_so() -> None:
    problem = loadlog.failure(["I fine"], model="m", engine="e", status=-signal.SIGKILL)
    assert isinstance(problem, MemoryShort)
    assert problem.device == RAM
    assert "want of memory" in problem.message
    crash = loadlog.failure(["I fine"], model="m", engine="e", status=-signal.SIGSEGV)
    assert not isinstance(crash, MachineProblem)


def test_a_start_that_the_judge_refuses_ends_before_it_loads_and_leaves_nothing(
    tmp_path: Path,
) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    engine = fake_engine(tmp_path, f"say({CARD!r}); say({HOST!r}); time.sleep(600)")
    refusal = MemoryShort("model.gguf: too large", device="Vulkan0", free_bytes=1)
    with pytest.raises(MemoryShort) as caught:
        start(engine, settings_for(model, port=free_port()), {}, refuses=lambda _: refusal)
    assert caught.value is refusal
    assert living_descendants() == []


def test_looking_first_is_one_word_for_a_llama_server_and_nothing_for_others(
    tmp_path: Path,
) -> None:
    engine = fake_engine(tmp_path, "")
    for is_first, word in ((False, "off"), (True, "on")):
        settings = settings_for(tmp_path / "m", tells_memory_first=is_first)
        argv = engine.launch(settings, {}).argv
        assert argv[argv.index("--fit") + 1] == word
