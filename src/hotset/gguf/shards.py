"""A model as it lies on disk: one GGUF file, or a set of shards found from any member.

Names and keys as the engine has them: llama.cpp src/llama.cpp (llama_split_path) and
src/llama-model-loader.cpp (split.no, split.count, split.tensors.count).
"""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.core.units import format_count
from hotset.gguf.reader import Header, MetaValue, TensorInfo, check_computable, read_header
from hotset.gguf.window import printable

__all__ = ["MAX_SHARDS", "ModelFile", "ShardName", "open_model"]

MAX_SHARDS = 1024
"""Published sets have some 200 files at most."""

_SHARD_NAME = re.compile(r"(?P<prefix>.+)-(?P<number>\d{5})-of-(?P<count>\d{5})\.gguf")


@dataclass(frozen=True, slots=True)
class ModelFile:
    """One model: its files in order, a single file being a set of one.

    Attributes:
        paths: the files; the first is the one that an engine is given.
        headers: the same, read.
    """

    paths: tuple[Path, ...]
    headers: tuple[Header, ...]

    @property
    def metadata(self) -> Mapping[str, MetaValue]:
        """The first file's, which is the model's; the others repeat none of it."""
        return self.headers[0].metadata

    @property
    def tensors(self) -> tuple[TensorInfo, ...]:
        """Every tensor of every file, in order."""
        return tuple(tensor for _, tensor in self.placed_tensors())

    def placed_tensors(self) -> Iterator[tuple[int, TensorInfo]]:
        """Every tensor with the index of its file in `paths`."""
        for index, header in enumerate(self.headers):
            for tensor in header.tensors:
                yield index, tensor

    @property
    def file_bytes(self) -> int:
        """Size of all files together."""
        return sum(header.file_bytes for header in self.headers)

    def check_computable(self) -> None:
        """Refuse what would crash or stop the engine although the files are sound.

        Raises:
            FileProblem: naming the first tensor that the engine cannot use, and its file.
        """
        for header in self.headers:
            check_computable(header)


@dataclass(frozen=True, slots=True)
class ShardName:
    """A file name such as `name-00002-of-00003.gguf`; `number` counts from 1."""

    prefix: str
    number: int
    count: int

    @classmethod
    def parse(cls, name: str) -> ShardName | None:
        """None for any other name."""
        match = _SHARD_NAME.fullmatch(name)
        if match is None:
            return None
        parsed = cls(match["prefix"], int(match["number"]), int(match["count"]))
        return parsed if 1 <= parsed.number <= parsed.count else None

    def member(self, number: int) -> str:
        """The name of another shard of the same set."""
        return f"{self.prefix}-{number:05d}-of-{self.count:05d}.gguf"


@dataclass(frozen=True, slots=True)
class _Split:
    """What one file's metadata says of its set; `number` counts from 1."""

    number: int
    count: int
    n_tensors: int | None

    def __str__(self) -> str:
        return f"shard {self.number} of {self.count}"


def open_model(path: Path, *, want: Collection[str] = ()) -> ModelFile:
    """Read the header of a file and of all other shards of its set.

    Args:
        path: a GGUF file, or any member of a set.
        want: metadata keys whose long text or array is needed (see `read_header`).

    Raises:
        FileProblem: for a file that is not sound; for a shard that is missing, misnamed, or
            belongs to another model.
    """
    header = read_header(path, want=want)
    split = _split(header)
    if split is None:
        return ModelFile((path,), (header,))
    shown = printable(path.name)
    named = ShardName.parse(path.name)
    if named is None or (named.number, named.count) != (split.number, split.count):
        raise FileProblem(
            f"{shown}: its metadata says {split}, its name does not; give it back the name "
            f"that ends in -{split.number:05d}-of-{split.count:05d}.gguf"
        )
    paths = tuple(path.with_name(named.member(n)) for n in range(1, split.count + 1))
    _check_present(shown, paths)
    headers = tuple(header if p == path else read_header(p, want=want) for p in paths)
    for index, other in enumerate(headers):
        _check_member(header, split, other, index + 1)
    _check_tensors(headers)
    return ModelFile(paths, headers)


def _split(header: Header) -> _Split | None:
    """None for a file that is a model by itself."""
    count = _split_value(header, "split.count", 1)
    if count <= 1:
        return None
    number = _split_value(header, "split.no", -1) + 1
    if not 1 <= number <= count <= MAX_SHARDS:
        raise FileProblem(
            f"{printable(header.path.name)}: damaged file: its metadata says shard "
            f"{format_count(number)} of {format_count(count)}; download it again"
        )
    n_tensors = _split_value(header, "split.tensors.count", -1)
    return _Split(number, count, n_tensors if n_tensors >= 0 else None)


def _split_value(header: Header, key: str, default: int) -> int:
    value = header.metadata.get(key, default)
    if type(value) is not int:
        raise FileProblem(
            f"{printable(header.path.name)}: damaged file: {key} is no whole number; "
            "download it again"
        )
    return value


def _check_present(shown: str, paths: tuple[Path, ...]) -> None:
    missing = [(n, p) for n, p in enumerate(paths, start=1) if not os.path.exists(p)]
    if missing:
        number, path = missing[0]
        more = f", and {len(missing) - 1} more" if len(missing) > 1 else ""
        raise FileProblem(
            f"{shown}: shard {number} of {len(paths)} is missing "
            f"(expected {printable(path.name)} beside it{more}); download it"
        )


def _check_member(asked: Header, ours: _Split, other: Header, number: int) -> None:
    """Whether `other`, found under the name of shard `number`, belongs to the model asked for."""
    shown, name = printable(asked.path.name), printable(other.path.name)
    theirs = _split(other)
    remedy = f"download {name} again, from where {shown} came from"
    if theirs is None:
        raise FileProblem(f"{name}: is a model by itself, not a shard of {shown}; {remedy}")
    if (theirs.number, theirs.count) != (number, ours.count):
        raise FileProblem(f"{name}: its metadata says {theirs}, its name does not; {remedy}")
    if theirs.n_tensors != ours.n_tensors:
        raise FileProblem(
            f"{name}: belongs to another model than {shown} "
            f"({_count(theirs.n_tensors)} tensors in all, not {_count(ours.n_tensors)}); {remedy}"
        )
    for key in ("general.architecture", "general.name"):
        value = other.metadata.get(key)
        expected = asked.metadata.get(key)
        if value is not None and expected is not None and value != expected:
            raise FileProblem(
                f"{name}: belongs to another model than {shown} ({key} is "
                f"'{printable(str(value))}', not '{printable(str(expected))}'); {remedy}"
            )


def _check_tensors(headers: tuple[Header, ...]) -> None:
    """Every tensor once, and as many as the first shard promises."""
    owner: dict[str, Header] = {}
    for header in headers:
        for tensor in header.tensors:
            first = owner.setdefault(tensor.name, header)
            if first is not header:
                raise FileProblem(
                    f"{printable(header.path.name)}: tensor '{printable(tensor.name)}' is also in "
                    f"{printable(first.path.name)}: shards of different models or quantizations; "
                    "download the whole set again"
                )
    promised = headers[0].metadata.get("split.tensors.count", len(owner))
    if promised != len(owner):
        raise FileProblem(
            f"{printable(headers[0].path.name)}: the set has {format_count(len(owner))} tensors "
            f"where its metadata says {promised}: shards of different models or quantizations; "
            "download the whole set again"
        )


def _count(n: int | None) -> str:
    return "an unstated number of" if n is None else format_count(n)
