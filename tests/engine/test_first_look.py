"""The engine's first table of memory, of a real server with a card made of software."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from enginekit import can_run_llama_server, llama_server, settings_for, smollm2
from hotset.core.units import MIB
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.shortage import MemoryRow, MemoryShort
from hotset.engine.start import start
from store.softwarecard import environment_with_software_card


@pytest.mark.skipif(not can_run_llama_server(), reason="built for another processor")
def test_looking_first_changes_nothing_and_tells_before_the_load_what_it_will_take() -> None:
    engine = LlamaServerEngine(llama_server())
    environment = environment_with_software_card(engine)
    seen: list[list[MemoryRow]] = []

    def judge(rows: Sequence[MemoryRow]) -> MemoryShort | None:
        seen.append([*rows])
        return MemoryShort("no") if len(seen) > 1 else None

    settings = settings_for(
        smollm2(), context_tokens=2048, gpu_layers=20, devices=("Vulkan0",), is_warmed_up=False
    )
    with start(engine, settings, environment) as plain:
        expected = plain.loaded.buffers
    first = replace(settings, tells_memory_first=True)
    with start(engine, first, environment, refuses=judge) as looked:
        assert looked.loaded.buffers == expected
        (card, host), on_card = seen[0], looked.loaded.bytes_on("Vulkan0")
    assert (card.device, host.device) == ("Vulkan0", "Host")
    assert card.total_bytes <= on_card < card.total_bytes + 3 * MIB  # three whole MiB, cut off
    assert card.free_bytes
    with pytest.raises(MemoryShort):
        start(engine, first, environment, refuses=judge)
