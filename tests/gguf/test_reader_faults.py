"""Wrong files: one sound file, one thing wrong with it, one clear line."""

from __future__ import annotations

import os
import struct
import tracemalloc
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from ggufkit import F32, Q4_0, Q4_K, STRING, Gguf, Tensor, Value, array, number, ok_file, text
from hotset.core.errors import FileProblem
from hotset.core.tensortypes import REMOVED_TYPES
from hotset.core.units import MIB
from hotset.gguf.reader import read_architecture, read_header
from hotset.gguf.tensors import MAX_TENSORS
from hotset.gguf.values import KEEP_LIMIT_BYTES, MAX_KEYS
from hotset.gguf.window import HEADER_LIMIT_BYTES, Window

REMEDIES = ("download", "get ", "update", "check", "give", "convert", "unpack", "write", "wait")


def refusal(path: Path) -> str:
    """The message that `path` is refused with: one line, with its name and a remedy."""
    with pytest.raises(FileProblem) as caught:
        read_header(path)
    message = caught.value.message
    assert "\n" not in message
    assert message.startswith((f"{path.name}: ", f"{path}: "))
    assert any(remedy in message for remedy in REMEDIES), message
    return message


def with_tensor(tensor: Tensor) -> Gguf:
    return ok_file().with_tensors(*ok_file().tensors, tensor)


FAULTS: dict[str, tuple[Gguf, str]] = {
    "version 1": (replace(ok_file(), version=1), "GGUF version 1, which engines no longer read"),
    "version 0": (replace(ok_file(), version=0), "GGUF version 0, hotset reads 2 and 3"),
    "version 4": (replace(ok_file(), version=4), "GGUF version 4, hotset reads 2 and 3"),
    "big-endian": (replace(ok_file(), byte_order=">"), "big-endian GGUF file"),
    "key twice": (
        replace(ok_file(), keys=(*ok_file().keys, ok_file().keys[3])),
        "metadata key 'test.u16' is there twice",
    ),
    "empty key": (ok_file().with_key("", number("u8", 1)), "has 0 bytes, 1 to 65,535"),
    "long key": (ok_file().with_key("k" * 65_536, number("u8", 1)), "has 65,536 bytes, 1 to"),
    "key no UTF-8": (
        ok_file().with_key(b"ke\xffy", number("u8", 1)),
        "metadata key 'ke\\xffy' is no UTF-8 text",
    ),
    "value type": (
        ok_file().with_key("odd", Value(13, bytes(8))),
        "metadata key 'odd' has a value of unknown type 13",
    ),
    "array type": (
        ok_file().with_key("odd", Value(9, struct.pack("<IQ", 99, 0))),
        "metadata key 'odd' is an array of unknown type 99",
    ),
    "array of arrays": (
        ok_file().with_key("odd", Value(9, struct.pack("<IQ", 9, 1) + bytes(12))),
        "metadata key 'odd' is an array of arrays",
    ),
    "array too long": (
        ok_file().with_key("odd", array("u64", [1], count=2**62)),
        "incomplete or damaged file: the metadata value 'odd' needs 36,893,488,147,419,10",
    ),
    "string array too long": (
        ok_file().with_key("odd", array("string", ["a"], count=2**61)),
        "incomplete or damaged file: the metadata value 'odd' needs 18,446,744,073,709,55",
    ),
    "string in array too long": (
        ok_file().with_key("odd", Value(9, struct.pack("<IQQ", STRING, 1, 2**64 - 1))),
        "incomplete or damaged file: the metadata value 'odd' needs 18,446,744,073,709,55",
    ),
    "text too long": (
        ok_file().with_key("odd", Value(STRING, struct.pack("<Q", 2**63))),
        "incomplete or damaged file: the metadata value 'odd' needs 9,223,372,036,854,78",
    ),
    "key count": (replace(ok_file(), n_keys=MAX_KEYS + 1), "it claims 65,537 metadata keys"),
    "more keys than bytes": (
        replace(ok_file(), n_keys=MAX_KEYS),
        "incomplete or damaged file: the metadata needs 917,5",
    ),
    "tensor count": (replace(ok_file(), n_tensors=MAX_TENSORS + 1), "it claims 65,537 tensors"),
    "more tensors than bytes": (
        replace(ok_file(), n_tensors=MAX_TENSORS),
        "incomplete or damaged file: the tensor table needs 2,10",
    ),
    "alignment 0": (
        ok_file().with_key("general.alignment", number("u32", 0)),
        "general.alignment is 0, not a power of two",
    ),
    "alignment 48": (
        ok_file().with_key("general.alignment", number("u32", 48)),
        "general.alignment is 48, not a power of two",
    ),
    "alignment 2 MiB": (
        ok_file().with_key("general.alignment", number("u32", 2 * MIB)),
        "general.alignment is 2097152, not a power of two up to 1,048,576",
    ),
    "alignment text": (
        ok_file().with_key("general.alignment", text("32")),
        "general.alignment is 32, not a power of two",
    ),
    "alignment bool": (
        ok_file().with_key("general.alignment", number("bool", True)),
        "general.alignment is True, not a power of two",
    ),
    "tensor twice": (
        with_tensor(Tensor("output_norm.weight")),
        "tensor 'output_norm.weight' is there twice",
    ),
    "tensor without name": (with_tensor(Tensor("")), "a tensor name of 0 bytes, 1 to 63"),
    "long tensor name": (with_tensor(Tensor("n" * 64)), "a tensor name of 64 bytes, 1 to 63"),
    "tensor name no UTF-8": (
        with_tensor(Tensor(b"bl\xfek")),
        "tensor 'bl\\xfek' has a name that is no UTF-8 text",
    ),
    "no dimensions": (with_tensor(Tensor("t", ())), "tensor 't' has 0 dimensions, not 1 to 4"),
    "five dimensions": (
        with_tensor(Tensor("t", (1,) * 5)),
        "tensor 't' has 5 dimensions, not 1 to 4",
    ),
    "empty dimension": (
        with_tensor(Tensor("t", (32, 0))),
        "tensor 't' has the impossible shape 32 x 0",
    ),
    "overflowing shape": (
        with_tensor(Tensor("t", (2**32, 2**31), offset=0)),
        "tensor 't' has the impossible shape 4294967296 x 2147483648",
    ),
    "unknown tensor type": (
        with_tensor(Tensor("t", type=200)),
        "tensor 't' has type number 200, which hotset does not know",
    ),
    "row no multiple of the block": (
        with_tensor(Tensor("t", (100, 2), Q4_K)),
        "tensor 't' has rows of 100 elements, no multiple of the 256 of a Q4_K block",
    ),
    "first dimension, not the product, fills blocks": (
        with_tensor(Tensor("t", (16, 2), Q4_0)),
        "tensor 't' has rows of 16 elements, no multiple of the 32 of a Q4_0 block",
    ),
    "offset not aligned": (
        with_tensor(Tensor("t", offset=4100)),
        "tensor 't' starts at 4,100 in the data, no multiple of the file's alignment of 32",
    ),
    "overlap": (
        ok_file().with_tensors(Tensor("a", (64,), F32), Tensor("b", offset=224)),
        "tensor 'b' overlaps tensor 'a'",
    ),
    "same place": (
        ok_file().with_tensors(Tensor("a"), Tensor("b", offset=0)),
        "tensor 'b' overlaps tensor 'a'",
    ),
}


