"""Copies between RAM and devices, timed with an engine's own library."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginekit import can_run_llama_server, llama_server
from hotset.engine.base import scrubbed
from hotset.engine.copyspeed import CopySpeed, measure_copies
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine
from store.softwarecard import environment_with_software_card


@pytest.mark.skipif(not can_run_llama_server(), reason="the prebuilt engine needs AVX-512")
def test_a_card_is_measured_in_both_directions_and_what_is_none_says_why() -> None:
    engine = LlamaServerEngine(llama_server())
    environment = environment_with_software_card(engine)
    found = measure_copies(engine.library, ["Vulkan0", "CPU", "CUDA0"], environment)
    card = found["Vulkan0"]
    assert isinstance(card, CopySpeed)
    # Nothing copies slower or faster than that; the unit is right.
    assert all(10**8 < rate < 10**12 for rate in (card.to_bytes_s, card.from_bytes_s))
    assert found["CPU"] == "the engine got no pinned memory for it"
    assert found["CUDA0"] == "its library has no such device"


def test_the_embedded_engines_library_answers_too() -> None:
    found = measure_copies(EmbeddedEngine().library, ["CPU", "CUDA0"], scrubbed(os.environ))
    assert found["CPU"] == "the engine got no pinned memory for it"
    assert found["CUDA0"] == "its library has no such device"


def test_a_library_that_is_none_gives_no_figure_but_one_line(tmp_path: Path) -> None:
    broken = tmp_path / "libggml.so"
    broken.write_text("no library")
    (reason,) = measure_copies(broken, ["CUDA0"], {}).values()
    assert isinstance(reason, str)
    assert reason.startswith("libggml.so: OSError: ")
    (tmp_path / "llama-server").touch()
    assert LlamaServerEngine(tmp_path / "llama-server").library == broken
    broken.unlink()
    alone = LlamaServerEngine(tmp_path / "llama-server").library
    (reason,) = measure_copies(alone, ["CUDA0"], {}).values()
    assert "no library" in str(reason)
