"""A machine from a file that somebody wrote, or that `hotset machine save` did."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hotset.core.errors import ConfigProblem
from hotset.core.machine import Machine
from hotset.core.machine_file import dotted, machine_from_mapping

__all__ = ["read_machine"]

_MOST_BYTES = 1 << 20


def read_machine(file: Path) -> Machine:
    """The machine that a YAML 1.2 file describes.

    Raises:
        ConfigProblem: the file cannot be read, is no YAML, or says what cannot be meant; with the
            line where that is.
    """
    from ruamel.yaml import YAML
    from ruamel.yaml.error import MarkedYAMLError, YAMLError

    try:
        with file.open("rb") as opened:
            text = opened.read(_MOST_BYTES + 1).decode()
    except OSError as error:
        raise ConfigProblem(f"{file}: the machine's file cannot be read ({error.strerror})") from (
            error
        )
    except UnicodeDecodeError as error:
        raise ConfigProblem(f"{file}: no text in UTF-8, so no machine's file") from error
    if len(text) > _MOST_BYTES:
        raise ConfigProblem(f"{file}: larger than 1 MiB, so no machine's file")
    try:
        data = YAML(typ="rt", pure=True).load(text)
    except MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise ConfigProblem(f"{file}:{line}: no YAML: {error.problem}") from error
    except (YAMLError, ValueError, RecursionError) as error:
        raise ConfigProblem(f"{file}: no YAML: {error}") from error
    return machine_from_mapping(data, lambda path: f"{file}:{_line(data, path)}: {dotted(path)}")


def _line(data: Any, path: Sequence[str | int]) -> int:
    """The line of a value; that of the mapping it is missing in, if it is not there."""
    line = 1
    for part in path:
        places = getattr(data, "lc", None)
        if places is None or not _has(data, part):
            break
        at = places.item(part) if isinstance(part, int) else places.key(part)
        line = at[0] + 1
        data = data[part]
    return line


def _has(data: Any, part: str | int) -> bool:
    return part < len(data) if isinstance(part, int) else part in data