@pytest.mark.parametrize(("file", "message"), FAULTS.values(), ids=FAULTS.keys())
def test_one_fault_in_a_sound_file_is_named(tmp_path: Path, file: Gguf, message: str) -> None:
    if message.startswith("tensor 'b' overlaps"):
        file = file.with_tensors(*file.tensors, Tensor("z", (512,), offset=1024))
    assert message in refusal(file.write(tmp_path / "model.gguf"))


@pytest.mark.parametrize(("number_", "name"), REMOVED_TYPES.items())
def test_a_removed_tensor_type_is_refused_by_name(tmp_path: Path, number_: int, name: str) -> None:
    path = with_tensor(Tensor("t", type=number_)).write(tmp_path / "a.gguf")
    assert f"tensor 't' has type {name}, which ggml no longer reads" in refusal(path)


def test_a_truncated_file_names_the_first_tensor_out_of_range_and_both_sizes(
    tmp_path: Path,
) -> None:
    file = ok_file()
    whole = file.file_bytes()
    last = file.tensors[-1]
    path = file.write(tmp_path / "model.gguf", file_bytes=whole - 1)
    assert refusal(path) == (
        f"model.gguf: incomplete file: tensor '{last.name!s}' ends at byte {whole:,}, the file "
        f"has {whole - 1:,} of {whole:,} bytes; download it again"
    )
    shorter = file.write(tmp_path / "model.gguf", file_bytes=file.data_offset() + 1)
    assert f"tensor '{file.tensors[0].name!s}' ends at byte" in refusal(shorter)
    assert f"the file has {file.data_offset() + 1:,} of {whole:,} bytes" in refusal(shorter)


