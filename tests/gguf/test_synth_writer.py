"""The GGUF writer against the gguf package's reader."""

from __future__ import annotations

import os
import random
import resource
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.synth.writer import (
    TensorEntry,
    Typed,
    Value,
    ValueType,
    shard_paths,
    write_gguf,
    write_shards,
)
from synthkit import read_gguf

_INTEGERS = {
    ValueType.UINT8: (0, 2**8 - 1),
    ValueType.INT8: (-(2**7), 2**7 - 1),
    ValueType.UINT16: (0, 2**16 - 1),
    ValueType.INT16: (-(2**15), 2**15 - 1),
    ValueType.UINT32: (0, 2**32 - 1),
    ValueType.INT32: (-(2**31), 2**31 - 1),
    ValueType.UINT64: (0, 2**64 - 1),
    ValueType.INT64: (-(2**63), 2**63 - 1),
}
_text = st.text(st.characters(exclude_categories=["Cs"]), max_size=20)


def _scalars(kind: ValueType) -> st.SearchStrategy[bool | int | float | str]:
    if kind is ValueType.BOOL:
        return st.booleans()
    if kind is ValueType.STRING:
        return _text
    if kind in (ValueType.FLOAT32, ValueType.FLOAT64):
        return st.floats(allow_nan=False, width=32 if kind is ValueType.FLOAT32 else 64)
    return st.integers(*_INTEGERS[kind])


_KINDS = st.sampled_from([kind for kind in ValueType if kind is not ValueType.ARRAY])
_typed_scalars = _KINDS.flatmap(lambda kind: _scalars(kind).map(lambda v: Typed(kind, v)))
_typed_arrays = _KINDS.flatmap(
    lambda kind: st.lists(_scalars(kind), min_size=1, max_size=5).map(lambda v: Typed(kind, v))
)


def entry(name: str, shape: tuple[int, ...], kind: str, data: bytes | None) -> TensorEntry:
    """A tensor with its bytes given in two chunks, as writers of large ones give theirs."""
    if data is None:
        return TensorEntry(name, shape, tensor_type_named(kind))
    half = len(data) // 2
    return TensorEntry(name, shape, tensor_type_named(kind), lambda: [data[:half], data[half:]])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    metadata=st.dictionaries(st.from_regex(r"\A[a-z]+\.[a-z_]+\Z"), _typed_scalars | _typed_arrays)
)
def test_any_metadata_reads_back_with_its_type_and_value(
    tmp_path: Path, metadata: dict[str, Value]
) -> None:
    metadata["general.architecture"] = "any"
    path = tmp_path / "m.gguf"
    write_gguf(path, metadata, [])
    fields = read_gguf(path).fields
    for key, value in metadata.items():
        typed = value if isinstance(value, Typed) else Typed(ValueType.STRING, str(value))
        is_array = isinstance(typed.value, list)
        types = [int(t) for t in fields[key].types]
        assert types == ([ValueType.ARRAY, typed.type] if is_array else [typed.type])
        assert fields[key].contents() == typed.value


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(
    shapes=st.lists(
        st.tuples(st.integers(1, 3), st.integers(1, 4), st.integers(1, 3)), min_size=1, max_size=6
    ),
    kinds=st.lists(st.sampled_from(["F32", "F16", "Q4_0", "Q6_K"]), min_size=6, max_size=6),
    alignment=st.sampled_from([8, 32, 64, 256]),
)
def test_any_tensors_read_back_with_their_place_shape_and_bytes(
    tmp_path: Path, shapes: list[tuple[int, int, int]], kinds: list[str], alignment: int
) -> None:
    rng = random.Random(str(shapes))
    tensors, contents = [], []
    for number, ((blocks, rows, depth), kind) in enumerate(zip(shapes, kinds, strict=False)):
        shape = (blocks * tensor_type_named(kind).block_elements, rows, depth)
        data = rng.randbytes(entry("", shape, kind, None).n_bytes)
        contents.append(data)
        tensors.append(entry(f"t{number}", shape, kind, data))
    path = tmp_path / "t.gguf"
    write_gguf(path, {"general.architecture": "any"}, tensors, alignment=alignment)
    reader = read_gguf(path)
    assert reader.alignment == alignment
    assert [t.name for t in reader.tensors] == [t.name for t in tensors]
    for found, wanted, data in zip(reader.tensors, tensors, contents, strict=True):
        assert tuple(map(int, found.shape)) == wanted.shape
        assert found.tensor_type.name == wanted.type.name
        assert found.data_offset % alignment == 0
        assert found.data.tobytes() == data


