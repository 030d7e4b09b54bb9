"""Random but valid data of every tensor type that the engine computes with, without a quantizer.

A block is random bytes with its scale fields overwritten, so that the values are finite, centred
on zero and of the wanted size. The layouts are those of ggml's src/ggml-common.h. All work is
done on whole byte planes (strided slices and `bytes.translate`), which the standard library
does at memory speed.
"""

from __future__ import annotations

import math
import random
import struct
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from statistics import NormalDist

from hotset.core.errors import ConfigProblem
from hotset.core.tensortypes import TensorType

__all__ = ["SYNTHETIC_TYPES", "Tile", "leaning_blocks", "random_blocks"]


def random_blocks(kind: TensorType, n_blocks: int, std: float, rng: random.Random) -> bytes:
    """`n_blocks` blocks whose values have mean 0 and about the standard deviation `std`.

    Raises:
        ConfigProblem: for a type that has no values to compute with (F64, Q8_K, I8 ...).
    """
    maker = _MAKERS.get(kind.name)
    if maker is None:
        known = ", ".join(SYNTHETIC_TYPES)
        raise ConfigProblem(
            f"tensor type {kind.name}: the engine has no product for it; choose one of {known}"
        )
    planes = bytearray(rng.randbytes(n_blocks * kind.block_bytes))
    maker(planes, rng.randbytes(n_blocks), std)
    return bytes(planes)


def leaning_blocks(n_blocks: int, std: float, lean: float, rng: random.Random) -> bytes:
    """Q8_0 blocks around lean * std at even places and its negative at odd ones.

    `std` is about the deviation from that. A vector of both signs, because weights of some types
    have a small mean, which would add up along a vector of one sign.
    """
    # Uniform quants from `lowest` to 127: their mean is `lean` times their deviation.
    reach = 2 * lean / (math.sqrt(3) + lean)
    lowest = round(-127 * (1 - reach))
    quants = [round(lowest + (127 - lowest) * i / 255) for i in range(256)]
    tables = (bytes(q & 255 for q in quants), bytes(-q & 255 for q in quants))
    planes = bytearray(rng.randbytes(n_blocks * _Q8_0_BYTES))
    for i in range(2, _Q8_0_BYTES):
        planes[i::_Q8_0_BYTES] = planes[i::_Q8_0_BYTES].translate(tables[i % 2])
    _Halves(_Q8_0_BYTES, (127 - lowest) / math.sqrt(12))(planes, rng.randbytes(n_blocks), std)
    return bytes(planes)


class Tile:
    """A stretch of random blocks that many tensors share, each starting at a block of its own.

    Generating costs far more than copying: one tile per type and size of values fills gigabytes
    at the speed of the disk, and no two experts start at the same block but by chance.
    """

    def __init__(
        self, kind: TensorType, std: float, seed: str, n_blocks: int, *, lean: float = 0.0
    ) -> None:
        self._block_bytes = kind.block_bytes
        self._n_blocks = n_blocks
        rng = random.Random(seed)
        self._data = memoryview(
            leaning_blocks(n_blocks, std, lean, rng)
            if lean
            else random_blocks(kind, n_blocks, std, rng)
        )

    def stream(self, n_blocks: int, rng: random.Random) -> Iterator[memoryview]:
        """Chunks of `n_blocks` blocks together; each chunk starts where `rng` says."""
        left = n_blocks
        while left:
            start = rng.randrange(self._n_blocks)
            count = min(left, self._n_blocks - start)
            yield self._data[start * self._block_bytes : (start + count) * self._block_bytes]
            left -= count


_Maker = Callable[[bytearray, bytes, float], None]
"""Overwrites the scale fields in the blocks; gets one random byte per block, and the std."""


def _plane_tables(values: list[bytes]) -> list[bytes]:
    """Turn 256 fixed-length values into one `bytes.translate` table per byte of the value."""
    return [bytes(value[i] for value in values) for i in range(len(values[0]))]


def _spread(scale: float) -> list[float]:
    """256 scales from half to one and a half of `scale`, so that blocks differ in size too."""
    return [scale * (0.5 + i / 255) for i in range(256)]


@dataclass(frozen=True, slots=True)
class _Halves:
    """A type whose scales are f16 fields at fixed places.

    Attributes:
        size: block bytes.
        unit_std: standard deviation of the values when the scale is 1 (with `_spread`).
        fields: (offset, factor): an f16 of factor * scale at that offset. The factors of minima
            are the mean of the quants, which centres the values on zero.
        alternates: the scale's sign alternates, where the quants alone have a mean (-8..7).
        legal: a translate table for the quants, where not every bit pattern is one.
    """

    size: int
    unit_std: float
    fields: tuple[tuple[int, float], ...] = ((0, 1.0),)
    alternates: bool = False
    legal: bytes | None = None

    def __call__(self, planes: bytearray, dice: bytes, std: float) -> None:
        if self.legal is not None:
            planes[:] = planes.translate(self.legal)
        scales = _spread(std / self.unit_std)
        if self.alternates:
            scales = [-s if i % 2 else s for i, s in enumerate(scales)]
        for offset, factor in self.fields:
            low, high = _plane_tables([struct.pack("<e", s * factor) for s in scales])
            planes[offset :: self.size] = dice.translate(low)
            planes[offset + 1 :: self.size] = dice.translate(high)


def _normal_values(std: float) -> list[float]:
    """The 256 middle quantiles of a normal distribution."""
    normal = NormalDist(0.0, std)
    return [normal.inv_cdf((i + 0.5) / 256) for i in range(256)]


