"""Tensor types, against the tables of the `gguf` package."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

import gguf
from hotset.core.tensortypes import REMOVED_TYPES, TENSOR_TYPES, TensorType, tensor_type_named

THEIRS = {int(kind): kind for kind in gguf.GGMLQuantizationType}


@pytest.mark.parametrize("number", sorted(set(TENSOR_TYPES) & set(THEIRS)))
def test_a_type_has_the_name_and_the_block_that_the_gguf_package_gives_it(number: int) -> None:
    ours, theirs = TENSOR_TYPES[number], THEIRS[number]

    assert ours.name == theirs.name
    # The package counts the two scales of Q8_1 as F32; ggml stores them as F16 (ggml-common.h).
    slip = 4 if ours.name == "Q8_1" else 0
    assert (ours.block_elements, ours.block_bytes + slip) == gguf.GGML_QUANT_SIZES[theirs]


def test_no_type_of_the_gguf_package_is_missing() -> None:
    assert set(THEIRS) <= set(TENSOR_TYPES)


def test_removed_numbers_are_not_in_use() -> None:
    assert not set(REMOVED_TYPES) & (set(TENSOR_TYPES) | set(THEIRS))


@pytest.mark.parametrize("ours", TENSOR_TYPES.values(), ids=lambda kind: kind.name)
def test_a_type_is_found_by_its_name_in_either_case(ours: TensorType) -> None:
    assert tensor_type_named(ours.name) is tensor_type_named(ours.name.lower()) is ours


def test_an_unknown_name_is_a_key_error() -> None:
    with pytest.raises(KeyError):
        tensor_type_named("Q9_9")


@given(st.sampled_from(sorted(TENSOR_TYPES)), st.integers(min_value=1, max_value=1000))
def test_a_row_takes_its_bits_per_weight(number: int, n_blocks: int) -> None:
    kind = TENSOR_TYPES[number]
    n_elements = n_blocks * kind.block_elements

    assert kind.row_bytes(n_elements) == pytest.approx(n_elements * kind.bits_per_weight / 8)


def test_types_that_stop_the_engine_are_marked() -> None:
    refused = {kind.name for kind in TENSOR_TYPES.values() if not kind.is_computable}

    assert refused == {"Q8_1", "Q8_K", "I8", "I16", "I64", "F64"}
