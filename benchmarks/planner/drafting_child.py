"""The embedded engine's child process, drafting with the model's MTP head, for which hotset's own
worker has no parameter. Takes the worker's path, and its order on stdin."""

from __future__ import annotations

import importlib.util
import json
import os
import sys

import xllamacpp


def main() -> None:
    found = importlib.util.spec_from_file_location("worker", sys.argv[1])
    assert found is not None
    assert found.loader is not None
    worker = importlib.util.module_from_spec(found)
    found.loader.exec_module(worker)
    order = json.loads(sys.stdin.readline())
    params = xllamacpp.CommonParams()
    worker.fill(params, order)
    kinds = xllamacpp.common_speculative_type
    params.speculative.types = [kinds.COMMON_SPECULATIVE_TYPE_DRAFT_MTP]
    try:
        xllamacpp.Server(params)
    except RuntimeError:
        worker.flush_log()
        os._exit(1)


if __name__ == "__main__":
    main()
