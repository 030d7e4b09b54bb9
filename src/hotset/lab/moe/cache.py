"""A folder that keeps what took long to make: whole, checked before use, made by one at a time."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from hotset.core.errors import MachineProblem
from hotset.core.units import format_bytes

__all__ = ["first_usable", "kept_file"]


def first_usable(folders: list[Path]) -> Path:
    """The first of `folders` that can be written to and belongs to this user; made if need be.

    Raises:
        MachineProblem: none can.
    """
    for folder in folders:
        with suppress(OSError):
            folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            # Of a folder in a public place somebody else may be the owner.
            if folder.stat().st_uid == os.geteuid() and os.access(folder, os.W_OK | os.X_OK):
                return folder
    raise MachineProblem(
        f"no folder for converted models: {' and '.join(map(str, folders))} cannot be written to;"
        " name a writable one with XDG_CACHE_HOME"
    )


def kept_file(
    folder: Path, name: str, key: str, make: Callable[[Path], None], n_bytes: int = 0
) -> Path:
    """The file `name` in `folder`, as `make` makes it from what `key` stands for.

    It is made anew when it is missing, damaged or of another key. `make` writes it whole or not at
    all; whoever comes meanwhile waits.

    Args:
        n_bytes: about its size; without that much room on the disk it is not begun.

    Raises:
        MachineProblem: the folder cannot be used, or its disk is full.
    """
    path, seal = folder / name, folder / f"{name}.json"
    with _locked(folder / f"{name}.lock"):
        if _is_sound(path, seal, key):
            return path
        for left in folder.glob(f".{name}.*.part"):  # of a run that was killed
            left.unlink(missing_ok=True)
        seal.unlink(missing_ok=True)
        free = shutil.disk_usage(folder).free
        if free < n_bytes:
            raise MachineProblem(
                f"{path}: takes {format_bytes(n_bytes)}, {format_bytes(free)} are free on its disk;"
                " free some, or name another place with XDG_CACHE_HOME"
            )
        make(path)
        _write_whole(seal, json.dumps({"key": key, "sha256": _sha256(path)}))
    return path


def _is_sound(path: Path, seal: Path, key: str) -> bool:
    try:
        known = json.loads(seal.read_text(encoding="utf-8"))
        return bool(known["key"] == key and known["sha256"] == _sha256(path))
    except (OSError, ValueError, KeyError, TypeError):
        return False


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _write_whole(path: Path, text: str) -> None:
    part = path.with_name(f".{path.name}.part")
    try:
        part.write_text(text, encoding="utf-8")
        part.replace(path)
    except OSError as error:
        raise MachineProblem(f"{path}: cannot be written: {error.strerror}") from error


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Alone among processes; the lock goes with the process, however it ends."""
    try:
        file = path.open("w")
    except OSError as error:
        raise MachineProblem(f"{path}: cannot be made: {error.strerror}") from error
    with file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
