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
from hotset.gguf.synth.models import write_tiny
from soakkit import Soak

_NUM_LOADS = int(os.environ.get("HOTSET_SOAK_LOADS", "20"))
_SEED = int(os.environ.get("HOTSET_SOAK_SEED", "0"))
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
        gateway = psutil.Process(server.process.pid)
        soak = Soak(match[1], gateway, _FAMILIES, num_loads=_NUM_LOADS, seed=_SEED)
        soak.run()
        server.send(signal.SIGINT)
        ended = server.end()
    lines = [str(dict(soak.ended)), *map(str, soak.samples)]
    sys.stdout.write("\n".join(lines) + "\n")
    assert soak.wrong == []
    assert soak.ended["right"] > 0
    # Of each client and engine a connection, pipes to a guard, and what Python opens itself.
    assert max(sample.num_files for sample in soak.samples) < 60
    # Three engines with a guard each, and one of each that is just ending.
    assert max(sample.num_children for sample in soak.samples) <= 12
    if _NUM_LOADS >= 200:
        settled, last = soak.samples[5], soak.samples[-1]
        assert last.rss_mib < settled.rss_mib + 16
    assert ended.code == 0
    assert "Traceback" not in ended.err
