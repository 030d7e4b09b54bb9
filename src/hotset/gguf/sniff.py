"""What a file is that should have been GGUF: said from its first bytes, with the remedy."""

from __future__ import annotations

import re

from hotset.core.units import format_count

__all__ = ["SNIFF_BYTES", "describe_foreign"]

SNIFF_BYTES = 1024
"""How much of a file's start `describe_foreign` looks at."""

_AGAIN = "download the model file itself"
_CONVERT = "convert it to GGUF, or get the GGUF file of this model"

_MAGICS: tuple[tuple[bytes, str, str], ...] = (
    (b"tjgg", "a GGML file from before GGUF", "get the GGUF file of this model"),
    (b"fmgg", "a GGML file from before GGUF", "get the GGUF file of this model"),
    (b"lmgg", "a GGML file from before GGUF", "get the GGUF file of this model"),
    (b"PK\x03\x04", "a zip archive or a PyTorch checkpoint", _CONVERT),
    (b"\x80\x02", "a Python pickle", _CONVERT),
    (b"\x1f\x8b", "a gzip archive", "unpack it first"),
    (b"\x28\xb5\x2f\xfd", "a zstd archive", "unpack it first"),
    (b"\xfd7zXZ\x00", "an xz archive", "unpack it first"),
    (b"7z\xbc\xaf\x27\x1c", "a 7z archive", "unpack it first"),
    (b"Rar!\x1a\x07", "a RAR archive", "unpack it first"),
    (b"%PDF", "a PDF document", _AGAIN),
    (b"\x7fELF", "a program", _AGAIN),
)

_LFS = b"version https://git-lfs.github.com/spec/"
_LFS_SIZE = re.compile(rb"^size (\d{1,18})$", re.MULTILINE)
_WEB_PAGE = re.compile(rb"<(!doctype html|html|head|body|\?xml)", re.IGNORECASE)
_SAFETENSORS = re.compile(rb".{8}\{\s*\"", re.DOTALL)
_TAR_MAGIC_AT = 257


def describe_foreign(start: bytes, file_bytes: int) -> str:
    """Name a file that does not begin as GGUF does.

    Args:
        start: its first SNIFF_BYTES, or all of it.
        file_bytes: its size.

    Returns:
        What it is, that it is no GGUF file, and the remedy, without the file's name.
    """
    if not start:
        return "an empty file; download it again"
    if start.startswith(_LFS):
        size = _LFS_SIZE.search(start)
        real = f" of {format_count(int(size[1]))} bytes" if size else ""
        return (
            f"a Git LFS pointer to a file{real}, not the file itself; run 'git lfs pull' in its "
            "folder, or download the file"
        )
    what, remedy = _recognise(start)
    return f"{what}, not a GGUF file ({format_count(file_bytes)} bytes); {remedy}"


def _recognise(start: bytes) -> tuple[str, str]:
    for magic, what, remedy in _MAGICS:
        if start.startswith(magic):
            return what, remedy
    if _SAFETENSORS.match(start):
        return "a safetensors file", _CONVERT
    if start[_TAR_MAGIC_AT:].startswith(b"ustar"):
        return "a tar archive", "unpack it first"
    if not start.strip(b"\0"):
        return "a file of zeros, as an interrupted download leaves it", "download it again"
    text = start.removeprefix(b"\xef\xbb\xbf").lstrip()
    if _WEB_PAGE.match(text):
        return "a web page", _AGAIN
    if text.startswith((b"{", b"[")):
        return "a JSON text", _AGAIN
    if _is_text(text):
        return "a plain text", _AGAIN
    return "an unknown kind of file", "check that this is the right file, or download it again"


def _is_text(start: bytes) -> bool:
    """Whether the bytes read as text; the last character may be cut."""
    text = start.decode(errors="replace").rstrip("\N{REPLACEMENT CHARACTER}")
    return all(c.isprintable() or c.isspace() for c in text) and "\ufffd" not in text
