"""The tensor types of ggml: number, block size in elements, block size in bytes.

Source: `enum ggml_type` and the block structures of ggml (include/ggml.h, src/ggml-common.h).
Cross-checked in the tests against the `gguf` package for every type that it knows.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["REMOVED_TYPES", "TENSOR_TYPES", "TensorType", "tensor_type_named"]


@dataclass(frozen=True, slots=True)
class TensorType:
    """One storage type.

    Attributes:
        number: its value in a GGUF file.
        name: as ggml writes it, in capitals (``Q4_K``).
        block_elements: elements per block; the first dimension must be a multiple of it.
        block_bytes: bytes per block.
        is_computable: whether the engine can use a weight of this type. It crashes on F64 and
            has no product for the others, so such files are refused before a start.
    """

    number: int
    name: str
    block_elements: int
    block_bytes: int
    is_computable: bool = True

    def row_bytes(self, n_elements: int) -> int:
        """Bytes of a row of `n_elements`, a multiple of `block_elements`."""
        return n_elements // self.block_elements * self.block_bytes

    @property
    def bits_per_weight(self) -> float:
        return self.block_bytes * 8 / self.block_elements


_TYPES = (
    TensorType(0, "F32", 1, 4),
    TensorType(1, "F16", 1, 2),
    TensorType(2, "Q4_0", 32, 18),
    TensorType(3, "Q4_1", 32, 20),
    TensorType(6, "Q5_0", 32, 22),
    TensorType(7, "Q5_1", 32, 24),
    TensorType(8, "Q8_0", 32, 34),
    TensorType(9, "Q8_1", 32, 36, is_computable=False),
    TensorType(10, "Q2_K", 256, 84),
    TensorType(11, "Q3_K", 256, 110),
    TensorType(12, "Q4_K", 256, 144),
    TensorType(13, "Q5_K", 256, 176),
    TensorType(14, "Q6_K", 256, 210),
    TensorType(15, "Q8_K", 256, 292, is_computable=False),
    TensorType(16, "IQ2_XXS", 256, 66),
    TensorType(17, "IQ2_XS", 256, 74),
    TensorType(18, "IQ3_XXS", 256, 98),
    TensorType(19, "IQ1_S", 256, 50),
    TensorType(20, "IQ4_NL", 32, 18),
    TensorType(21, "IQ3_S", 256, 110),
    TensorType(22, "IQ2_S", 256, 82),
    TensorType(23, "IQ4_XS", 256, 136),
    TensorType(24, "I8", 1, 1, is_computable=False),
    TensorType(25, "I16", 1, 2, is_computable=False),
    TensorType(26, "I32", 1, 4),
    TensorType(27, "I64", 1, 8, is_computable=False),
    TensorType(28, "F64", 1, 8, is_computable=False),
    TensorType(29, "IQ1_M", 256, 56),
    TensorType(30, "BF16", 1, 2),
    TensorType(34, "TQ1_0", 256, 54),
    TensorType(35, "TQ2_0", 256, 66),
    TensorType(39, "MXFP4", 32, 17),
    TensorType(40, "NVFP4", 64, 36),
    TensorType(41, "Q1_0", 128, 18),
    TensorType(42, "Q2_0", 64, 18),
)

TENSOR_TYPES: dict[int, TensorType] = {t.number: t for t in _TYPES}
"""By the number in the file."""

REMOVED_TYPES: dict[int, str] = {
    4: "Q4_2",
    5: "Q4_3",
    31: "Q4_0_4_4",
    32: "Q4_0_4_8",
    33: "Q4_0_8_8",
    36: "IQ4_NL_4_4",
    37: "IQ4_NL_4_8",
    38: "IQ4_NL_8_8",
}
"""Numbers that ggml once used and no longer reads."""

_BY_NAME = {t.name: t for t in _TYPES}


def tensor_type_named(name: str) -> TensorType:
    """The type called `name`, in either case.

    Raises:
        KeyError: for an unknown name.
    """
    return _BY_NAME[name.upper()]
