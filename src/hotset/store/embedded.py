"""Loading the plugin into the embedded engine, inside the process that runs it.

Run as a module with a plugin's path, it tries just that: exit status 0 and the device's name, or
5 and the reason on standard error.
"""

from __future__ import annotations

import ctypes
import os
import sys
from importlib import import_module
from pathlib import Path

from hotset.core.errors import EngineProblem

__all__ = ["load_into_embedded"]


def load_into_embedded(plugin: Path) -> None:
    """Register the store's device with xllamacpp; call before any parameters are set.

    The extension module exports ggml's own functions, but Python has loaded it with local
    symbols; a second handle on it reaches them and changes nobody's visibility.

    Raises:
        EngineProblem: xllamacpp is not installed, does not export the loader, or refuses the
            plugin; the plugin's own line about it is on standard error then.
    """
    try:
        extension = import_module("xllamacpp.xllamacpp")
    except ImportError as error:
        raise EngineProblem(f"embedded engine: xllamacpp does not load: {error}") from None
    library = ctypes.CDLL(extension.__file__, mode=os.RTLD_NOLOAD | os.RTLD_LAZY)
    try:
        load = library.ggml_backend_load
    except AttributeError:
        raise EngineProblem(
            "embedded engine: this build of xllamacpp does not export ggml_backend_load"
        ) from None
    load.argtypes = [ctypes.c_char_p]
    load.restype = ctypes.c_void_p
    if load(os.fsencode(plugin)) is None:
        raise EngineProblem(f"embedded engine: does not take the expert store {plugin}")


def main() -> int:
    try:
        load_into_embedded(Path(sys.argv[1]))
    except EngineProblem as problem:
        sys.stderr.write(f"hotset: {problem.message}\n")
        return problem.exit_code
    sys.stdout.write("HOTSET\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
