"""The store's answers over HTTP for every size of batch: the bits of the stock engine.

Requests that share a batch get other bits than alone, from the stock engine too: kernels round
differently for other numbers of rows, and quantized activations and the router may turn that into
other tokens. `test_decode_identity.py` compares batches of up to eight sequences by bits instead.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from enginekit import settings_for
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.running import Running
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_tiny
from hotset.store import NativeStore
from hotset.store.page import CountersPage
from store.storekit import answer, expert_store


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, ...]:
    path = tmp_path_factory.mktemp("models") / "tiny.gguf"
    return write_tiny("qwen3moe", path, experts_type="Q4_K", n_experts=16, n_used=4)


@contextmanager
def running(model: tuple[Path, ...], **changes: object) -> Iterator[Running]:
    common: dict[str, object] = {"is_repacked": False, "context_tokens": 1024}
    with start(EmbeddedEngine(), settings_for(model[0], **common, **changes), os.environ) as engine:
        yield engine


@contextmanager
def running_with_store(
    native: NativeStore, model: tuple[Path, ...], share: float, **changes: object
) -> Iterator[Running]:
    """With memory for `share` of the experts, and with proof that the store was in use."""
    experts = model_spec(open_model(model[0])).experts
    assert experts is not None
    ram = int(share * experts.n_bytes)
    with CountersPage() as page:
        store = expert_store(native, page, model, ram)
        with running(model, expert_store=store, **changes) as engine:
            yield engine
            counters = page.read()
    assert counters.num_requests > 0
    assert 0 < counters.resident_bytes <= ram
    assert (counters.num_evictions > 0) == (share < 1)


@pytest.mark.parametrize(
    ("batch", "ubatch"), [(2, 1), (2, 2), (16, 16), (33, 17), (128, 64), (512, 512)]
)
def test_every_size_of_batch_gives_the_bits_of_the_stock_engine(
    native: NativeStore, model: tuple[Path, ...], batch: int, ubatch: int
) -> None:
    sizes = {"batch_tokens": batch, "ubatch_tokens": ubatch}
    prompts = ["Once upon a time", "x " * 300]  # the long one fills every size of batch
    with running(model, **sizes) as engine:
        stock = [answer(engine, prompt) for prompt in prompts]
    with running_with_store(native, model, 0.3, **sizes) as engine:
        stored = [answer(engine, prompt) for prompt in prompts]
    assert stored == stock
