"""Sizes as people write and read them."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem
from hotset.core.units import (
    GIB,
    KIB,
    MIB,
    format_bytes,
    format_count,
    format_rate,
    parse_bytes,
    parse_tokens,
)


@pytest.mark.parametrize(
    ("text", "n_bytes"),
    [
        ("123", 123),
        ("7B", 7),
        ("8GiB", 8 * GIB),
        ("8g", 8 * GIB),
        ("8 GB", 8 * 10**9),
        ("1.5k", 1536),
        (" 1500MB ", 1500 * 10**6),
        ("2tib", 2048 * GIB),
        ("0.3", 0),
    ],
)
def test_a_size_is_read_as_memory_and_disks_are_sold(text: str, n_bytes: int) -> None:
    assert parse_bytes(text, what="--budget") == n_bytes


@pytest.mark.parametrize("text", ["", "GiB", "-1", "8 ib", "8i", "eight", "8GiBx", "1e9", "1.2.3"])
def test_what_is_no_size_is_refused_with_its_option_and_its_text(text: str) -> None:
    with pytest.raises(ConfigProblem) as caught:
        parse_bytes(text, what="--budget")

    assert caught.value.message.startswith(f"--budget: '{' '.join(text.split())}' is no size")


@given(st.integers(min_value=0, max_value=2**53))
def test_a_written_size_reads_back_to_within_its_last_digit(n_bytes: int) -> None:
    text = format_bytes(n_bytes)

    step = GIB if n_bytes >= GIB else MIB if n_bytes >= MIB else 10 * KIB if n_bytes >= KIB else 10
    assert abs(parse_bytes(text.replace(",", ""), what="size") - n_bytes) * 10 <= step


@pytest.mark.parametrize(
    ("n_bytes", "text"),
    [
        (0, "0 B"),
        (1023, "1023 B"),
        (1024, "1 KiB"),
        (96_600_000, "92.1 MiB"),
        (GIB, "1.0 GiB"),
        (2000 * GIB, "2,000.0 GiB"),
    ],
)
def test_a_size_is_written_in_the_unit_people_expect(n_bytes: int, text: str) -> None:
    assert format_bytes(n_bytes) == text


def test_counts_have_their_thousands_apart() -> None:
    assert format_count(262144) == "262,144"


@pytest.mark.parametrize(
    ("rate", "text"),
    [
        (960 * 10**9, "960 GB/s"),
        (1792 * 10**9, "1,792 GB/s"),
        (31_500_000_000, "32 GB/s"),
        (3_100_000_000, "3.1 GB/s"),
        (450_000_000, "450 MB/s"),
    ],
)
def test_rates_are_decimal_with_a_decimal_where_it_tells_something(rate: int, text: str) -> None:
    assert format_rate(rate) == text


def test_a_size_of_absurd_length_is_refused_and_decimals_are_exact() -> None:
    with pytest.raises(ConfigProblem, match="is no size"):
        parse_bytes("9" * 400 + "GiB", what="x")
    assert parse_bytes("1.001MB", what="x") == 1_001_000


@pytest.mark.parametrize(
    ("text", "n_tokens"),
    [("0", 0), ("32768", 32768), ("32k", 32768), (" 256 K ", 262144), ("1m", 2**20)],
)
def test_tokens_are_counted_in_binary_thousands(text: str, n_tokens: int) -> None:
    assert parse_tokens(text, what="--ctx") == n_tokens


@pytest.mark.parametrize("text", ["", "k", "-1", "1.5k", "32kb", "1g", "1e3", "all", "True"])
def test_what_is_no_number_of_tokens_is_refused_with_its_option_and_its_text(text: str) -> None:
    with pytest.raises(ConfigProblem, match=f"--ctx: '{text}' is no number of tokens"):
        parse_tokens(text, what="--ctx")
