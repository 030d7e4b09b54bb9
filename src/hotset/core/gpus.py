"""Published memory bandwidths of graphics cards, for where a driver does not tell.

Source: the makers' product pages and data sheets, in GB/s (10^9); for notebook cards, where makers
publish a range, bus width times the usual data rate of the memory. They are upper limits: kernels
reach some 70 to 90 % of them. A card that is not listed here has no known bandwidth; that is better
than a guess, and `--gpu-bw` or a machine file can state it.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache

from hotset.core.units import GIB

__all__ = ["KnownGpu", "known_gpu", "known_gpus", "vendor_of", "words_of"]


@dataclass(frozen=True, slots=True)
class KnownGpu:
    """A row of the table.

    Attributes:
        name: the words by which a name is recognised, in lower case.
        bandwidth_bytes_s: of its own memory; None for graphics in the processor, which use the
            RAM's, whatever modules are in it.
        is_integrated: part of the processor, without memory of its own.
        memory_bytes: only with about this much memory; 0 for any.
    """

    name: str
    bandwidth_bytes_s: int | None
    is_integrated: bool = False
    memory_bytes: int = 0


# Words of the name, GB/s, and the memory in GiB where only that variant is meant (else 0).
_CARDS = (
    ("gtx 1050 ti", 112, 0),
    ("gtx 1060", 192, 3),
    ("gtx 1060", 192, 6),
    ("gtx 1070", 256, 0),
    ("gtx 1070 ti", 256, 0),
    ("gtx 1080", 320, 0),
    ("gtx 1080 ti", 484, 0),
    ("gtx 1650", 128, 0),
    ("gtx 1650 super", 192, 0),
    ("gtx 1660", 192, 0),
    ("gtx 1660 super", 336, 0),
    ("gtx 1660 ti", 288, 0),
    ("t1000", 160, 0),
    ("titan rtx", 672, 0),
    ("rtx 2060", 336, 0),
    ("rtx 2060 super", 448, 0),
    ("rtx 2070", 448, 0),
    ("rtx 2070 super", 448, 0),
    ("rtx 2080", 448, 0),
    ("rtx 2080 super", 496, 0),
    ("rtx 2080 ti", 616, 0),
    ("rtx 2050 laptop", 112, 0),
    ("rtx 3050", 168, 6),
    ("rtx 3050", 224, 8),
    ("rtx 3060", 240, 8),
    ("rtx 3060", 360, 12),
    ("rtx 3060 ti", 448, 0),
    ("rtx 3070", 448, 0),
    ("rtx 3070 ti", 608, 0),
    ("rtx 3080", 760, 10),
    ("rtx 3080", 912, 12),
    ("rtx 3080 ti", 912, 0),
    ("rtx 3090", 936, 0),
    ("rtx 3090 ti", 1008, 0),
    ("rtx 3060 laptop", 336, 0),
    ("rtx 3070 laptop", 448, 0),
    ("rtx 3080 laptop", 448, 0),
    ("rtx 4060", 272, 0),
    ("rtx 4060 ti", 288, 0),
    ("rtx 4070", 504, 0),
    ("rtx 4070 super", 504, 0),
    ("rtx 4070 ti", 504, 0),
    ("rtx 4070 ti super", 672, 0),
    ("rtx 4080", 717, 0),
    ("rtx 4080 super", 736, 0),
    ("rtx 4090", 1008, 0),
    ("rtx 4050 laptop", 192, 0),
    ("rtx 4060 laptop", 256, 0),
    ("rtx 4070 laptop", 256, 0),
    ("rtx 4080 laptop", 432, 0),
    ("rtx 4090 laptop", 576, 0),
    ("rtx 5050", 320, 0),
    ("rtx 5060", 448, 0),
    ("rtx 5060 ti", 448, 0),
    ("rtx 5070", 672, 0),
    ("rtx 5070 ti", 896, 0),
    ("rtx 5080", 960, 0),
    ("rtx 5090", 1792, 0),
    ("rtx 5070 ti laptop", 672, 0),
    ("rtx 5080 laptop", 896, 0),
    ("rtx 5090 laptop", 896, 0),
    ("quadro rtx 4000", 416, 0),
    ("quadro rtx 5000", 448, 0),
    ("quadro rtx 6000", 672, 0),
    ("rtx a2000", 288, 0),
    ("rtx a4000", 448, 0),
    ("rtx a5000", 768, 0),
    ("rtx a6000", 768, 0),
    ("rtx 6000 ada", 960, 0),
    ("rtx pro 6000 blackwell", 1792, 0),
    ("tesla p40", 346, 0),
    ("tesla p100", 732, 16),
    ("tesla v100", 900, 0),
    ("tesla t4", 320, 0),
    ("nvidia l4", 300, 0),
    ("l40s", 864, 0),
    ("nvidia a10", 600, 0),
    ("a100", 1555, 40),
    ("rx 570", 224, 0),
    ("rx 580", 256, 0),
    ("rx 5600 xt", 288, 0),
    ("rx 5700", 448, 0),
    ("rx 5700 xt", 448, 0),
    ("radeon vii", 1024, 0),
    ("instinct mi50", 1024, 0),
    ("instinct mi60", 1024, 0),
    ("rx 6600", 224, 0),
    ("rx 6600 xt", 256, 0),
    ("rx 6650 xt", 280, 0),
    ("rx 6700 xt", 384, 0),
    ("rx 6750 xt", 432, 0),
    ("rx 6800", 512, 0),
    ("rx 6800 xt", 512, 0),
    ("rx 6900 xt", 512, 0),
    ("rx 6950 xt", 576, 0),
    ("rx 7600", 288, 0),
    ("rx 7600 xt", 288, 0),
    ("rx 7700 xt", 432, 0),
    ("rx 7800 xt", 624, 0),
    ("rx 7900 gre", 576, 0),
    ("rx 7900 xt", 800, 0),
    ("rx 7900 xtx", 960, 0),
    ("pro w7800", 576, 0),
    ("pro w7900", 864, 0),
    ("rx 9060 xt", 320, 0),
    ("rx 9070", 640, 0),
    ("rx 9070 xt", 640, 0),
    ("ai pro r9700", 640, 0),
    ("arc a310", 124, 0),
    ("arc a380", 186, 0),
    ("arc a580", 512, 0),
    ("arc a750", 512, 0),
    ("arc a770", 512, 8),
    ("arc a770", 560, 16),
    ("arc b570", 380, 0),
    ("arc b580", 456, 0),
    ("arc pro b50", 224, 0),
    ("arc pro b60", 456, 0),
)

# These share RAM, but it is soldered and known. Where a name has been sold with two widths of
# memory, the narrower counts.
_WITH_KNOWN_RAM = (
    ("radeon 8050s", 256, 0),
    ("radeon 8060s", 256, 0),
    ("strix halo", 256, 0),
    ("arc 130v", 136, 0),
    ("arc 140v", 136, 0),
    ("gb10", 273, 0),
    ("apple m1", 68, 0),
    ("apple m1 pro", 200, 0),
    ("apple m1 max", 400, 0),
    ("apple m1 ultra", 800, 0),
    ("apple m2", 100, 0),
    ("apple m2 pro", 200, 0),
    ("apple m2 max", 400, 0),
    ("apple m2 ultra", 800, 0),
    ("apple m3", 100, 0),
    ("apple m3 pro", 150, 0),
    ("apple m3 max", 300, 0),
    ("apple m3 ultra", 819, 0),
    ("apple m4", 120, 0),
    ("apple m4 pro", 273, 0),
    ("apple m4 max", 410, 0),
)

# These share whatever RAM is in the slots.
_IN_PROCESSORS = (
    "radeon 610m",
    "radeon 660m",
    "radeon 680m",
    "radeon 740m",
    "radeon 760m",
    "radeon 780m",
    "radeon 840m",
    "radeon 860m",
    "radeon 880m",
    "radeon 890m",
    "radeon graphics",
    "vega 3",
    "vega 6",
    "vega 7",
    "vega 8",
    "vega 10",
    "vega 11",
    "uhd graphics",
    "hd graphics",
    "iris xe",
    "iris plus",
    "intel graphics",
    "arc graphics",
    "arc 140t",
)

# A word behind a card's number that makes it another card.
_OTHER_CARD = frozenset({"ti", "super", "xt", "xtx", "gre", "d", "ada", "blackwell"})
_OTHER_CARD |= {"pro", "max", "ultra", "sff"}
# A word anywhere in the name that does.
_NOTEBOOK = frozenset({"laptop", "mobile", "notebook"})

_MAKERS = {
    "nvidia": frozenset({"nvidia", "geforce", "rtx", "gtx", "quadro", "tesla"}),
    "amd": frozenset({"amd", "radeon", "rx", "instinct", "ryzen"}),
    "intel": frozenset({"intel", "arc", "iris", "uhd"}),
    "apple": frozenset({"apple"}),
}


@cache
def known_gpus() -> tuple[KnownGpu, ...]:
    """The whole table."""
    return (
        *(KnownGpu(n, gb_s * 10**9, memory_bytes=gib * GIB) for n, gb_s, gib in _CARDS),
        *(KnownGpu(n, gb_s * 10**9, is_integrated=True) for n, gb_s, _ in _WITH_KNOWN_RAM),
        *(KnownGpu(n, None, is_integrated=True) for n in _IN_PROCESSORS),
    )


def known_gpu(name: str, total_bytes: int) -> KnownGpu | None:
    """The table's row for a device, by the name that a driver, an engine or a person gives it.

    The row with the most words wins; "RTX 3060 Ti" is never taken for an "RTX 3060", nor a notebook
    card for the one of the same number in a slot. None where the table has no such card, and for
    a name that stands for several.

    Args:
        total_bytes: its memory, to tell variants of the same name apart.
    """
    if "/" in name:
        return None  # a list of chips names several products for one number
    words = words_of(name)
    fitting = [row for row in known_gpus() if _is_meant(row, words, total_bytes)]
    return max(fitting, key=lambda row: len(row.name.split()), default=None)


def vendor_of(name: str) -> str:
    """ "nvidia", "amd", "intel" or "apple", by the words in a device's name; "" if none tells."""
    words = set(words_of(name))
    return next((vendor for vendor, marks in _MAKERS.items() if marks & words), "")


def words_of(name: str) -> list[str]:
    """A device's name as words in lower case, without what drivers put in brackets behind it."""
    text = re.sub(r"\([^)]*\)", " ", name.lower())
    text = re.sub(r"\b(rtx|gtx|rx)(\d)", r"\1 \2", text)
    text = re.sub(r"(\d)(ti|xtx|xt|super|gre)\b", r"\1 \2", text)
    return re.findall(r"[a-z0-9]+", text)


def _is_meant(row: KnownGpu, words: list[str], total_bytes: int) -> bool:
    wanted = row.name.split()
    if _NOTEBOOK & set(words) != _NOTEBOOK & set(wanted):
        return False
    if row.memory_bytes and abs(total_bytes - row.memory_bytes) > row.memory_bytes // 8:
        return False
    for at in range(len(words) - len(wanted) + 1):
        end = at + len(wanted)
        if words[at:end] == wanted and not _OTHER_CARD & set(words[end : end + 1]):
            return True
    return False
