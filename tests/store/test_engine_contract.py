"""What the expert store leans on in an engine; docs/plugin.md lists it for upgrades."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Protocol

import pytest

from hotset.store import (
    ChildSettings,
    Counters,
    NativeStore,
    StoreState,
    child_settings,
    read_counters,
)
from store.asking import Answer, ask, post
from store.engines import Engine, running, start
from store.tinymoe import NUM_LAYERS, write_tiny_moe

# More rows than a decode step, so that experts see several at once; and repeated, so that they
# see different numbers of them.
PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 4
NUM_TOKENS = 12
MATRICES_PER_LAYER = 3


class SettingsFor(Protocol):
    """Child settings for a model; the child's counters go to the page that they name."""

    def __call__(self, model: Path, ram_bytes: int = 0) -> ChildSettings: ...


@pytest.fixture
def settings_for(engine: Engine, native: NativeStore, tmp_path: Path) -> SettingsFor:
    def make(model: Path, ram_bytes: int = 0) -> ChildSettings:
        plugin = engine.check().plugin
        assert plugin is not None
        page = tmp_path / "counters"
        return child_settings(native, plugin, [model], ram_bytes=ram_bytes, counters=page)

    return make


def counters_of(settings: ChildSettings) -> Counters:
    return read_counters(Path(settings.environment["HOTSET_TELEMETRY"]))


def assert_layers_add_up(counters: Counters) -> None:
    """Once the engine is idle: while it computes, the numbers are not of one instant."""
    assert [layer.name for layer in counters.layers] == [f"blk.{i}" for i in range(NUM_LAYERS)]
    for number in (
        *("resident_bytes", "num_requests", "num_hits", "num_misses", "num_evictions"),
        *("read_bytes", "num_reads", "wait_ns"),
    ):
        assert getattr(counters, number) == sum(getattr(each, number) for each in counters.layers)


@pytest.fixture(scope="module")
def plain_answer(engine: Engine, tiny_moe: Path) -> Answer:
    """What the engine says without the store."""
    with running(engine, tiny_moe) as plain:
        answer = ask(plain.address, PROMPT, NUM_TOKENS)
    assert len(answer.tokens) == NUM_TOKENS
    return answer


def test_the_store_loads_by_exactly_one_plugin(engine: Engine, native: NativeStore) -> None:
    check = engine.check()
    assert check.works
    assert check.plugin in native.plugins.values()
    assert check.reason == ""


def test_experts_are_mapped_to_the_store_computed_by_it_and_give_the_same_answer(
    engine: Engine, settings_for: SettingsFor, tiny_moe: Path, plain_answer: Answer
) -> None:
    settings = settings_for(tiny_moe)
    with running(engine, tiny_moe, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS) == plain_answer
    counters = counters_of(settings)
    assert counters.num_matrices == NUM_LAYERS * MATRICES_PER_LAYER
    assert 0 < counters.mapped_bytes <= tiny_moe.stat().st_size
    # Every evaluation passes each matrix once; at least one per token and one for the prompt.
    evaluations, rest = divmod(counters.num_products, counters.num_matrices)
    assert rest == 0
    assert evaluations >= NUM_TOKENS


def test_a_start_reads_the_whole_file_unless_the_preload_library_forbids_it(
    engine: Engine, settings_for: SettingsFor, tiny_moe: Path
) -> None:
    settings = settings_for(tiny_moe)
    with running(engine, tiny_moe, settings) as spared:
        # Not far less: the engine tries a token before it is ready, and one fault maps many pages.
        assert spared.mapped_share() < 0.9
        ask(spared.address, PROMPT, 1)
    with running(engine, tiny_moe, settings, {"HOTSET_NO_PREFETCH": ""}) as whole:
        assert whole.mapped_share() == 1.0
        ask(whole.address, PROMPT, 1)


