"""A model that needs the expert store, shared by the commands' tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from store.tinymoe import write_tiny_moe

NUM_EXPERTS = 512


@pytest.fixture(name="moe", scope="session")
def _moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """166 MiB: with `--ram 300MiB` it does not fit beside what the engine needs for itself."""
    path = tmp_path_factory.mktemp("moe") / "moe.gguf"
    return write_tiny_moe(path, num_experts=NUM_EXPERTS)
