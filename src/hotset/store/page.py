"""The counters of one engine: a page that the store writes and hotset reads, with no name left."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path

from hotset.store.counters import Counters, read_counters

__all__ = ["NAME_PREFIX", "NAME_SUFFIX", "CountersPage"]

NAME_PREFIX, NAME_SUFFIX = "hotset-", ".counters"


class CountersPage:
    """Made before the start, adopted after it; from then on the file has no name.

    So a kill of hotset leaves nothing behind but a page whose engine was still loading.

    Raises:
        OSError: no file can be made in the folder for temporary files.
    """

    def __init__(self) -> None:
        descriptor, name = tempfile.mkstemp(prefix=NAME_PREFIX, suffix=NAME_SUFFIX)
        self.path = Path(name)
        self._descriptor = descriptor

    def adopt(self) -> None:
        """The engine has opened the page: take its name away."""
        self.path.unlink(missing_ok=True)

    def read(self) -> Counters:
        """The counters now.

        Raises:
            EngineProblem: the engine has not written a complete page.
        """
        return read_counters(Path(f"/proc/self/fd/{self._descriptor}"))

    def close(self) -> None:
        self.path.unlink(missing_ok=True)
        os.close(self._descriptor)

    def __enter__(self) -> CountersPage:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()
