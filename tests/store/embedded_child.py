"""The embedded engine in a process of its own: says its address, serves until its input closes.

Arguments: model, plugin or "-".
"""

from __future__ import annotations

import sys
from pathlib import Path

import xllamacpp

from hotset.store.embedded import load_into_embedded


def main() -> None:
    model, plugin = sys.argv[1:]
    if plugin != "-":
        load_into_embedded(Path(plugin))
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 2048
    params.n_parallel = 2
    params.port = 0
    params.verbosity = 4
    params.warmup = False
    params.cache_ram_mib = 0
    params.no_extra_bufts = True
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    sys.stderr.write(f"listening on {server.listening_address}\n")
    sys.stdin.read()


if __name__ == "__main__":
    main()
