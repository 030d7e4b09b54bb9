"""The store in a prebuilt llama-server: the bits of the same server without it.

On its CPU, and with a graphics card (llvmpipe, in software) that holds all but the experts. Flash
attention is off there: Debian's llvmpipe crashes in it, with the stock server too.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import pytest

from enginekit import can_run_llama_server, llama_server, settings_for
from hotset.core.loaded import BufferKind, Loaded
from hotset.core.settings import Settings
from hotset.engine.base import Launch
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_tiny
from hotset.store import Counters, NativeStore, check_llama_server
from hotset.store.page import CountersPage
from store.softwarecard import environment_with_software_card
from store.storekit import Token, answer, expert_store

pytestmark = pytest.mark.skipif(
    not can_run_llama_server(), reason="this processor lacks AVX-512, which that server needs"
)

ALL_LAYERS = 99
PROMPTS = ["Once upon a time", "In the beginning there was a word, and another word, and so on."]
LONG_PROMPT = "x " * 120
SHARE_OF_EXPERTS = 0.5


@dataclass(frozen=True, slots=True)
class Placement:
    """Where the rest of the model lies, and how many tokens are computed at once."""

    changes: Mapping[str, object]
    environment: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))

    def settings(self, model: Path, **more: object) -> Settings:
        common = {"is_repacked": False, "is_warmed_up": False, "gpu_layers": 0}
        return settings_for(model, **(common | dict(self.changes) | more))

    def answers(
        self, engine: LlamaServerEngine, settings: Settings, prompts: list[str]
    ) -> tuple[list[list[Token]], Loaded]:
        with start(engine, settings, self.environment) as running:
            return [answer(running, prompt) for prompt in prompts], running.loaded


class WithoutOffload(LlamaServerEngine):
    """Computes where the weights lie, however large the batch."""

    def launch(self, settings: Settings, environ: Mapping[str, str]) -> Launch:
        launch = super().launch(settings, environ)
        return replace(launch, argv=(*launch.argv, "--no-op-offload"))


@pytest.fixture(scope="module")
def server() -> LlamaServerEngine:
    return LlamaServerEngine(llama_server())


@pytest.fixture(scope="module")
def card(server: LlamaServerEngine) -> Mapping[str, str]:
    return environment_with_software_card(server)


def on_card(card: Mapping[str, str], batch_tokens: int) -> Placement:
    changes: dict[str, object] = {
        "gpu_layers": ALL_LAYERS,
        "flash_attention": "off",
        "batch_tokens": batch_tokens,
        "ubatch_tokens": batch_tokens,
    }
    return Placement(changes, card)


def stored_answers(
    native: NativeStore, model: tuple[Path, ...], placement: Placement, prompts: list[str]
) -> tuple[list[list[Token]], Loaded, Counters]:
    """With memory for a part of the experts, and with proof that they came from the store."""
    experts = model_spec(open_model(model[0])).experts
    assert experts is not None
    ram = int(SHARE_OF_EXPERTS * experts.n_bytes)
    with CountersPage() as page:
        store = expert_store(native, page, model, ram, api=2)
        settings = placement.settings(model[0], expert_store=store)
        answers, loaded = placement.answers(LlamaServerEngine(llama_server()), settings, prompts)
        counters = page.read()
    assert 0 < counters.resident_bytes <= ram
    assert counters.num_evictions > 0
    return answers, loaded, counters


def test_the_server_takes_the_plugin_for_version_2(native: NativeStore) -> None:
    check = check_llama_server(llama_server(), os.environ, native)
    assert (check.api_version, check.plugin) == (2, native.plugins[2])


@pytest.mark.parametrize(
    ("family", "experts_type", "down_type"),
    [
        ("qwen3moe", "Q4_0", "Q4_0"),
        ("olmoe", "Q4_K", "Q6_K"),
        ("deepseek2", "IQ4_XS", "IQ4_XS"),
        ("gpt-oss", "MXFP4", "MXFP4"),
    ],
)
def test_on_its_cpu_the_store_gives_the_bits_of_the_stock_server(
    native: NativeStore,
    server: LlamaServerEngine,
    tmp_path: Path,
    family: str,
    experts_type: str,
    down_type: str,
) -> None:
    path = tmp_path / "tiny.gguf"
    model = write_tiny(family, path, experts_type=experts_type, down_type=down_type)
    prompts = [*PROMPTS, LONG_PROMPT]
    placement = Placement({"ubatch_tokens": 128})
    stock, _ = placement.answers(server, placement.settings(model[0]), prompts)
    stored, _, _ = stored_answers(native, model, placement, prompts)
    assert stored == stock


@pytest.mark.timeout(900)  # a driver that has not yet compiled its shaders needs minutes
@pytest.mark.parametrize("family", ["olmoe", "qwen3moe"])
def test_with_the_rest_on_a_card_the_store_gives_the_bits_of_the_stock_server(
    native: NativeStore,
    server: LlamaServerEngine,
    card: Mapping[str, str],
    tmp_path: Path,
    family: str,
) -> None:
    model = write_tiny(family, tmp_path / "tiny.gguf")
    placement = on_card(card, batch_tokens=8)
    settings = placement.settings(model[0], cpu_moe_layers=ALL_LAYERS)
    stock, _ = placement.answers(server, settings, PROMPTS)
    stored, loaded, _ = stored_answers(native, model, placement, PROMPTS)
    assert stored == stock
    # The caches were on the card, and so was what is no expert, except the table of tokens.
    devices = {kind: {b.device for b in loaded.buffers if b.kind is kind} for kind in BufferKind}
    assert devices[BufferKind.KV] == {"Vulkan0"}
    assert {"Vulkan0", "HOTSET"} <= devices[BufferKind.MODEL]


@pytest.mark.timeout(900)
def test_large_batches_do_not_take_experts_from_the_store_to_the_card(
    native: NativeStore, server: LlamaServerEngine, card: Mapping[str, str], tmp_path: Path
) -> None:
    model = write_tiny("olmoe", tmp_path / "tiny.gguf")
    placement = on_card(card, batch_tokens=64)
    settings = placement.settings(model[0], cpu_moe_layers=ALL_LAYERS)
    on_cpu = Placement({**placement.changes, "gpu_layers": 0})
    prompts = [LONG_PROMPT]
    stored, _, counters = stored_answers(native, model, placement, prompts)
    _, _, counters_on_cpu = stored_answers(native, model, on_cpu, prompts)
    # Every row was multiplied by the store, as without a card.
    assert counters.num_rows == counters_on_cpu.num_rows
    at_the_weights, _ = placement.answers(WithoutOffload(llama_server()), settings, prompts)
    assert stored == at_the_weights
    # The stock server does take them, and its card rounds differently.
    offloaded, _ = placement.answers(server, settings, prompts)
    assert offloaded != at_the_weights
