"""When reads fail or the model's file changes: an error for the request, never a wrong token."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import pytest

from hotset.gguf.reader import read_header
from hotset.store import ChildSettings, NativeStore, child_settings
from store.asking import Answer, ask, post
from store.engines import Engine, Running, running, start
from store.faults import FaultyDisk, build_faulty_disk
from store.tinymoe import write_tiny_moe

PROMPT = "The quick brown fox jumps over the lazy dog, and the dog sleeps on. " * 2
NUM_TOKENS = 12
NUM_EXPERTS = 64
# So little that every token reads, and so much that all experts stay.
LITTLE, PLENTY = 0.1, 1.5


@pytest.fixture(scope="module")
def disk(tmp_path_factory: pytest.TempPathFactory) -> FaultyDisk:
    return build_faulty_disk(tmp_path_factory.mktemp("faulty"))


@pytest.fixture
def model(tmp_path: Path) -> Path:
    """A file of its own for each test: most of them spoil it."""
    return write_tiny_moe(tmp_path / "model.gguf", num_experts=NUM_EXPERTS)


@pytest.fixture
def settings_for(engine: Engine, native: NativeStore) -> Callable[[Path, float], ChildSettings]:
    def make(model: Path, share: float) -> ChildSettings:
        plugin = engine.check().plugin
        assert plugin is not None
        ram_bytes = int(share * model.stat().st_size)
        return child_settings(native, plugin, [model], ram_bytes=ram_bytes)

    return make


SettingsFor = Callable[[Path, float], ChildSettings]


def experts_of(model: Path) -> tuple[int, int]:
    """From the first byte of the first layer's experts to the last of the last."""
    tensors = [t for t in read_header(model).tensors if t.name.endswith("_exps.weight")]
    return min(t.offset_bytes for t in tensors), max(t.end_bytes for t in tensors)


def assert_failed(stored: Running) -> None:
    """A request is refused with the status of a fault within, and the engine goes on."""
    answer = post(stored.address, PROMPT, NUM_TOKENS)
    assert answer.status_code == 500
    assert "error" in answer.json()
    assert httpx.get(f"{stored.address}/health", timeout=30).status_code == 200


@pytest.mark.parametrize(("kind", "said"), [("eio", "Input/output error"), ("end", "ends at")])
def test_a_failed_read_fails_the_request_and_the_next_one_is_answered_as_ever(
    engine: Engine, settings_for: SettingsFor, model: Path, disk: FaultyDisk, kind: str, said: str
) -> None:
    settings = settings_for(model, LITTLE)
    begin, end = experts_of(model)
    with running(engine, model, settings, disk.environment(settings)) as stored:
        right = ask(stored.address, PROMPT, NUM_TOKENS)
        for _ in range(2):
            with disk.failing(f"{kind} {begin} {end}"):
                assert_failed(stored)
            assert ask(stored.address, PROMPT, NUM_TOKENS) == right
    assert re.search(rf"hotset: ffn_\S+: {re.escape(str(model))}: .*{said}", stored.log)


def events(response: httpx.Response) -> Iterator[dict[str, object]]:
    for line in response.iter_lines():
        name, _, data = line.partition(":")
        if name in ("data", "error") and data.strip() != "[DONE]":
            yield json.loads(data)


def test_tokens_before_a_failed_read_are_right_and_none_comes_after_it(
    engine: Engine, settings_for: SettingsFor, model: Path, disk: FaultyDisk
) -> None:
    """The conversation goes on afterwards with what the engine keeps of it in its cache."""
    settings = settings_for(model, LITTLE)
    begin, end = experts_of(model)
    body = {
        "prompt": PROMPT,
        "n_predict": NUM_TOKENS,
        "temperature": 0,
        "return_tokens": True,
        "cache_prompt": True,
        "stream": True,
    }
    with running(engine, model, settings, disk.environment(settings)) as stored:
        right = ask(stored.address, PROMPT, NUM_TOKENS).tokens
        url = f"{stored.address}/completion"
        tokens: list[int] = []
        error = None
        with httpx.stream("POST", url, json=body, timeout=120) as response:
            for event in events(response):
                if "tokens" not in event:
                    error = event
                    continue
                assert error is None
                assert isinstance(event["tokens"], list)
                tokens += event["tokens"]
                if len(tokens) == 3:
                    disk.begin(f"eio {begin} {end}")
        disk.order.unlink()
        assert error is not None
        assert 3 <= len(tokens) < NUM_TOKENS
        assert tokens == right[: len(tokens)]
        again = httpx.post(url, json=body | {"stream": False}, timeout=120).json()
        assert again["tokens"] == right
        assert ask(stored.address, PROMPT, NUM_TOKENS).tokens == right


