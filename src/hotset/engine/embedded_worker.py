"""The child process of the embedded engine: llama.cpp's server inside `xllamacpp`.

Run as a script of its own; imports nothing of hotset but the loader of the expert store. It reads
one JSON line from stdin: `{"probe": true}` prints what the engine is and can do as one JSON line on
stdout and ends; anything else is a start: `{"params": {...}, "model": ..., "plugin": ..., ...}`.

The constructor of the server holds the interpreter until the model is loaded, so nothing here can
react to anything in that time: the guard around this process does.
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
from pathlib import Path
from typing import Any, NoReturn


def backend_api_version(extension: str) -> int:
    """The plugin interface version: first field of any backend's registration."""
    library = ctypes.CDLL(extension)
    library.ggml_backend_reg_get.restype = ctypes.c_void_p
    library.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
    address = library.ggml_backend_reg_get(0)
    return ctypes.cast(address, ctypes.POINTER(ctypes.c_int))[0] if address else 0


def probe() -> None:
    import xllamacpp

    extension = sys.modules["xllamacpp.xllamacpp"].__file__
    print(  # noqa: T201 - the answer to the probe
        json.dumps(
            {
                "version": xllamacpp.__version__,
                "system": xllamacpp.get_system_info(),
                "devices": [
                    [d["name"], d["description"], d["memory_total"]]
                    for d in xllamacpp.get_device_info()
                ],
                "has_moe_cache": hasattr(xllamacpp.CommonParams(), "moe_cache_size"),
                "api_version": backend_api_version(str(extension)),
            }
        )
    )


def flush_log() -> None:
    """Wait until every line of llama.cpp's log is written: a thread of its own writes them.

    `_exit` stops that thread between two lines, and the cause of a failure is the last one. The
    functions are C++ ones, so a build may name them differently; then there is nothing to wait for.
    """
    library = ctypes.CDLL(sys.modules["xllamacpp.xllamacpp"].__file__)
    try:
        main_log, flush = library._Z15common_log_mainv, library._Z16common_log_flushP10common_log
    except AttributeError:
        return
    main_log.restype = ctypes.c_void_p
    flush.restype, flush.argtypes = None, [ctypes.c_void_p]
    flush(main_log())


def fill(params: Any, order: dict[str, Any]) -> None:
    """Set every parameter of the order; one that this build lacks is an error, not ignored."""
    params.model.path = order["model"]
    if order["projector"]:
        params.mmproj.path = order["projector"]
    if order["threads"]:
        params.cpuparams.n_threads = order["threads"]
        params.cpuparams_batch.n_threads = order["threads"]
    for name, given in order["params"].items():
        current = getattr(params, name)
        value = given
        if isinstance(given, dict):  # an enumeration, by the name of its member
            value = getattr(type(current), given["member"])
        elif isinstance(current, set):
            value = set(given)
        setattr(params, name, value)


def serve(order: dict[str, Any]) -> NoReturn:
    import xllamacpp

    # Blocked before the server makes its threads, so that none of them takes the signal's default.
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})
    if order["plugin"]:
        # The store's device must be there before any parameters are.
        from hotset.store.embedded import load_into_embedded

        load_into_embedded(Path(order["plugin"]))
    params = xllamacpp.CommonParams()
    fill(params, order)
    try:
        server = xllamacpp.Server(params)
    except RuntimeError:
        # The cause is in the log; this exception says only that there was one.
        flush_log()
        os._exit(1)
    # From here on a polite end is possible: destroy the server, flush, leave.
    signal.sigwait({signal.SIGTERM})
    # The server waits for running answers. Whoever wanted them has waited before the signal.
    signal.alarm(1)
    del server
    flush_log()
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    order = json.loads(sys.stdin.readline())
    if order.get("probe"):
        probe()
    else:
        serve(order)
