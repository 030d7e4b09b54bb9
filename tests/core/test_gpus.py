"""The table of published bandwidths, and how a card is found in it."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.gpus import known_gpu, known_gpus, vendor_of
from hotset.core.units import GIB

# Name as a driver or an engine gives it, GiB, bits of the bus, Gbit/s per pin: data sheets again,
# but by the two numbers whose product the bandwidth must be.
BUSES = [
    ("NVIDIA GeForce RTX 2060", 6, 192, 14.0),
    ("NVIDIA GeForce RTX 2080 Ti", 11, 352, 14.0),
    ("NVIDIA GeForce RTX 3060", 12, 192, 15.0),
    ("NVIDIA GeForce RTX 3060 Ti", 8, 256, 14.0),
    ("NVIDIA GeForce RTX 3070 Ti", 8, 256, 19.0),
    ("NVIDIA GeForce RTX 3080", 10, 320, 19.0),
    ("NVIDIA GeForce RTX 3090", 24, 384, 19.5),
    ("NVIDIA GeForce RTX 4060 Ti", 16, 128, 18.0),
    ("NVIDIA GeForce RTX 4070", 12, 192, 21.0),
    ("NVIDIA GeForce RTX 4080 SUPER", 16, 256, 23.0),
    ("NVIDIA GeForce RTX 4090", 24, 384, 21.0),
    ("NVIDIA GeForce RTX 4090 Laptop GPU", 16, 256, 18.0),
    ("NVIDIA GeForce RTX 5060 Ti", 16, 128, 28.0),
    ("NVIDIA GeForce RTX 5070", 12, 192, 28.0),
    ("NVIDIA GeForce RTX 5080", 16, 256, 30.0),
    ("NVIDIA GeForce RTX 5090", 32, 512, 28.0),
    ("NVIDIA RTX 6000 Ada Generation", 48, 384, 20.0),
    ("AMD Radeon RX 6600 (RADV NAVI23)", 8, 128, 14.0),
    ("AMD Radeon RX 6800 XT", 16, 256, 16.0),
    ("AMD Radeon RX 7600", 8, 128, 18.0),
    ("AMD Radeon RX 7800 XT (RADV NAVI32)", 16, 256, 19.5),
    ("AMD Radeon RX 7900 XTX", 24, 384, 20.0),
    ("AMD Radeon RX 9070 XT (RADV GFX1201)", 16, 256, 20.0),
    ("Intel(R) Arc(tm) A770 Graphics (DG2)", 16, 256, 17.5),
    ("Intel(R) Arc(tm) B580 Graphics (BMG G21)", 12, 192, 19.0),
    ("AMD Radeon 8060S Graphics (RADV GFX1151)", 96, 256, 8.0),
    ("Apple M4 Pro", 24, 256, 8.533),
]


@pytest.mark.parametrize(("name", "gib", "bits", "gbit_s"), BUSES)
def test_the_bandwidth_is_the_bus_times_the_data_rate(
    name: str, gib: int, bits: int, gbit_s: float
) -> None:
    known = known_gpu(name, gib * GIB)
    assert known is not None
    assert known.bandwidth_bytes_s is not None
    assert known.bandwidth_bytes_s == pytest.approx(bits / 8 * gbit_s * 1e9, rel=0.01)


@pytest.mark.parametrize(
    ("name", "gib", "expected"),
    [
        ("RTX 3060 Ti", 8, "rtx 3060 ti"),
        ("rtx3060ti", 8, "rtx 3060 ti"),
        ("RTX 4070 Ti SUPER", 16, "rtx 4070 ti super"),
        ("NVIDIA GeForce RTX 3080 Laptop GPU", 16, "rtx 3080 laptop"),
        ("NVIDIA GeForce RTX 3050 Laptop GPU", 4, None),
        ("Radeon RX 7900 XT", 20, "rx 7900 xt"),
        ("AMD Radeon RX 7600M XT", 8, None),
        ("NVIDIA RTX 4000 SFF Ada Generation", 20, None),
        ("NVIDIA GeForce RTX 5090 D", 32, None),
        ("NVIDIA GeForce RTX 3060", 8, "rtx 3060"),
        ("NVIDIA GeForce RTX 3060", 48, None),
        ("Apple M3 Max", 36, "apple m3 max"),
        ("AMD Radeon Graphics (RADV REMBRANDT)", 12, "radeon graphics"),
        ("llvmpipe (LLVM 15.0.6, 256 bits)", 10, None),
        ("Radeon RX 7900 XT/7900 XTX/7900M", 24, None),
        ("", 16, None),
    ],
)
def test_a_card_is_its_own_row_or_none(name: str, gib: int, expected: str | None) -> None:
    known = known_gpu(name, gib * GIB)
    assert (known.name if known else None) == expected


def test_variants_of_one_name_differ_by_their_memory() -> None:
    small, large = known_gpu("RTX 3060", 8 * GIB), known_gpu("RTX 3060", 12 * GIB)
    assert small is not None
    assert large is not None
    assert small.bandwidth_bytes_s != large.bandwidth_bytes_s
    # Drivers report somewhat less than the sum of the chips.
    assert known_gpu("RTX 3060", 12 * GIB - 300_000_000) == large


@pytest.mark.parametrize("row", known_gpus(), ids=lambda row: f"{row.name} {row.memory_bytes}")
def test_every_row_is_found_by_its_own_name_and_within_what_was_ever_built(row: object) -> None:
    assert isinstance(row, type(known_gpus()[0]))
    assert known_gpu(row.name, row.memory_bytes or 16 * GIB) == row
    if row.bandwidth_bytes_s is None:
        assert row.is_integrated
    else:
        assert 50e9 <= row.bandwidth_bytes_s <= 2e12


@given(st.text(max_size=40), st.integers(0, 1 << 50))
def test_any_name_is_a_row_or_none_and_the_case_of_letters_makes_no_difference(
    name: str, total: int
) -> None:
    known = known_gpu(name, total)
    if name.isascii():
        assert known_gpu(name.upper(), total) == known
        assert vendor_of(name.upper()) == vendor_of(name)


@pytest.mark.parametrize(
    ("name", "vendor"),
    [
        ("NVIDIA GeForce RTX 5090", "nvidia"),
        ("RTX 3060", "nvidia"),
        ("RX 9070 XT", "amd"),
        ("AMD Radeon Graphics (RADV RAPHAEL_MENDOCINO)", "amd"),
        ("Intel(R) Arc(tm) B580 Graphics", "intel"),
        ("Apple M1 Pro", "apple"),
        ("llvmpipe", ""),
    ],
)
def test_the_maker_is_read_off_the_name(name: str, vendor: str) -> None:
    assert vendor_of(name) == vendor
