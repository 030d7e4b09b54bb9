"""The native part, the engines and a tiny model, shared by the store's tests."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from enginekit import can_run_llama_server, llama_server
from hotset.core.errors import EngineProblem
from hotset.store import NativeStore, find_native
from store.engines import SERVER_VARIABLE, Embedded, Engine, LlamaServer
from store.tinymoe import write_tiny_moe


@pytest.fixture(scope="session")
def native() -> NativeStore:
    try:
        return find_native()
    except EngineProblem as problem:
        pytest.skip(problem.message)


@pytest.fixture(scope="session", params=["embedded", "llama-server"])
def engine(request: pytest.FixtureRequest) -> Engine:
    if request.param == "embedded":
        return Embedded()
    binary = os.environ.get(SERVER_VARIABLE)
    if binary is not None:
        return LlamaServer(Path(binary))
    if not can_run_llama_server():
        pytest.skip(f"this processor lacks AVX-512; name a llama-server in {SERVER_VARIABLE}")
    return LlamaServer(llama_server())


@pytest.fixture(scope="session")
def tiny_moe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """128 experts in Q4_0: so many that a few tokens leave most of the file untouched."""
    path = tmp_path_factory.mktemp("models") / "tiny-moe.gguf"
    return write_tiny_moe(path, num_experts=128)
