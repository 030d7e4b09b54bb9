"""Inference engines: one interface, one file per engine, and the supervision of their processes."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from hotset.engine.base import Engine

__all__ = ["ENGINE_NAMES", "engine_named"]

ENGINE_NAMES = ("embedded", "llama-server")


def engine_named(name: str, path: str) -> Engine:
    """The engine called `name`; anything that is no known name is a program's path.

    Args:
        name: "embedded", "llama-server" (the first on `path`), or a path.
        path: the search path for programs.

    Raises:
        EngineProblem: "llama-server" is asked for and none is on the path.
    """
    from hotset.core.errors import EngineProblem

    if name == "embedded":
        from hotset.engine.embedded import EmbeddedEngine

        return EmbeddedEngine()
    from hotset.engine.llama_server import LlamaServerEngine, find_llama_server

    if name != "llama-server":
        return LlamaServerEngine(Path(name))
    found = find_llama_server(path)
    if found is None:
        raise EngineProblem(
            "engine llama-server: there is none on the PATH; give its path to --engine"
        )
    return LlamaServerEngine(found)