# The least budget holds one expert of one layer; a prompt then goes through it expert by expert.
@pytest.mark.parametrize("budget_share", [0.003, 0.1, 0.5, 1.5])
def test_any_budget_gives_the_same_answer_and_is_kept(
    engine: Engine,
    settings_for: SettingsFor,
    tiny_moe: Path,
    plain_answer: Answer,
    budget_share: float,
) -> None:
    budget = int(budget_share * tiny_moe.stat().st_size)
    settings = settings_for(tiny_moe, ram_bytes=budget)
    with running(engine, tiny_moe, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS) == plain_answer
        # What is mapped is not touched: the store reads past it.
        assert stored.mapped_share() < 0.2
    counters = counters_of(settings)
    assert 0 < counters.resident_bytes <= counters.budget_bytes <= budget
    assert counters.num_hits < counters.num_requests
    assert (counters.num_evictions == 0) == (budget_share >= 1)
    assert_layers_add_up(counters)


def test_requests_at_the_same_time_get_the_answers_they_get_without_the_store(
    engine: Engine, settings_for: SettingsFor, tiny_moe: Path
) -> None:
    prompts = [PROMPT, PROMPT[::-1]]
    settings = settings_for(tiny_moe, ram_bytes=tiny_moe.stat().st_size // 4)
    with running(engine, tiny_moe, settings) as stored, ThreadPoolExecutor() as pool:
        before = counters_of(settings)
        asked = [pool.submit(ask, stored.address, prompt, NUM_TOKENS) for prompt in prompts]
        while not all(each.done() for each in asked):
            now = counters_of(settings)
            assert now.state is StoreState.OPEN
            assert now.resident_bytes <= now.budget_bytes
            for old, new in zip(before.layers, now.layers, strict=True):
                assert old.num_requests <= new.num_requests
                assert old.read_bytes <= new.read_bytes
            before = now
            time.sleep(0.005)
        together = [each.result() for each in asked]
        assert_layers_add_up(counters_of(settings))
    with running(engine, tiny_moe) as plain:
        alone = [ask(plain.address, prompt, NUM_TOKENS) for prompt in prompts]
    # Tokens only: batches of other sizes round differently, with and without the store.
    assert [answer.tokens for answer in together] == [answer.tokens for answer in alone]


def test_a_model_file_that_changes_fails_the_request_and_not_the_engine(
    engine: Engine, settings_for: SettingsFor, tmp_path: Path
) -> None:
    model = write_tiny_moe(tmp_path / "model.gguf")
    before = model.stat()
    settings = settings_for(model, ram_bytes=before.st_size // 8)
    with running(engine, model, settings) as stored:
        answer = ask(stored.address, PROMPT, NUM_TOKENS)
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns + 1))
        assert post(stored.address, PROMPT, NUM_TOKENS).status_code == 500
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert ask(stored.address, PROMPT, NUM_TOKENS) == answer
    assert f"{model}: changed while in use" in stored.log


def test_a_budget_too_small_for_any_expert_stops_the_start_and_names_the_least(
    engine: Engine, settings_for: SettingsFor, tiny_moe: Path, plain_answer: Answer
) -> None:
    failed = start(engine, tiny_moe, settings_for(tiny_moe, ram_bytes=100), None)
    assert failed.stop() == 1, failed.log
    assert failed.address == ""
    # Anywhere in a line: the engine's logger may just have written the beginning of its own.
    said = [line for line in failed.log.splitlines() if "hotset: expert store: " in line]
    assert len(said) == 1, failed.log
    least = int(said[0].partition("the least is ")[2].split()[0])
    settings = settings_for(tiny_moe, ram_bytes=least)
    with running(engine, tiny_moe, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS) == plain_answer


# One type per kind of kernel: plain numbers, and blocks with and without a minimum.
@pytest.mark.parametrize("expert_type", ["F32", "BF16", "Q4_1", "Q8_0"])
def test_other_weight_types_give_the_same_answer(
    engine: Engine, settings_for: SettingsFor, tmp_path: Path, expert_type: str
) -> None:
    model = write_tiny_moe(tmp_path / "model.gguf", expert_type=expert_type)
    with running(engine, model) as plain:
        answer = ask(plain.address, PROMPT, NUM_TOKENS)
    settings = settings_for(model, ram_bytes=model.stat().st_size // 2)
    with running(engine, model, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS) == answer
