"""The gateway under rough use: `HOTSET_SOAK_LOADS=1000` for a long one, by hand."""

from __future__ import annotations

import os
import re
import signal
import sys
from pathlib import Path

import psutil
import pytest

from clikit import background
from hotset.core.units import MIB
from hotset.gguf.synth.models import write_tiny
from soakkit import Soak

_NUM_LOADS = int(os.environ.get("HOTSET_SOAK_LOADS", "20"))
_FAMILIES = ("qwen3moe", "llama", "qwen3")


@pytest.mark.timeout(120 + 10 * _NUM_LOADS)
def test_every_request_ends_in_a_right_answer_or_one_clear_error(tmp_path: Path) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for family in _FAMILIES:
        write_tiny(family, folder / f"{family}.gguf")
    words = ("serve", folder, "--port", "0", "--threads", "1", "--ctx", "1024", "--ram", "300MiB")
    with background(*words, home=tmp_path) as server:
        match = re.match(r"(http://127\.0\.0\.1:\d+)/v1 ", server.await_note("/v1 (OpenAI)"))
        assert match
        soak = Soak(match[1], _FAMILIES, num_loads=_NUM_LOADS)
        soak.run()
        gateway = psutil.Process(server.process.pid)
        # A connection to each client and engine, pipes to a guard, and what Python opens itself.
        num_files, rss_mib = gateway.num_fds(), gateway.memory_info().rss / MIB
        server.send(signal.SIGINT)
        ended = server.end()
    sys.stdout.write(f"{dict(soak.ended)}, {num_files} files, {rss_mib:.0f} MiB\n")
    assert soak.wrong == []
    assert soak.ended["right"] > 0
    assert num_files < 60
    assert ended.code == 0
    assert "Traceback" not in ended.err
