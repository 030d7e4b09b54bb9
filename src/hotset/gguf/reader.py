"""The header of one GGUF file: metadata and tensor table, read fast and believed in nothing.

Layout: the GGUF specification (ggml docs/gguf.md). What the engine refuses on top of it:
llama.cpp ggml/src/gguf.cpp. Text and arrays that nobody asked for are stepped over.
"""

from __future__ import annotations

import os
import stat
import struct
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.core.units import MIB, format_count
from hotset.gguf.sniff import SNIFF_BYTES, describe_foreign
from hotset.gguf.tensors import TensorInfo, aligned, read_tensors
from hotset.gguf.values import (
    ArrayInfo,
    MetaValue,
    TextInfo,
    find_value,
    locate_values,
    read_metadata,
)
from hotset.gguf.window import Window, printable

__all__ = [
    "ArrayInfo",
    "Header",
    "MetaValue",
    "TensorInfo",
    "TextInfo",
    "check_computable",
    "copy_values",
    "read_architecture",
    "read_header",
]

_MAGIC = b"GGUF"
_MAX_ALIGNMENT_BYTES = MIB
_DEFAULT_ALIGNMENT_BYTES = 32

_PATH_LIMIT = 4096

_VERSION = struct.Struct("<I")
_COUNTS = struct.Struct("<QQ")


@dataclass(frozen=True, slots=True)
class Header:
    """What one file says about itself, checked against its real size.

    Attributes:
        path: where it was read.
        version: 2 or 3.
        file_bytes: size of the whole file.
        alignment_bytes: a power of two; every tensor starts at a multiple of it, counted from
            `data_offset_bytes`.
        data_offset_bytes: where tensor data starts.
        metadata: by key; what was stepped over is an ArrayInfo or a TextInfo.
        tensors: in the file's order; inside the file, without overlap.
    """

    path: Path
    version: int
    file_bytes: int
    alignment_bytes: int
    data_offset_bytes: int
    metadata: Mapping[str, MetaValue]
    tensors: tuple[TensorInfo, ...]


def read_header(path: Path, *, want: Collection[str] = ()) -> Header:
    """Read and check the header of `path`.

    Args:
        path: a GGUF file, version 2 or 3, little-endian.
        want: metadata keys whose long text or array is needed. Scalars, text up to 4 KiB and
            numeric arrays up to 4,096 elements are kept anyway.

    Raises:
        FileProblem: for anything that is no whole, sound GGUF file. Nothing behind the header
            is read, and no more than 64 MiB are ever allocated.
    """
    with _window(path) as window:
        version = _read_version(window)
        n_tensors, n_keys = window.unpack(_COUNTS)
        metadata = read_metadata(window, n_keys, frozenset(want))
        alignment_bytes = _alignment(window, metadata)
        tensors, data_offset_bytes = read_tensors(window, n_tensors, alignment_bytes)
    return Header(
        path=path,
        version=version,
        file_bytes=window.file_bytes,
        alignment_bytes=alignment_bytes,
        data_offset_bytes=data_offset_bytes,
        metadata=metadata,
        tensors=tensors,
    )


def read_architecture(path: Path) -> str:
    """`general.architecture` alone, usually the first key: cheap however long the header is.

    Returns:
        Empty where the file names none.

    Raises:
        FileProblem: for what is wrong before that key.
    """
    with _window(path) as window:
        _read_version(window)
        _, n_keys = window.unpack(_COUNTS)
        value = find_value(window, n_keys, "general.architecture")
    return value if isinstance(value, str) else ""


def copy_values(path: Path, is_wanted: Callable[[str], bool]) -> dict[str, tuple[MetaValue, bytes]]:
    """Some of the metadata as `read_header` gives it, and as it stands in the file, type first.

    Raises:
        FileProblem: as `read_header` does, for the metadata.
    """
    found: dict[str, tuple[MetaValue, bytes]] = {}
    with _open(path) as fd:
        window = _window_of(fd, path)
        _read_version(window)
        _, n_keys = window.unpack(_COUNTS)
        for key, value, start, end in locate_values(window, n_keys):
            if is_wanted(key):
                found[key] = value, os.pread(fd, end - start, start)
    return found


def check_computable(header: Header) -> None:
    """Refuse what would crash or stop the engine although the file is sound.

    Sources: `TensorType.is_computable`; llama.cpp ggml/src/gguf.cpp (each tensor starts right
    after the one before it).

    Raises:
        FileProblem: naming the first tensor that the engine cannot use.
    """
    name = printable(header.path.name)
    expected = header.data_offset_bytes
    for tensor in header.tensors:
        if not tensor.type.is_computable:
            raise FileProblem(
                f"{name}: tensor '{printable(tensor.name)}' has type {tensor.type.name}, which "
                "the engine cannot compute with; use another quantization of this model"
            )
        if tensor.offset_bytes != expected:
            raise FileProblem(
                f"{name}: tensor '{printable(tensor.name)}' starts at byte "
                f"{format_count(tensor.offset_bytes)}, the engine expects it at "
                f"{format_count(expected)}; write the file anew with a current converter"
            )
        # Padding counts from the start of the data, which is itself aligned.
        expected = aligned(tensor.end_bytes, header.alignment_bytes)


@contextmanager
def _open(path: Path) -> Iterator[int]:
    fd = _open_regular(path)
    try:
        yield fd
    finally:
        os.close(fd)


def _window_of(fd: int, path: Path) -> Window:
    return Window(fd, os.fstat(fd).st_size, printable(path.name))


@contextmanager
def _window(path: Path) -> Iterator[Window]:
    with _open(path) as fd:
        yield _window_of(fd, path)


def _open_regular(path: Path) -> int:
    """A file descriptor of a regular file. Never waits, whatever `path` is."""
    shown = printable(str(path), _PATH_LIMIT)
    try:
        fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    except FileNotFoundError:
        raise FileProblem(f"{shown}: no such file; check the path") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise FileProblem(
            f"{shown}: cannot be opened ({reason}); check the path and its permissions"
        ) from None
    mode = os.fstat(fd).st_mode
    if not stat.S_ISREG(mode):
        os.close(fd)
        what = "a directory" if stat.S_ISDIR(mode) else "a pipe or a device"
        raise FileProblem(f"{shown}: is {what}, not a GGUF file; give the file itself")
    return fd


def _read_version(window: Window) -> int:
    start = window.peek(SNIFF_BYTES)
    if not start.startswith(_MAGIC):
        raise window.problem(describe_foreign(start, window.file_bytes))
    window.skip(len(_MAGIC))
    version: int = window.unpack(_VERSION)[0]
    if version in (2, 3):
        return version
    if version == 1:
        raise window.problem(
            "GGUF version 1, which engines no longer read; get a newer file of this model"
        )
    if version and version & 0xFFFF == 0:
        raise window.problem(
            "big-endian GGUF file, which the engine cannot read on this machine; get the "
            "little-endian file of this model"
        )
    raise window.problem(
        f"GGUF version {format_count(version)}, hotset reads 2 and 3; update hotset, or download "
        "the file again"
    )


def _alignment(window: Window, metadata: Mapping[str, MetaValue]) -> int:
    alignment = metadata.get("general.alignment", _DEFAULT_ALIGNMENT_BYTES)
    if (
        type(alignment) is not int
        or not 0 < alignment <= _MAX_ALIGNMENT_BYTES
        or alignment & (alignment - 1)
    ):
        raise window.problem(
            f"damaged file: general.alignment is {printable(str(alignment))}, not a power of two "
            f"up to {format_count(_MAX_ALIGNMENT_BYTES)}; download it again"
        )
    return alignment
