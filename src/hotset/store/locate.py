"""Where the native part lies: the plugins, one per version of ggml's backend interface."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

import hotset
from hotset.core.errors import EngineProblem

__all__ = ["NativeStore", "find_native"]

_PLUGIN_NAME = re.compile(r"libhotset-ggml(\d+)\.so")
_PRELOAD_NAME = "libhotset-preload.so"


@dataclass(frozen=True, slots=True)
class NativeStore:
    """The built libraries.

    `plugins` maps the version of ggml's backend interface to the plugin made for it; it is never
    empty. `preload` is the library that keeps an engine from reading whole model files at start.
    """

    plugins: Mapping[int, Path]
    preload: Path

    def newest_first(self) -> list[tuple[int, Path]]:
        """Version and plugin, in the order in which an unknown engine is best tried."""
        return sorted(self.plugins.items(), reverse=True)


def find_native(directories: Iterable[Path] | None = None) -> NativeStore:
    """The native part in the first of `directories` that holds it.

    Default: `_native` in each directory of the package (an editable installation has two: the
    sources, and what was built).

    Raises:
        EngineProblem: the native part was not built, or only in part.
    """
    if directories is None:
        directories = [Path(parent) / "_native" for parent in hotset.__path__]
    searched = list(directories)
    for directory in searched:
        preload = directory / _PRELOAD_NAME
        plugins = {
            int(match[1]): path
            for path in sorted(directory.glob("libhotset-ggml*.so"))
            if (match := _PLUGIN_NAME.fullmatch(path.name))
        }
        if plugins and preload.is_file():
            return NativeStore(MappingProxyType(plugins), preload)
    raise EngineProblem(
        f"expert store: no native part in {' or '.join(map(str, searched))}: hotset was installed "
        "without it; install a C++20 compiler (g++ 11 or newer) and install hotset again"
    )
