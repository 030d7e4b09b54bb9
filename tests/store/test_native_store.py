"""The store core by itself, under AddressSanitizer and ThreadSanitizer."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

NATIVE = Path(__file__).parents[2] / "native"
# Kept between runs: only what changed is built again.
BUILDS = Path(__file__).parents[2] / "build" / "sanitizers"
TESTS = ("store-test", "tally-test", "policy-test")


def tool(name: str) -> str:
    """A build tool of this environment, or of the system."""
    beside = Path(sys.executable).with_name(name)
    return str(beside) if beside.exists() else name


@pytest.mark.skipif(shutil.which("c++") is None, reason="no C++ compiler")
@pytest.mark.parametrize("sanitizer", ["address", "thread"])
def test_the_stores_own_tests_pass_under_the_sanitizer(sanitizer: str) -> None:
    build = BUILDS / sanitizer
    commands = [
        [
            tool("cmake"),
            *("-S", str(NATIVE), "-B", str(build), "-G", "Ninja"),
            f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}",
            *("-DCMAKE_BUILD_TYPE=RelWithDebInfo", "-DHOTSET_TESTS=ON"),
            f"-DHOTSET_SANITIZE={sanitizer}",
        ],
        [tool("cmake"), "--build", str(build), "--target", *TESTS],
        *([str(build / test)] for test in TESTS),
    ]
    for command in commands:
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
