"""Where the native part lies: the plugins, one per version of ggml's backend interface."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from importlib import metadata
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

    Default: `_native` in the package, then where hotset is installed (an editable installation
    keeps what was built there, apart from the sources).

    Raises:
        EngineProblem: the native part was not built, or only in part.
    """
    searched = list(_default_directories() if directories is None else directories)
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


def _default_directories() -> list[Path]:
    directories = [Path(parent) / "_native" for parent in hotset.__path__]
    try:
        installed = metadata.distribution("hotset").locate_file("hotset/_native")
    except metadata.PackageNotFoundError:
        return directories
    return list(dict.fromkeys([*directories, Path(str(installed))]))