def _f32(planes: bytearray, dice: bytes, std: float) -> None:
    # The upper two bytes carry the value, the random lower two only make it unique.
    tables = _plane_tables([struct.pack("<f", v) for v in _normal_values(std)])
    planes[2::4] = dice.translate(tables[2])
    planes[3::4] = dice.translate(tables[3])


def _f16(planes: bytearray, dice: bytes, std: float) -> None:
    # The upper byte carries the value to a quarter of an octave, the lower one stays random.
    tables = _plane_tables([struct.pack("<e", v) for v in _normal_values(std)])
    planes[1::2] = dice.translate(tables[1])


def _bf16(planes: bytearray, dice: bytes, std: float) -> None:
    tables = _plane_tables([struct.pack("<f", v) for v in _normal_values(std)])
    planes[0::2] = dice.translate(tables[2])
    planes[1::2] = dice.translate(tables[3])


_FP4_RMS = math.sqrt(sum(v * v for v in (0, 1, 2, 3, 4, 6, 8, 12)) / 8)
"""Root mean square of ggml's doubled E2M1 values."""


def _mxfp4(planes: bytearray, dice: bytes, std: float) -> None:
    # E8M0 is a power of two alone: two neighbours, mixed in the share that gives the size.
    wanted = math.log2(std / _FP4_RMS) + 128
    low = math.floor(wanted)
    ratio = 4.0 ** (wanted - low)
    n_high = round(256 * (ratio - 1) / 3)
    planes[0::17] = dice.translate(bytes(low + (i < n_high) for i in range(256)))


def _nvfp4(planes: bytearray, dice: bytes, std: float) -> None:
    scales = bytes(_nearest_ue4m3(s) for s in _spread(std / _FP4_RMS))
    for i in range(4):
        planes[i::36] = dice.translate(scales[64 * i :] + scales[: 64 * i])


def _nearest_ue4m3(value: float) -> int:
    return min(range(1, 0x7F), key=lambda code: abs(_ue4m3(code) - value))


def _ue4m3(code: int) -> float:
    """Half the E4M3 value, as ggml's kernels take it (ggml_ue4m3_to_fp32)."""
    exponent, mantissa = code >> 3, code & 7
    if exponent == 0:
        return math.ldexp(mantissa, -10)
    return math.ldexp(1 + mantissa / 8, exponent - 8)


_Q8_0_BYTES = 34
_IQ1_M_UNIT_STD = 7.43


def _iq1_m(planes: bytearray, dice: bytes, std: float) -> None:
    # The f16 scale is spread over the upper nibbles of four 16-bit words from byte 48 on.
    scales = _spread(std / _IQ1_M_UNIT_STD)
    (codes,) = zip(*(struct.unpack("<H", struct.pack("<e", s)) for s in scales), strict=True)
    for word in range(4):
        offset = 49 + 2 * word
        upper = dice.translate(bytes((code >> (4 * word) & 15) << 4 for code in codes))
        lower = planes[offset::56].translate(bytes(i & 15 for i in range(256)))
        mixed = int.from_bytes(upper, "little") | int.from_bytes(lower, "little")
        planes[offset::56] = mixed.to_bytes(len(dice), "little")


def _without_three(byte: int) -> int:
    """The byte with every 2-bit group of 3 (no ternary value) turned into 0."""
    return sum(pair << s for s in (0, 2, 4, 6) if (pair := byte >> s & 3) != 3)


_TERNARY = bytes(_without_three(i) for i in range(256))

_MAKERS: dict[str, _Maker] = {
    "F32": _f32,
    "F16": _f16,
    "BF16": _bf16,
    "Q4_0": _Halves(18, 4.8, alternates=True),
    "Q4_1": _Halves(20, 4.77, fields=((0, 1.0), (2, -7.5))),
    "Q5_0": _Halves(22, 9.55, alternates=True),
    "Q5_1": _Halves(24, 9.55, fields=((0, 1.0), (2, -15.5))),
    "Q8_0": _Halves(34, 76.3, alternates=True),
    "Q2_K": _Halves(84, 14.3, fields=((80, 1.0), (82, 1.5))),
    "Q3_K": _Halves(110, 44.8, fields=((108, 1.0),)),
    "Q4_K": _Halves(144, 267, fields=((0, 1.0), (2, 7.5))),
    "Q5_K": _Halves(176, 541, fields=((0, 1.0), (2, 15.5))),
    "Q6_K": _Halves(210, 1411, fields=((208, 1.0),)),
    "IQ1_S": _Halves(50, 7.45),
    "IQ1_M": _iq1_m,
    "IQ2_XXS": _Halves(66, 55.5),
    "IQ2_XS": _Halves(74, 57.8),
    "IQ2_S": _Halves(82, 58.2),
    "IQ3_XXS": _Halves(98, 147),
    "IQ3_S": _Halves(110, 144),
    "IQ4_NL": _Halves(18, 69.9, alternates=True),
    "IQ4_XS": _Halves(136, 1289),
    "TQ1_0": _Halves(54, 0.845, fields=((52, 1.0),)),
    "TQ2_0": _Halves(66, 0.9, fields=((64, 1.0),), alternates=True, legal=_TERNARY),
    "MXFP4": _mxfp4,
    "NVFP4": _nvfp4,
    "Q1_0": _Halves(18, 1.04),
    "Q2_0": _Halves(18, 1.27, alternates=True),
}

SYNTHETIC_TYPES: tuple[str, ...] = tuple(_MAKERS)
"""Names of the types that `random_blocks` knows."""