def test_a_file_cut_anywhere_is_refused(tmp_path: Path) -> None:
    """At every single byte: no cut is taken for a whole file, none raises anything else."""
    file = ok_file().without_key("test.long")
    path = file.write(tmp_path / "a.gguf")
    for size in range(file.file_bytes() - 1, -1, -1):
        os.truncate(path, size)
        refusal(path)


def test_a_tensor_far_out_of_range_does_not_overflow(tmp_path: Path) -> None:
    path = with_tensor(Tensor("t", offset=2**64 - 32)).write(tmp_path / "a.gguf")
    assert "tensor 't' ends at byte 18,446,744,073,709,5" in refusal(path)


def test_a_header_beyond_the_limit_is_refused_although_the_file_is_larger(tmp_path: Path) -> None:
    file = ok_file().with_key("odd", Value(STRING, struct.pack("<Q", HEADER_LIMIT_BYTES)))
    path = file.write(tmp_path / "a.gguf", file_bytes=2 * HEADER_LIMIT_BYTES)
    assert "the metadata value 'odd' makes the header larger than 128 MiB" in refusal(path)


def many_keys(n: int, size: int) -> Gguf:
    padding = text("v" * size)
    return Gguf(tuple((f"k{i}", padding) for i in range(n)))


@pytest.mark.parametrize(
    "file",
    [
        many_keys(2000, 4000),
        Gguf(tuple((f"{i:05}" + "k" * 60_000, number("u8", 1)) for i in range(100))),
        Gguf(tuple((f"k{i}", array("u64", range(4096))) for i in range(100))),
        Gguf((("tokens", array("string", ["x" * 300] * 15_000)),)),
        Gguf((("tokens", text("t" * (5 * MIB))),)),
    ],
    ids=["texts", "keys", "arrays", "wanted strings", "wanted text"],
)
def test_kept_metadata_has_a_limit_whatever_it_consists_of(tmp_path: Path, file: Gguf) -> None:
    path = file.write(tmp_path / "a.gguf")
    tracemalloc.start()
    try:
        with pytest.raises(FileProblem, match="makes the metadata larger than 16 MiB"):
            read_header(path, want=["tokens"])
        assert tracemalloc.get_traced_memory()[1] < KEEP_LIMIT_BYTES + 4 * MIB
    finally:
        tracemalloc.stop()


def test_the_fullest_header_that_is_accepted_stays_under_64_mib(tmp_path: Path) -> None:
    keys = tuple((f"k{i}", array("u64", range(2**63, 2**63 + 1000))) for i in range(250))
    names = (f"blk.{i}.{'n' * 50}" for i in range(MAX_TENSORS))
    tensors = tuple(Tensor(n, (2**20, 3, 300, 5), offset=0) for n in names)
    path = Gguf(keys, tensors).write(tmp_path / "a.gguf", file_bytes=10 * MIB)
    tracemalloc.start()
    try:
        assert "overlaps" in refusal(path)
        assert tracemalloc.get_traced_memory()[1] < 64 * MIB
    finally:
        tracemalloc.stop()


FOREIGN: dict[str, tuple[bytes, str]] = {
    "empty": (b"", "an empty file"),
    "lfs": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\nsize 19800000000\n",
        "a Git LFS pointer to a file of 19,800,000,000 bytes, not the file itself; run 'git lfs",
    ),
    "lfs without size": (
        b"version https://git-lfs.github.com/spec/v1\noid sha256:ab\n",
        "a Git LFS pointer to a file, not the file itself",
    ),
    "html": (b"<!DOCTYPE html>\n<html><body>404</body></html>", "a web page, not a GGUF file"),
    "html after a mark": (b"\xef\xbb\xbf \n<HTML lang=en>", "a web page, not a GGUF file"),
    "json": (b'{"error": "Repository not found"}', "a JSON text, not a GGUF file"),
    "json list": (b"[1, 2]", "a JSON text, not a GGUF file"),
    "text": ("Zugriff verweigert, bitte anmelden: ü".encode(), "a plain text, not a GGUF file"),
    "text cut in a character": ("ü".encode() * 600, "a plain text, not a GGUF file"),
    "zip": (b"PK\x03\x04" + bytes(50), "a zip archive or a PyTorch checkpoint"),
    "pickle": (b"\x80\x02}q\x00", "a Python pickle"),
    "gzip": (b"\x1f\x8b\x08" + bytes(50), "a gzip archive, not a GGUF file"),
    "tar": (b"model.gguf".ljust(257, b"\0") + b"ustar\0" + bytes(300), "a tar archive"),
    "ggml": (b"tjgg\x03\0\0\0", "a GGML file from before GGUF"),
    "safetensors": (struct.pack("<Q", 5000) + b'{"__metadata__":{}}', "a safetensors file"),
    "zeros": (bytes(4000), "a file of zeros, as an interrupted download leaves it"),
    "noise": (b"\x01\xfe\x02\xfd" * 20, "an unknown kind of file, not a GGUF file (80 bytes)"),
}


