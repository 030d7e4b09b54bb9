"""The engine in a process of its own: takes one JSON line, says its address, serves until its input
closes.

The order has the keys "model", "plugin" (null for none), "threads", "load_mode" and "params".
"""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import xllamacpp

from hotset.store.embedded import load_into_embedded


def main() -> None:
    """Serve one order."""
    order = json.loads(sys.stdin.readline())
    if order["plugin"]:
        load_into_embedded(Path(order["plugin"]))
    params: Any = xllamacpp.CommonParams()
    params.model.path = order["model"]
    params.cpuparams.n_threads = params.cpuparams_batch.n_threads = order["threads"]
    params.load_mode = getattr(type(params.load_mode), f"LLAMA_LOAD_MODE_{order['load_mode']}")
    for name, value in order["params"].items():
        setattr(params, name, value)
    server = xllamacpp.Server(params)
    sys.stdout.write(f"{server.listening_address}\n")
    sys.stdout.flush()
    sys.stdin.read()
    del server
    os._exit(0)


if __name__ == "__main__":
    main()
