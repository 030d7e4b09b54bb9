"""Run one prompt in the embedded engine, in a process of its own; prints one line of JSON.

Arguments: model, plugin or "-", prompt, number of tokens.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path

import xllamacpp

from hotset.store.embedded import load_into_embedded
from store.asking import ask
from store.mapped import mapped_share


def main() -> None:
    model, plugin, prompt, num_tokens = sys.argv[1:]
    if plugin != "-":
        load_into_embedded(Path(plugin))
    params = xllamacpp.CommonParams()
    params.model.path = model
    params.n_ctx = 2048
    params.n_parallel = 1
    params.port = 0
    params.verbosity = 4
    params.warmup = False
    params.cache_ram_mib = 0
    params.no_extra_bufts = True
    params.cpuparams.n_threads = 2
    server = xllamacpp.Server(params)
    share = mapped_share("self", Path(model))
    answer = ask(server.listening_address, prompt, int(num_tokens))
    sys.stdout.write(json.dumps({"share": share, **answer}) + "\n")


if __name__ == "__main__":
    main()
