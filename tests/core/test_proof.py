"""A plan against the engine's own account."""

from __future__ import annotations

from hotset.core.experience import RAM
from hotset.core.loaded import Buffer, BufferKind, Loaded
from hotset.core.proof import Planned, accounts, deviations
from hotset.core.units import MIB


def loaded(*buffers: tuple[str, BufferKind, int]) -> Loaded:
    found = tuple(Buffer(device, kind, mib * MIB) for device, kind, mib in buffers)
    return Loaded(build="b", slots=1, context_tokens=1, buffers=found, caches=(), start_s=1.0)


ENGINE = loaded(
    ("CPU_Mapped", BufferKind.MODEL, 900),
    ("CUDA0", BufferKind.MODEL, 5000),
    ("CUDA_Host", BufferKind.OUTPUT, 1),
    ("CUDA0", BufferKind.KV, 700),
    ("CUDA0", BufferKind.RECURRENT, 60),
    ("CPU", BufferKind.KV, 40),
    ("CUDA0", BufferKind.COMPUTE, 300),
    ("CUDA_Host", BufferKind.COMPUTE, 24),
)


def test_everything_that_is_on_no_card_is_in_ram_whatever_the_engine_calls_it() -> None:
    card, ram = accounts(
        [Planned("CUDA0", 5000 * MIB, 760 * MIB, 320 * MIB), Planned(RAM, None, 0, 0)], ENGINE
    )
    assert (card.model, card.context, card.compute) == (5000 * MIB, 760 * MIB, 300 * MIB)
    assert (ram.planned_model, ram.model) == (None, None)
    assert (ram.context, ram.compute) == (40 * MIB, 25 * MIB)
    total = sum(buffer.n_bytes for buffer in ENGINE.buffers) - 900 * MIB
    taken = (card.model or 0) + card.context + card.compute + ram.context + ram.compute
    assert taken == total


def test_only_what_is_beyond_the_tolerance_is_told_with_both_numbers() -> None:
    near = [Planned("CUDA0", 5000 * MIB + 9, 760 * MIB, 360 * MIB), Planned(RAM, None, 40 * MIB, 0)]
    assert deviations(accounts(near, ENGINE)) == []
    far = [Planned("CUDA0", 4000 * MIB, 500 * MIB, 100 * MIB), Planned(RAM, None, 0, 200 * MIB)]
    said = deviations(accounts(far, ENGINE))
    assert [line.split(",")[0] for line in said] == [
        "CUDA0 weights 4.9 GiB", "CUDA0 KV and state 760.0 MiB", "CUDA0 compute 300.0 MiB",
        "RAM KV and state 40.0 MiB", "RAM compute 25.0 MiB",
    ]  # fmt: skip
    assert all("planned" in line for line in said)


def test_large_buffers_may_differ_by_a_tenth() -> None:
    large = loaded(("CUDA0", BufferKind.COMPUTE, 2000))
    for planned, is_told in ((2150, False), (2250, True), (1850, False), (1750, True)):
        found = accounts([Planned("CUDA0", None, 0, planned * MIB)], large)
        assert bool(deviations(found)) == is_told