@pytest.mark.parametrize(("content", "message"), FOREIGN.values(), ids=FOREIGN.keys())
def test_a_file_that_is_no_gguf_is_named_as_what_it_is(
    tmp_path: Path, content: bytes, message: str
) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(content)
    assert message in refusal(path)


def test_a_missing_file_is_named_with_its_path(tmp_path: Path) -> None:
    assert refusal(tmp_path / "none.gguf").endswith("none.gguf: no such file; check the path")


def test_a_directory_is_no_model(tmp_path: Path) -> None:
    assert "is a directory, not a GGUF file" in refusal(tmp_path)


def test_a_pipe_is_refused_without_waiting_for_a_writer(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.gguf")
    assert "is a pipe or a device, not a GGUF file" in refusal(tmp_path / "pipe.gguf")


def test_a_device_is_no_model() -> None:
    assert "is a pipe or a device, not a GGUF file" in refusal(Path("/dev/zero"))


@pytest.mark.parametrize(
    ("name", "reason"),
    [("n" * 300, "File name too long"), ("loop", "symbolic links"), ("nul\0", "null")],
    ids=["long name", "link loop", "nul"],
)
def test_a_path_that_cannot_be_opened_says_why(tmp_path: Path, name: str, reason: str) -> None:
    (tmp_path / "loop").symlink_to(tmp_path / "loop")
    with pytest.raises(FileProblem, match=f"cannot be opened .*{reason}"):
        read_header(tmp_path / name)


@pytest.fixture
def ordinary_user() -> Iterator[None]:
    """Permissions are checked for an ordinary user; the superuser may read everything."""
    if os.geteuid():
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_an_unreadable_file_says_why(tmp_path: Path, ordinary_user: None) -> None:
    del ordinary_user
    path = Path("/proc/1/mem") if os.geteuid() == 65534 else locked(tmp_path)
    assert "cannot be opened (Permission denied); check the path and its permis" in refusal(path)


def locked(directory: Path) -> Path:
    path = directory / "locked.gguf"
    path.touch(mode=0)
    return path


def test_control_characters_of_a_file_do_not_reach_the_terminal(tmp_path: Path) -> None:
    file = with_tensor(Tensor("\x1b[2Jnasty\n", type=200))
    message = refusal(file.write(tmp_path / "es\x1bcape.gguf").rename(tmp_path / "e.gguf"))
    assert "tensor '\\x1b[2Jnasty\\n' has type" in message
    with pytest.raises(FileProblem) as caught:
        read_header(tmp_path / "es\x1bcape.gguf")
    assert "\x1b" not in caught.value.message


def test_a_long_name_is_cut_in_messages(tmp_path: Path) -> None:
    file = ok_file().with_key("k" * 5000, Value(13, b""))
    assert f"'{'k' * 77}...' has a value" in refusal(file.write(tmp_path / "a.gguf"))


def test_a_file_that_becomes_shorter_while_it_is_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(bytes(100))
    fd = os.open(path, os.O_RDONLY)
    try:
        window = Window(fd, 1000, "a.gguf")
        assert window.take(60) == bytes(60)
        with pytest.raises(FileProblem, match=r"a\.gguf: became shorter while it was read"):
            window.take(60)
    finally:
        os.close(fd)


def test_a_read_error_names_the_byte_and_the_reason(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)  # reading a directory fails
    try:
        window = Window(fd, 10 * MIB, "a.gguf")
        window.skip(5000)
        with pytest.raises(FileProblem, match=r"cannot be read at byte 5,000 \(Is a directory\)"):
            window.take(1)
    finally:
        os.close(fd)


def test_the_architecture_of_a_foreign_file_is_refused_like_the_file(tmp_path: Path) -> None:
    path = tmp_path / "a.gguf"
    path.write_bytes(b"<html>")
    with pytest.raises(FileProblem, match="a web page"):
        read_architecture(path)
