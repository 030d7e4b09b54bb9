"""Bytes and counts: parsing what people write, writing what people read."""

from __future__ import annotations

import re
from fractions import Fraction

from hotset.core.errors import ConfigProblem

__all__ = [
    "GIB",
    "KIB",
    "MIB",
    "format_bytes",
    "format_count",
    "format_rate",
    "parse_bytes",
    "parse_tokens",
]

KIB = 1 << 10
MIB = 1 << 20
GIB = 1 << 30

_SIZE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt]?)(i?)(b?)\s*", re.IGNORECASE)
_TOKENS = re.compile(r"\s*(\d{1,18})\s*([km]?)\s*", re.IGNORECASE)
_POWER = {"": 0, "k": 1, "m": 2, "g": 3, "t": 4}


def parse_bytes(text: str, *, what: str) -> int:
    """Read a size such as ``8GiB``, ``8g``, ``1500MB`` or ``123``.

    ``MB`` is decimal (10^6) as disks and links are sold; ``MiB`` and the bare ``M`` are binary,
    as memory is. A bare number counts bytes.

    Args:
        text: what was written.
        what: the option or field, for the message.

    Returns:
        Bytes, rounded down.

    Raises:
        ConfigProblem: for anything else, naming `what` and `text`.
    """
    match = _SIZE.fullmatch(text)
    if match is None:
        raise ConfigProblem(f"{what}: '{text}' is no size; write it like 8GiB, 1500MB or 4g")
    number, prefix, binary, unit = match.groups()
    if binary and not prefix:
        raise ConfigProblem(f"{what}: '{text}' is no size; write it like 8GiB, 1500MB or 4g")
    base = 1000 if prefix and unit and not binary else 1024
    return int(Fraction(number) * base ** _POWER[prefix.lower()])


def parse_tokens(text: str, *, what: str) -> int:
    """Read a number of tokens such as ``32768``, ``32k`` or ``1m``; ``k`` is 1,024.

    Raises:
        ConfigProblem: for anything else, naming `what` and `text`.
    """
    match = _TOKENS.fullmatch(text)
    if match is None:
        raise ConfigProblem(f"{what}: '{text}' is no number of tokens; write it like 32768 or 32k")
    return int(match[1]) << 10 * _POWER[match[2].lower()]


def format_bytes(n_bytes: int) -> str:
    """GiB with one decimal from 1 GiB on, else MiB or KiB: ``16.9 GiB``, ``92.1 MiB``."""
    if n_bytes >= GIB:
        return f"{n_bytes / GIB:,.1f} GiB"
    if n_bytes >= MIB:
        return f"{n_bytes / MIB:.1f} MiB"
    if n_bytes >= KIB:
        return f"{n_bytes / KIB:.0f} KiB"
    return f"{n_bytes} B"


def format_count(n: int) -> str:
    """Thousands separated: ``262,144``."""
    return f"{n:,}"


def format_rate(bytes_s: int) -> str:
    """``60 GB/s``, ``3.1 GB/s``, ``450 MB/s``: decimal, as makers state bandwidths."""
    if bytes_s >= 10**10:
        return f"{bytes_s / 10**9:,.0f} GB/s"
    if bytes_s >= 10**9:
        return f"{bytes_s / 10**9:.1f} GB/s"
    return f"{bytes_s / 10**6:.0f} MB/s"
