"""Tokens are counted while their model is not loaded, and as its engine would count them."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import httpx
import psutil
import pytest

from enginekit import settings_for, smollm2
from gatewaykit import FakePool, Gateway, model
from hotset.cli.tokenizers import TokenizerEngines
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.running import Running
from hotset.engine.start import start
from hotset.gateway.counting import Tokenizers
from hotset.gateway.pool import State
from hotset.gateway.settings import GatewaySettings

TEMPLATE = Path(__file__).with_name("strict_tools.jinja").read_text()
TURNS = [
    {"role": "user", "content": "Straße, naïve, 東京, 12345 and  spaces\n\n\tcount."},
    {"role": "assistant", "content": "<|im_end|> is no end here"},
    {"role": "user", "content": "word " * 3000},
]
SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
FUNCTION = {"type": "function", "function": {"name": "weather", "parameters": SCHEMA}}
QUESTIONS: list[tuple[str, dict[str, Any]]] = [
    ("/v1/messages/count_tokens", {"messages": TURNS[:1]}),
    ("/v1/messages/count_tokens", {"messages": TURNS, "system": "Be brief."}),
    (
        "/v1/messages/count_tokens",
        {"messages": TURNS[:1], "tools": [{"name": "weather", "input_schema": SCHEMA}]},
    ),
    ("/v1/chat/completions/input_tokens", {"messages": TURNS, "tools": [FUNCTION]}),
    ("/v1/responses/input_tokens", {"input": "Why is the sky blue?"}),
    ("/tokenize", {"content": TURNS[0]["content"], "add_special": True}),
    ("/detokenize", {"tokens": [504, 3575, 282, 260, 4650]}),
    ("/apply-template", {"messages": TURNS}),
]


@pytest.fixture(name="engine", scope="module")
def _engine() -> Iterator[Running]:
    """The model itself, to compare with."""
    settings = settings_for(smollm2(), alias="small", chat_template=TEMPLATE)
    with start(EmbeddedEngine(), settings, os.environ) as running:
        yield running


@pytest.fixture(name="counting", scope="module")
def _counting() -> Iterator[Gateway]:
    """A gateway whose model is not loaded, and may not be."""
    pool = FakePool({}, [model(state=State.UNLOADED), model("broken", state=State.UNLOADED)])
    running = Gateway(pool, GatewaySettings(listen_port=0))
    paths = {"small": smollm2(), "broken": Path("/nowhere/broken.gguf")}
    running.tokenizers = Tokenizers(
        TokenizerEngines(paths.__getitem__, "embedded", chat_template=TEMPLATE).start
    )
    running.start()
    try:
        yield running
    finally:
        running.stop()


def test_a_model_that_is_not_loaded_counts_as_its_engine_does(
    counting: Gateway, engine: Running
) -> None:
    for path, body in QUESTIONS:
        options: Any = {"headers": engine.headers(), "trust_env": False, "timeout": 60}
        direct = httpx.post(engine.url + path, json={"model": "small", **body}, **options)
        counted = counting.post(path, {"model": "small", **body})
        assert direct.status_code == counted.status_code == 200, (path, counted.text)
        assert counted.json() == direct.json(), path
    assert counting.pool.resolve("small").state is State.UNLOADED
    children = psutil.Process().children(recursive=True)
    assert sum("embedded_worker" in " ".join(child.cmdline()) for child in children) == 2


def test_a_tokenizer_that_cannot_be_made_is_an_error_each_time(counting: Gateway) -> None:
    for _ in range(2):
        refused = counting.post("/tokenize", {"model": "broken", "content": "x"})
        assert refused.status_code == 422
        assert "no such file" in refused.json()["error"]["message"]


class _Handle:
    """A tokenizer's engine that is only there or gone."""

    url, api_key, pid, context_tokens = "http://127.0.0.1:1", None, 1, 32
    held: ClassVar[dict[str, int]] = {}

    def __init__(self, living: list[_Handle], model_id: str) -> None:
        self.id = model_id
        self._living = living
        living.append(self)

    def is_alive(self) -> bool:
        return self in self._living

    def died(self) -> Any:
        raise NotImplementedError

    def num_expert_look_ups(self) -> tuple[int, int]:
        return 0, 0

    def kill(self) -> None:
        raise NotImplementedError

    def stop(self, *, grace_s: float) -> None:
        del grace_s
        if self in self._living:
            self._living.remove(self)


def test_tokenizers_are_kept_while_they_are_asked_and_never_many() -> None:
    living: list[_Handle] = []
    started: list[str] = []

    def names() -> set[str]:
        return {handle.id for handle in living}

    def begin(model_id: str) -> _Handle:
        started.append(model_id)
        return _Handle(living, model_id)

    async def act() -> None:
        tokenizers = Tokenizers(begin, idle_s=0.2)

        async def use(model_id: str) -> None:
            async with tokenizers.hold(model(model_id)):
                assert model_id in names()

        await asyncio.gather(*(use("a") for _ in range(5)))
        await use("b")
        await use("a")
        assert started == ["a", "b"]
        await use("c")
        while "b" in names():
            await asyncio.sleep(0.01)
        assert names() == {"a", "c"}
        living.clear()
        await use("a")
        assert started == ["a", "b", "c", "a"]
        while living:
            await asyncio.sleep(0.02)
        await use("a")
        await tokenizers.close()
        assert living == []

    asyncio.run(act())


def test_a_client_that_leaves_ends_no_start_that_others_wait_for() -> None:
    async def act() -> None:
        living: list[_Handle] = []
        tokenizers = Tokenizers(lambda model_id: _Handle(living, model_id))

        async def use() -> str:
            async with tokenizers.hold(model("a")) as upstream:
                return upstream.url

        first, second = asyncio.create_task(use()), asyncio.create_task(use())
        await asyncio.sleep(0)
        first.cancel()
        assert await second == _Handle.url
        await tokenizers.close()

    asyncio.run(act())
