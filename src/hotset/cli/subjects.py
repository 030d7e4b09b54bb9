"""From a model's name to what a plan is made for: its files, as numbers."""

from __future__ import annotations

import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.cli.demo_models import DEMO_MOE_NAME, DEMO_NAME, demo_model
from hotset.core.errors import ConfigProblem, FileProblem
from hotset.core.units import format_bytes

if TYPE_CHECKING:
    from hotset.core.modelspec import ModelSpec
    from hotset.core.placement import Projector
    from hotset.gguf.ranges import ByteRange

__all__ = ["FileStamp", "Subject", "check_unchanged", "expanded", "read_subject", "resolve_model"]


def resolve_model(text: str) -> Path:
    """The file that a MODEL argument means: a path, a folder with one chat model, or the demo's,
    which is made first where it is the one with experts.

    Raises:
        FileProblem: there is nothing of that name, or the folder has no chat model.
        ConfigProblem: the folder has several, or `text` is empty.
    """
    if not text:
        raise ConfigProblem(
            "the name of the model is empty; give a file, a folder, 'smollm2' or 'smollm2-moe'"
        )
    path = expanded(text)
    if text == DEMO_NAME and not os.path.exists(path):
        return demo_model()
    if text == DEMO_MOE_NAME and not os.path.exists(path):
        from hotset.cli.converting import demo_moe_model

        return demo_moe_model(demo_model())
    if not os.path.isdir(path):  # unlike Path.is_dir it never raises; opening says what is wrong
        return path
    from hotset.gguf.kinds import Kind
    from hotset.gguf.library import list_models

    models = [entry.path for entry in list_models(path) if entry.kind is Kind.CHAT]
    if not models:
        raise FileProblem(
            f"{path}: no chat model in this folder (`hotset inspect {path}` lists it)"
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:8])
        raise ConfigProblem(f"{path}: several chat models in this folder ({names}); name one")
    return models[0]


def expanded(text: str) -> Path:
    """A path with `~` as the home folder; as it is where nobody has that name."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path.absolute()


@dataclass(frozen=True, slots=True)
class FileStamp:
    """A file as it was; `size` and `changed_ns` are -1 where there was none."""

    path: Path
    size: int
    changed_ns: int

    @classmethod
    def of(cls, path: Path) -> FileStamp:
        try:
            found = path.stat()
        except OSError:
            return cls(path, -1, -1)
        return cls(path, found.st_size, found.st_mtime_ns)


def check_unchanged(stamps: Iterable[FileStamp]) -> None:
    """Refuse a start with files that are not those that the plan was made for.

    Raises:
        FileProblem: one has gone, or changed.
    """
    for before in stamps:
        now = FileStamp.of(before.path)
        if now.size < 0:
            raise FileProblem(
                f"{before.path}: the file has gone since the plan was made; put it back, and start"
                " again"
            )
        if now != before:
            raise FileProblem(
                f"{before.path}: the file has changed since the plan was made"
                f" ({format_bytes(before.size)} then, {format_bytes(now.size)} now);"
                " wait until it is written, and start again"
            )


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plan is made for: a model that can be served, and its projector.

    Attributes:
        needed: for each of `files`, what of it is no expert (see `hotset.gguf.ranges`).
        stamps: of all these files, from before they were read.
    """

    files: tuple[Path, ...]
    spec: ModelSpec
    is_embedding: bool
    needed: tuple[tuple[ByteRange, ...], ...]
    projector_path: Path | None
    projector: Projector | None
    stamps: tuple[FileStamp, ...] = ()


def read_subject(model: str, *, may_embed: bool = False, has_vision: bool = True) -> Subject:
    """Read the headers of a model and of the projector beside it.

    Args:
        may_embed: an embedding model will do, too.
        has_vision: look for a projector.

    Raises:
        FileProblem: the file cannot be used.
    """
    from hotset.cli.curves import with_recorded_hits
    from hotset.gguf.kinds import Kind, kind_of
    from hotset.gguf.library import find_projectors
    from hotset.gguf.projectors import projector_sizes
    from hotset.gguf.ranges import ranges_beside_experts
    from hotset.gguf.reader import check_computable
    from hotset.gguf.shards import open_model
    from hotset.gguf.spec import model_spec

    file = open_model(resolve_model(model))
    kind = kind_of(file)
    if kind not in (Kind.CHAT, *((Kind.EMBEDDING,) if may_embed else ())):
        raise FileProblem(f"{file.paths[0].name}: this is no chat model but a file of kind: {kind}")
    for header in file.headers:
        check_computable(header)
    for path in file.paths:
        _check_name(path)
    found = find_projectors(file) if has_vision and kind is Kind.CHAT else []
    smallest = min(found, key=lambda projector: projector.file_bytes, default=None)
    spec = with_recorded_hits(model_spec(file))
    files = (*file.paths, *(smallest.paths if smallest else ()))
    return Subject(
        files=file.paths,
        spec=spec,
        is_embedding=kind is Kind.EMBEDDING,
        needed=ranges_beside_experts(file, spec.n_layers),
        projector_path=smallest.paths[0] if smallest else None,
        projector=projector_sizes(smallest) if smallest else None,
        stamps=tuple(FileStamp.of(path) for path in files),
    )


def _check_name(path: Path) -> None:
    """Refuse a path that is no UTF-8: the engine takes it as text."""
    try:
        str(path.absolute()).encode("utf-8")
    except UnicodeEncodeError as error:
        raise FileProblem(
            f"{path}: the engine cannot open a path that is not UTF-8; rename the file or folder"
        ) from error
