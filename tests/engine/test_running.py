"""A running engine, embedded and llama-server alike: settings, answers, refusals, the end."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import httpx
import pytest

from enginekit import (
    fake_engine,
    free_port,
    living_descendants,
    real_engines,
    settings_for,
    smollm2,
)
from hotset.core.errors import ClientProblem, EngineProblem
from hotset.core.loaded import BufferKind
from hotset.core.memory import CacheSettings, cache_bytes
from hotset.core.settings import Secret
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB
from hotset.engine.base import Engine
from hotset.engine.client import ChatStream, Timings
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.running import Running
from hotset.engine.start import start
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec

ENGINES = [pytest.param(engine, id=engine.name) for engine in real_engines()]
QUESTION = [{"role": "user", "content": "Name three colours."}]
STORY = [{"role": "user", "content": "Tell me a very long story."}]


@pytest.fixture(name="running", params=ENGINES)
def _running(request: pytest.FixtureRequest) -> Iterator[Running]:
    engine: Engine = request.param
    with start(engine, settings_for(smollm2(), context_tokens=1024), os.environ) as running:
        yield running
    assert living_descendants() == []


@dataclass(frozen=True)
class Asked:
    """A finished answer."""

    text: str
    finish_reason: str
    timings: Timings | None


def ask(
    running: Running,
    messages: list[dict[str, str]],
    on_piece: Callable[[], object] = bool,
    **options: object,
) -> Asked:
    text = ""
    with ChatStream(running, messages, options) as stream:
        for piece in stream:
            text += piece.text
            on_piece()
    return Asked(text, stream.finish_reason, stream.timings)


@pytest.mark.parametrize("engine", ENGINES)
def test_the_settings_arrive_and_the_report_matches_the_header(engine: Engine) -> None:
    settings = settings_for(
        smollm2(),
        context_tokens=768,
        slots=2,
        kv_type_k="q8_0",
        kv_type_v="q8_0",
        prompt_cache_mib=64,
        is_repacked=False,
        threads=1,
    )
    file = open_model(smollm2())
    spec = model_spec(file)
    kv_type = tensor_type_named("q8_0")
    expected = cache_bytes(spec, CacheSettings(2 * 768, 2, kv_type, kv_type, 512))
    with start(engine, settings, os.environ) as running:
        loaded = running.loaded
        props = httpx.get(f"{running.url}/props", headers=running.headers()).json()
    assert (loaded.slots, loaded.context_tokens) == (2, 768)
    assert [(c.type_k, c.type_v) for c in loaded.caches] == [("q8_0", "q8_0")]
    assert loaded.bytes_of(BufferKind.KV) == pytest.approx(expected.total, abs=0.006 * MIB)
    # Everything of the file but its header is mapped, once.
    assert loaded.bytes_of(BufferKind.MODEL) == pytest.approx(spec.n_bytes, abs=0.01 * MIB)
    assert loaded.bytes_of(BufferKind.COMPUTE) > 0
    assert sum(map(loaded.bytes_on, loaded.devices)) == sum(b.n_bytes for b in loaded.buffers)
    assert props["total_slots"] == 2
    assert props["model_alias"] == "test"


def test_an_answer_streams_with_its_figures(running: Running) -> None:
    stream = ask(running, QUESTION, max_tokens=12, temperature=0)
    assert stream.text.strip()
    assert stream.finish_reason in ("length", "stop")
    assert stream.timings is not None
    assert 1 <= stream.timings.answer_tokens <= 12
    assert running.resident_bytes() > 50 * MIB


def test_the_same_greedy_question_has_the_same_answer(running: Running) -> None:
    first, second = (ask(running, QUESTION, max_tokens=12, temperature=0) for _ in range(2))
    assert first.text == second.text


def test_a_request_without_the_key_is_refused(running: Running) -> None:
    body = {"messages": QUESTION, "max_tokens": 1}
    for headers in ({}, {"Authorization": "Bearer wrong"}):
        refused = httpx.post(f"{running.url}/v1/chat/completions", json=body, headers=headers)
        assert refused.status_code == 401


def test_no_page_of_another_origin_is_let_in(running: Running) -> None:
    headers = {"Origin": "http://example.com", **running.headers()}
    answer = httpx.get(f"{running.url}/v1/models", headers=headers)
    assert answer.headers.get("access-control-allow-origin", "") in ("", "null")


def test_a_context_overflow_names_both_numbers_and_the_remedy(running: Running) -> None:
    long = [{"role": "user", "content": "word " * 3000}]
    with pytest.raises(ClientProblem, match=r"has \d{4} tokens, the context 1024; .*--ctx"):
        ask(running, long)
    assert ask(running, QUESTION, max_tokens=2).finish_reason  # and it still serves


def test_closing_a_stream_early_makes_the_engine_stop(running: Running) -> None:
    with ChatStream(running, STORY, {"max_tokens": 900}) as stream:
        next(iter(stream))
    deadline = time.monotonic() + 20
    while running.num_busy_slots() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert running.num_busy_slots() == 0


def test_an_engine_that_dies_in_the_middle_is_an_engine_problem(running: Running) -> None:
    with pytest.raises(EngineProblem, match="test: the engine was killed by signal 9"):
        ask(running, STORY, lambda: os.kill(running.pid, 9), max_tokens=900)
    assert not running.is_alive()
    assert running.exit_status == -9
    assert running.resident_bytes() == 0
    assert running.num_busy_slots() == 0


def test_stopping_drains_running_answers_first(running: Running) -> None:
    finished: list[str] = []
    begun = threading.Event()

    def read() -> None:
        finished.append(ask(running, STORY, begun.set, max_tokens=60).finish_reason)

    reader = threading.Thread(target=read)
    reader.start()
    assert begun.wait(60)
    running.stop(drain_s=60)
    reader.join()
    assert finished in (["length"], ["stop"])


def test_stopping_without_drain_ends_a_running_answer(running: Running) -> None:
    with pytest.raises(EngineProblem, match="in the middle of its work"):
        ask(running, STORY, lambda: running.stop(grace_s=0), max_tokens=900)


@pytest.mark.parametrize("engine", ENGINES)
def test_an_open_endpoint_serves_without_a_key(engine: Engine) -> None:
    settings = settings_for(smollm2(), port=free_port())
    with start(engine, settings, os.environ, is_open=True) as running:
        assert running.url.endswith(f":{settings.port}")
        assert running.headers() == {}
        assert ask(running, QUESTION, max_tokens=2).finish_reason


@pytest.mark.parametrize("engine", ENGINES)
def test_a_replaced_template_reaches_the_model(engine: Engine) -> None:
    settings = settings_for(smollm2(), chat_template="{{ 'marked ' }}{{ messages[0].content }}")
    with start(engine, settings, os.environ) as running:
        answer = httpx.post(
            f"{running.url}/apply-template", json={"messages": QUESTION}, headers=running.headers()
        ).json()
    assert answer["prompt"].startswith("marked Name three")


@pytest.mark.parametrize("engine", ENGINES)
def test_an_engine_says_what_it_is(engine: Engine) -> None:
    info = engine.describe(os.environ)
    assert info.build == engine.build
    assert info.backend_api in (2, 3)
    assert info.has_moe_cache == isinstance(engine, EmbeddedEngine)


def test_a_given_key_is_the_one_that_counts() -> None:
    settings = settings_for(smollm2(), api_key=Secret("mine"))
    with start(EmbeddedEngine(), settings, os.environ) as running:
        assert running.headers() == {"Authorization": "Bearer mine"}
        assert ask(running, QUESTION, max_tokens=1).finish_reason


SSE_HEAD = """
def on_post(handler):
    handler.send_response(200)
    handler.send_header("Content-Type", "text/event-stream")
    handler.end_headers()
    handler.wfile.write(b'data: {"choices":[{"delta":{"content":"half an ans"}}]}\\n\\n')
    handler.wfile.flush()
"""


def fake_stream(folder: Path, ending: str) -> None:
    """Read a stream that begins well and then does what `ending` says."""
    model = folder / "model.gguf"
    model.touch()
    engine: LlamaServerEngine = fake_engine(folder, f"{SSE_HEAD}    {ending}\nserve()")
    with start(engine, settings_for(model, port=free_port()), os.environ) as running:
        ask(running, QUESTION)


@pytest.mark.parametrize(
    ("ending", "message"),
    [
        ("handler.close_connection = True", "in the middle"),
        ("os._exit(9)", "ended with status 9"),
        ("""handler.wfile.write(b'data: {"error":{"code":500,"message":"went wrong"}}\\n\\n')""",
         "the engine failed on the request: went wrong"),
        ("handler.wfile.write(b'data: {broken\\n\\n'); handler.close_connection = True",
         "not the protocol"),
    ],
)  # fmt: skip
def test_a_stream_that_breaks_off_is_never_taken_for_a_whole_answer(
    tmp_path: Path, ending: str, message: str
) -> None:
    with pytest.raises(EngineProblem, match=message):
        fake_stream(tmp_path, ending)
