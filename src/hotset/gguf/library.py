"""The model files of a directory: each once, with its kind or the reason it is none."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.gguf.kinds import Kind, kind_of
from hotset.gguf.projectors import matching_projectors
from hotset.gguf.reader import read_architecture
from hotset.gguf.shards import MAX_SHARDS, ModelFile, ShardName, open_model
from hotset.gguf.window import printable

__all__ = ["Entry", "find_projectors", "list_models"]

_SUFFIX = ".gguf"
_PATH_LIMIT = 4096
_PROJECTOR_ARCHITECTURE = "clip"


@dataclass(frozen=True, slots=True)
class Entry:
    """One file or shard set of a directory, or a directory that could not be read.

    Attributes:
        path: the file, or the first file of the set.
        model: its headers; None where they could not be read.
        kind: None where `problem` says why.
        problem: why it cannot be used, in one line without the file's name; empty if it can.
    """

    path: Path
    model: ModelFile | None
    kind: Kind | None
    problem: str = ""


def list_models(directory: Path) -> list[Entry]:
    """Every `*.gguf` file in and below `directory`, shard sets and linked files once.

    Hidden directories are left out. A symbolic link is followed, but no directory is read
    twice. Sorted by path.

    Raises:
        FileProblem: when `directory` itself cannot be read.
    """
    entries: list[Entry] = []
    seen: set[tuple[int, int]] = set()
    for path in _walk(directory, entries):
        try:
            facts = path.stat()
        except OSError as error:
            entries.append(Entry(path, None, None, f"cannot be read ({error.strerror})"))
            continue
        if (facts.st_dev, facts.st_ino) not in seen:
            entry = _entry(path)
            entries.append(entry)
            seen.update(_identities(entry))
    return sorted(entries, key=lambda entry: entry.path)


def find_projectors(model: ModelFile) -> list[ModelFile]:
    """The projectors beside `model` that belong to it.

    Only headers that say `clip` are read whole, so that a directory full of large vocabularies
    costs little. Files that cannot be read are passed over: they are no match.
    """
    try:
        beside = sorted(model.paths[0].parent.iterdir())
    except OSError:  # a directory that may be entered but not listed
        return []
    found = []
    for path in beside:
        if path.suffix.lower() == _SUFFIX and path not in model.paths:
            try:
                if read_architecture(path) == _PROJECTOR_ARCHITECTURE:
                    found.append(open_model(path))
            except FileProblem:
                continue
    return matching_projectors(model, found)


def _walk(directory: Path, entries: list[Entry]) -> Iterator[Path]:
    """The `*.gguf` files in and below `directory`; what cannot be listed goes to `entries`."""
    waiting = [directory]
    visited: set[tuple[int, int]] = set()
    while waiting:
        current = waiting.pop()
        try:
            facts = current.stat()
            children = sorted(current.iterdir())
        except OSError as error:
            reason = f"cannot be listed ({error.strerror}); check the path and its permissions"
            if current == directory:
                raise FileProblem(f"{printable(str(directory), _PATH_LIMIT)}: {reason}") from None
            entries.append(Entry(current, None, None, reason))
            continue
        if (facts.st_dev, facts.st_ino) in visited:
            continue
        visited.add((facts.st_dev, facts.st_ino))
        for child in children:
            if os.path.isdir(child):
                if not child.name.startswith("."):
                    waiting.append(child)
            elif child.suffix.lower() == _SUFFIX:
                yield child


def _entry(path: Path) -> Entry:
    model = None
    kind = None
    try:
        model = open_model(path)
        kind = kind_of(model)
        model.check_computable()
    except FileProblem as problem:
        reason = problem.message
        for shown in (printable(str(path), _PATH_LIMIT), printable(path.name)):
            reason = reason.removeprefix(f"{shown}: ")
        return Entry(path, model, kind, reason)
    return Entry(model.paths[0], model, kind)


def _identities(entry: Entry) -> Iterable[tuple[int, int]]:
    """Device and inode of every file that `entry` stands for, present or damaged."""
    named = ShardName.parse(entry.path.name)
    paths = entry.model.paths if entry.model else (entry.path,)
    if entry.model is None and named and named.count <= MAX_SHARDS:
        paths = tuple(entry.path.with_name(named.member(n)) for n in range(1, named.count + 1))
    for path in paths:
        try:
            facts = path.stat()
        except OSError:  # a shard that is missing: the entry's problem says so
            continue
        yield facts.st_dev, facts.st_ino
