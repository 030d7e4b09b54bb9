"""A disk that fails on demand, for an engine's process (native/tests/faulty.cpp)."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest

from hotset.store import ChildSettings

SOURCE = Path(__file__).parents[2] / "native" / "tests" / "faulty.cpp"


@dataclass(frozen=True, slots=True)
class FaultyDisk:
    """The library, and the file that tells it what is wrong."""

    library: Path
    order: Path

    def environment(self, settings: ChildSettings) -> dict[str, str]:
        """For an engine with the store: this library before the preload library."""
        return {
            "LD_PRELOAD": f"{self.library}:{settings.environment['LD_PRELOAD']}",
            "HOTSET_TEST_FAULT": str(self.order),
        }

    @contextmanager
    def failing(self, order: str) -> Iterator[None]:
        """Within the block the disk does as ordered; then it is sound again."""
        self.begin(order)
        try:
            yield
        finally:
            self.order.unlink()

    def begin(self, order: str) -> None:
        draft = self.order.with_suffix(".draft")
        draft.write_text(order)
        os.replace(draft, self.order)


def build_faulty_disk(folder: Path) -> FaultyDisk:
    """Compile the library; skip the test where there is no compiler."""
    compiler = shutil.which("c++")
    if compiler is None:
        pytest.skip("no C++ compiler")
    library = folder / "libfaulty.so"
    options = ("-std=c++20", "-O1", "-shared", "-fPIC", "-Wall", "-Wextra", "-Werror")
    subprocess.run([compiler, *options, str(SOURCE), "-o", str(library), "-ldl"], check=True)
    return FaultyDisk(library, folder / "order")
