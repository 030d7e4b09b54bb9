"""Where the native libraries are, if this installation has them."""

from __future__ import annotations

from pathlib import Path

__all__ = ["native_libraries"]

_FOLDER = Path(__file__).parent.parent / "_native"


def native_libraries() -> tuple[Path, ...]:
    """The libraries that the build put beside the package; empty if it could not build them."""
    return tuple(sorted(_FOLDER.glob("*.so")))
