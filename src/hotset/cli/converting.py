"""The demo's model with experts: made on this machine the first time, kept afterwards."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.core.units import MIB

__all__ = ["demo_moe_model"]

_NAME = "smollm2-135m-instruct-24x32.gguf"
_N_BYTES = 112 * MIB  # of which it takes 106


def demo_moe_model(source: Path) -> Path:
    """The file made of the dense demo model at `source`.

    Raises:
        FileProblem: `source` is not a model that can be converted.
        MachineProblem: there is no place to keep the result.
    """
    from hotset.lab.moe.cache import first_usable, kept_file
    from hotset.lab.moe.convert import RECIPE, convert

    def make(path: Path) -> None:
        from hotset.cli.screen import LoadingLine, note

        note("making a Mixture-of-Experts model of SmolLM2-135M, once; this takes about a minute")
        with LoadingLine("reading the dense model") as line:
            convert(source, path, line.show_share)
        note(f"kept as {path}")

    try:
        told = source.stat()
    except OSError as error:
        raise FileProblem(f"{source}: cannot be read: {error.strerror}") from error
    key = f"{RECIPE} {source.name} {told.st_size}"
    return kept_file(first_usable(_folders()), _NAME, key, make, _N_BYTES)


def _folders() -> list[Path]:
    """Where converted models may be kept, best first."""
    from hotset.cli.machine_options import cache_folder

    temporary = Path(tempfile.gettempdir()) / f"hotset-{os.geteuid()}"
    return [cache_folder(os.environ), temporary]