def test_plain_values_get_the_types_that_llama_cpp_expects(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    plain: Mapping[str, Value] = {
        "a.flag": True, "a.count": 3, "a.scale": 0.5, "a.name": "x", "a.words": ["x", "y"],
        "a.heads": (4, 0),
    }  # fmt: skip
    write_gguf(path, plain, [])
    fields = read_gguf(path).fields
    names = {key: [t.name for t in fields[key].types] for key in plain}
    assert names == {
        "a.flag": ["BOOL"],
        "a.count": ["UINT32"],
        "a.scale": ["FLOAT32"],
        "a.name": ["STRING"],
        "a.words": ["ARRAY", "STRING"],
        "a.heads": ["ARRAY", "UINT32"],
    }


def test_an_array_of_strings_may_be_empty_when_its_type_is_stated(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    write_gguf(path, {"a.words": Typed(ValueType.STRING, []), "a.after": 7}, [])
    assert read_gguf(path).fields["a.after"].contents() == 7


def test_a_row_that_blocks_do_not_divide_is_refused() -> None:
    with pytest.raises(ValueError, match="33 elements per row"):
        entry("t", (33, 2), "Q4_0", None)


def test_a_hole_reads_as_zeros_and_costs_no_disk(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    tensors = [
        entry("hole", (1 << 20, 256), "F32", None),
        entry("data", (32,), "F32", bytes(range(128))),
        entry("tail", (1 << 20, 256), "F32", None),
    ]
    write_gguf(path, {"general.architecture": "any"}, tensors)
    stat = path.stat()
    assert stat.st_size > 2 << 30
    assert stat.st_blocks * 512 < 1 << 20
    hole, data, tail = read_gguf(path).tensors
    assert data.data.tobytes() == bytes(range(128))
    assert not hole.data[0].any()
    assert not tail.data[-1].any()
    assert tail.data_offset + tail.n_bytes == stat.st_size


def test_data_of_another_length_than_the_shape_says_leaves_no_file(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="t: 5 bytes of data, 128 expected"):
        write_gguf(tmp_path / "m.gguf", {}, [entry("t", (32,), "F32", b"short")])
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_keeps_the_file_that_was_there(tmp_path: Path) -> None:
    path = tmp_path / "m.gguf"
    path.write_text("before")
    with pytest.raises(ValueError, match="bytes of data"):
        write_gguf(path, {}, [entry("t", (32,), "F32", b"short")])
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


@contextmanager
def _file_size_limit(n_bytes: int) -> Iterator[None]:
    """The system refuses to let any file grow beyond that, as a full disk would."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (n_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_a_disk_that_takes_no_more_is_a_machine_problem_and_leaves_nothing(tmp_path: Path) -> None:
    big = entry("t", (1 << 16,), "F32", bytes(4 << 16))
    with (
        _file_size_limit(1 << 16),
        pytest.raises(MachineProblem, match=r"model\.gguf: cannot write \(File too large\)"),
    ):
        write_gguf(tmp_path / "model.gguf", {}, [big])
    assert list(tmp_path.iterdir()) == []


def test_a_missing_directory_is_a_machine_problem(tmp_path: Path) -> None:
    with pytest.raises(MachineProblem, match="No such file or directory"):
        write_gguf(tmp_path / "none" / "model.gguf", {}, [])


def test_shard_names_are_those_of_llama_cpp() -> None:
    path = Path("models/qwen.gguf")
    assert shard_paths(path, 1) == (path,)
    assert [p.name for p in shard_paths(path, 2)] == [
        "qwen-00001-of-00002.gguf",
        "qwen-00002-of-00002.gguf",
    ]


@pytest.mark.parametrize("n_shards", [1, 2, 3, 7])
def test_shards_together_hold_what_one_file_holds(tmp_path: Path, n_shards: int) -> None:
    tensors = [entry(f"t{i}", (32,), "F32", bytes([i]) * 128) for i in range(7)]
    metadata: dict[str, Value] = {"general.architecture": "any", "a.count": 3}
    paths = write_shards(tmp_path / "m.gguf", metadata, tensors, n_shards=n_shards)
    readers = [read_gguf(path) for path in paths]
    found = [(t.name, t.data.tobytes()) for reader in readers for t in reader.tensors]
    assert found == [(f"t{i}", bytes([i]) * 128) for i in range(7)]
    assert readers[0].fields["a.count"].contents() == 3
    for number, reader in enumerate(readers if n_shards > 1 else []):
        split = {k: f.contents() for k, f in reader.fields.items() if k.startswith("split.")}
        assert split == {"split.no": number, "split.count": n_shards, "split.tensors.count": 7}
        assert ("a.count" in reader.fields) == (number == 0)


@pytest.mark.parametrize("n_shards", [0, -1, 3])
def test_a_number_of_shards_that_cannot_be_is_refused(tmp_path: Path, n_shards: int) -> None:
    tensors = [entry(f"t{i}", (32,), "F32", None) for i in range(2)]
    with pytest.raises(ConfigProblem, match=f"{n_shards} shards for 2 tensors"):
        write_shards(tmp_path / "m.gguf", {}, tensors, n_shards=n_shards)
    assert os.listdir(tmp_path) == []


def test_no_shard_stays_behind_when_a_later_one_fails(tmp_path: Path) -> None:
    tensors = [entry("good", (32,), "F32", bytes(128)), entry("bad", (32,), "F32", b"short")]
    with pytest.raises(ValueError, match="bad"):
        write_shards(tmp_path / "m.gguf", {}, tensors, n_shards=2)
    assert os.listdir(tmp_path) == []
