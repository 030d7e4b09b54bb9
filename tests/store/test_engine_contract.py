"""What the expert store leans on in an engine; docs/plugin.md lists it for upgrades."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.store import ChildSettings, NativeStore, child_settings, read_counters
from store.engines import Engine, Run
from store.tinymoe import NUM_LAYERS, write_tiny_moe

# More rows than a decode step, so that experts see several at once; and repeated, so that they
# see different numbers of them.
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4
NUM_TOKENS = 12
MATRICES_PER_LAYER = 3


def settings_for(
    engine: Engine, native: NativeStore, model: Path, counters: Path | None = None
) -> ChildSettings:
    plugin = engine.check().plugin
    assert plugin is not None
    return child_settings(native, plugin, [model], counters)


def assert_same_answer(one: Run, other: Run) -> None:
    assert one.tokens == other.tokens
    assert one.logprobs == other.logprobs
    assert len(one.tokens) == NUM_TOKENS


def test_the_store_loads_by_exactly_one_plugin(engine: Engine, native: NativeStore) -> None:
    check = engine.check()
    assert check.works
    assert check.plugin in native.plugins.values()
    assert check.reason == ""


def test_experts_are_routed_to_the_store_computed_by_it_and_give_the_same_answer(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path: Path
) -> None:
    page = tmp_path / "counters"
    plain = engine.run(tiny_moe, PROMPT, NUM_TOKENS)
    stored = engine.run(tiny_moe, PROMPT, NUM_TOKENS, settings_for(engine, native, tiny_moe, page))
    assert_same_answer(plain, stored)
    assert plain.status == 0
    assert stored.status == 0

    counters = read_counters(page)
    assert counters.num_matrices == NUM_LAYERS * MATRICES_PER_LAYER
    assert 0 < counters.mapped_bytes <= tiny_moe.stat().st_size
    # Every evaluation passes each matrix once; at least one per token and one for the prompt.
    evaluations, rest = divmod(counters.num_products, counters.num_matrices)
    assert rest == 0
    assert evaluations >= NUM_TOKENS


def test_a_start_reads_the_whole_file_unless_the_preload_library_forbids_it(
    engine: Engine, native: NativeStore, tiny_moe: Path
) -> None:
    settings = settings_for(engine, native, tiny_moe)
    spared = engine.run(tiny_moe, PROMPT, NUM_TOKENS, settings)
    whole = engine.run(tiny_moe, PROMPT, NUM_TOKENS, settings, {"HOTSET_NO_PREFETCH": ""})
    assert_same_answer(whole, spared)
    assert whole.share == 1.0
    # Not far less: the engine tries a token before it is ready, and one fault maps many pages.
    assert spared.share < 0.9


# The least budget holds one expert of one layer; a prompt then goes through it expert by expert.
@pytest.mark.parametrize("budget_share", [0.003, 0.1, 0.5, 1.5])
def test_any_budget_gives_the_same_answer_and_is_kept(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path: Path, budget_share: float
) -> None:
    page = tmp_path / "counters"
    budget = int(budget_share * tiny_moe.stat().st_size)
    plain = engine.run(tiny_moe, PROMPT, NUM_TOKENS)
    stored = engine.run(
        tiny_moe,
        PROMPT,
        NUM_TOKENS,
        settings_for(engine, native, tiny_moe, page),
        {"HOTSET_RAM_BYTES": str(budget)},
    )
    assert_same_answer(plain, stored)
    assert stored.status == 0
    counters = read_counters(page)
    assert 0 < counters.resident_bytes <= counters.budget_bytes <= budget
    assert counters.num_hits < counters.num_requests
    assert (counters.num_evictions == 0) == (budget_share >= 1)
    # What is mapped is not touched: the store reads past it.
    assert stored.share < 0.2


def test_a_budget_too_small_for_any_expert_stops_the_start_and_names_the_least(
    engine: Engine, native: NativeStore, tiny_moe: Path
) -> None:
    settings = settings_for(engine, native, tiny_moe)
    log = engine.fail(tiny_moe, settings, {"HOTSET_RAM_BYTES": "100"})
    said = [line for line in log.splitlines() if line.startswith("hotset: ")]
    assert len(said) == 1
    least = said[0].partition("the least is ")[2].split()[0]
    run = engine.run(tiny_moe, PROMPT, NUM_TOKENS, settings, {"HOTSET_RAM_BYTES": least})
    assert run.status == 0


# One type per kind of kernel: plain numbers, and blocks with and without a minimum.
@pytest.mark.parametrize("expert_type", ["F32", "BF16", "Q4_1", "Q8_0"])
def test_other_weight_types_give_the_same_answer(
    engine: Engine, native: NativeStore, tmp_path: Path, expert_type: str
) -> None:
    model = write_tiny_moe(tmp_path / "model.gguf", expert_type=expert_type)
    plain = engine.run(model, PROMPT, NUM_TOKENS)
    stored = engine.run(
        model,
        PROMPT,
        NUM_TOKENS,
        settings_for(engine, native, model),
        {"HOTSET_RAM_BYTES": str(model.stat().st_size // 2)},
    )
    assert_same_answer(plain, stored)