def test_of_two_requests_at_once_none_gets_a_wrong_token(
    engine: Engine, settings_for: SettingsFor, model: Path, disk: FaultyDisk
) -> None:
    """Only some experts cannot be read: a request may be spared, but then its answer is right."""
    settings = settings_for(model, LITTLE)
    begin, end = experts_of(model)
    middle = (begin + end) // 2
    prompts = [PROMPT, PROMPT[::-1]]
    with running(engine, model, settings, disk.environment(settings)) as stored:
        right = [ask(stored.address, prompt, NUM_TOKENS).tokens for prompt in prompts]
        with (
            ThreadPoolExecutor() as pool,
            disk.failing(f"eio {middle} {middle + (end - begin) // 50}"),
        ):
            done = list(pool.map(lambda p: post(stored.address, p, NUM_TOKENS), prompts))
        assert any(answer.status_code == 500 for answer in done)
        for answer, tokens in zip(done, right, strict=True):
            assert answer.status_code == 500 or answer.json()["tokens"] == tokens
        assert [ask(stored.address, prompt, NUM_TOKENS).tokens for prompt in prompts] == right


def test_a_file_cut_off_in_use_fails_requests_until_it_is_whole_again(
    engine: Engine, settings_for: SettingsFor, model: Path
) -> None:
    before = model.stat()
    tail = model.read_bytes()[before.st_size * 2 // 3 :]
    with running(engine, model, settings_for(model, LITTLE)) as stored:
        right = ask(stored.address, PROMPT, NUM_TOKENS)
        os.truncate(model, before.st_size - len(tail))
        for _ in range(2):
            assert_failed(stored)
        with model.open("ab") as file:
            file.write(tail)
        assert_failed(stored)  # whole, but who knows by whom
        os.utime(model, ns=(before.st_atime_ns, before.st_mtime_ns))
        assert ask(stored.address, PROMPT, NUM_TOKENS) == right
    assert f"{model}: changed while in use" in stored.log


def test_a_file_written_into_is_noticed_though_all_experts_are_in_memory(
    engine: Engine, settings_for: SettingsFor, model: Path
) -> None:
    begin, end = experts_of(model)
    with running(engine, model, settings_for(model, PLENTY)) as stored:
        for _ in range(2):
            ask(stored.address, PROMPT, NUM_TOKENS)
        with model.open("r+b") as file:
            file.seek(begin)
            file.write(bytes(end - begin))
        assert_failed(stored)


def test_a_file_whose_name_is_given_to_another_stays_in_use(
    engine: Engine, settings_for: SettingsFor, model: Path
) -> None:
    """As downloads replace files: the engine and the store go on with what they opened."""
    other = write_tiny_moe(model.with_name("other"), num_experts=NUM_EXPERTS, seed=2)
    settings = settings_for(model, LITTLE)
    with running(engine, model, settings) as stored:
        right = ask(stored.address, PROMPT, NUM_TOKENS)
        os.replace(other, model)
        assert ask(stored.address, PROMPT, NUM_TOKENS) == right
    with running(engine, model, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS).tokens != right.tokens


def test_a_file_replaced_between_mapping_and_reading_stops_the_start(
    engine: Engine, settings_for: SettingsFor, model: Path, disk: FaultyDisk
) -> None:
    other = write_tiny_moe(model.with_name("other"), num_experts=NUM_EXPERTS, seed=2)
    settings = settings_for(model, LITTLE)
    with disk.failing(f"swap {other} {model}"):
        failed = start(engine, model, settings, disk.environment(settings))
        assert failed.stop() == 1, failed.log
    assert not other.exists()
    said = re.findall(r"hotset: expert store: (.*)", failed.log)
    assert said == [f"{model}: was replaced during the start; start again"], failed.log
    with running(engine, model, settings, disk.environment(settings)) as stored:
        assert isinstance(ask(stored.address, PROMPT, NUM_TOKENS), Answer)
