"""The engine's log, line by line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import HotsetError
from hotset.core.loaded import Buffer, BufferKind, CacheReport
from hotset.core.units import MIB
from hotset.engine.loadlog import failure, loaded_from, phase_of

WINDOW = """\
0.00.170.201 I load_tensors:   CPU_Mapped model buffer size =    92.10 MiB
0.00.227.310 I load_tensors:        CUDA0 model buffer size =  1024.00 MiB
0.00.232.058 I llama_context:        CPU  output buffer size =     0.19 MiB
0.00.232.100 I llama_kv_cache:      CUDA0 KV buffer size =   180.00 MiB
0.00.328.428 I llama_kv_cache: size =  180.00 MiB (  8192 cells,  30 layers,  1/1 seqs), K (f16):   90.00 MiB, V (q8_0):   90.00 MiB
0.00.328.428 I llama_kv_cache: size =    2.25 MiB (   512 cells,   4 layers,  3/3 seqs), K (f16):    2.25 MiB
0.00.328.428 I llama_memory_recurrent:        CPU RS buffer size =    12.50 MiB
0.00.328.500 I llama_memory_recurrent: size =   12.50 MiB (     3 cells,   8 layers,  3 seqs  0 rs_seq), R (f32):    0.50 MiB, S (f32):   12.00 MiB, P (f32):    0.00 MiB
0.00.336.474 I sched_reserve:        CPU compute buffer size =    22.64 MiB
0.00.500.109 I srv    load_model: initializing, n_slots = 3, n_ctx_slot = 8192, kv_unified = 'false'
"""  # noqa: E501 - the engine's own lines


def test_buffers_caches_slots_and_context_are_read() -> None:
    loaded = loaded_from(WINDOW.splitlines(), build="b1", start_s=1.5)
    assert loaded.buffers == (
        Buffer("CPU_Mapped", BufferKind.MODEL, round(92.10 * MIB)),
        Buffer("CUDA0", BufferKind.MODEL, 1024 * MIB),
        Buffer("CPU", BufferKind.OUTPUT, round(0.19 * MIB)),
        Buffer("CUDA0", BufferKind.KV, 180 * MIB),
        Buffer("CPU", BufferKind.RECURRENT, round(12.5 * MIB)),
        Buffer("CPU", BufferKind.COMPUTE, round(22.64 * MIB)),
    )
    assert loaded.caches == (
        CacheReport(BufferKind.KV, 8192, 30, "f16", "q8_0", 180 * MIB),
        CacheReport(BufferKind.KV, 512, 4, "f16", "", round(2.25 * MIB)),
        CacheReport(BufferKind.RECURRENT, 3, 8, "f32", "f32", round(12.5 * MIB)),
    )
    assert (loaded.slots, loaded.context_tokens, loaded.start_s) == (3, 8192, 1.5)


@given(st.lists(st.text()), st.one_of(st.none(), st.integers(-64, 255)))
def test_any_output_is_survived_and_a_failure_is_always_one_line(
    lines: list[str], status: int | None
) -> None:
    loaded_from(lines, build="b1", start_s=0)
    problem = failure(lines, model="m.gguf", engine="e", status=status)
    assert isinstance(problem, HotsetError)
    assert problem.message.startswith("m.gguf: ")
    assert "\n" not in problem.message
    assert len(problem.message) < 1000
    for line in lines:
        phase_of(line)


@pytest.mark.parametrize(
    ("status", "said"),
    [(None, "stopped responding"), (1, "ended with status 1"), (-11, "killed by signal 11")],
)
def test_a_silent_end_says_how_it_ended(status: int | None, said: str) -> None:
    assert said in failure([], model="m", engine="e", status=status).message


def test_of_several_errors_the_first_cause_is_told() -> None:
    lines = [
        "0.00.1.1 I srv init: all is well",
        "0.00.1.2 E common: failed because of the first cause",
        "0.00.1.3 E srv: exiting due to an error",
    ]
    message = failure(lines, model="m", engine="e", status=1).message
    assert "the first cause" in message
    assert "all is well" not in message
