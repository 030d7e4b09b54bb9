"""`hotset serve`: real clients get answers, keys count, and the end is an orderly one."""

from __future__ import annotations

import os
import re
import signal
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import anthropic
import httpx
import openai
import psutil
import pytest

from clikit import Background, assert_refused, background, environment, hotset
from hotset.gguf.synth.models import write_tiny
from scriptedkit import scripted_program

MODEL = "tiny"
HELLO = "hello"
LITTLE = ("--threads", "1", "--port", "0")


@pytest.fixture(name="tiny", scope="module")
def _tiny(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny("qwen3moe", tmp_path_factory.mktemp("tiny") / "tiny.gguf")[0]


@contextmanager
def serving(
    model: Path | str, *options: str | Path, home: Path, **more: str
) -> Iterator[tuple[Background, str]]:
    """A server and its address, once it says that it is ready."""
    words = ("serve", model, *LITTLE, *options)
    with background(*words, home=home, env=environment(home, **more)) as server:
        line = server.await_note("/v1 (OpenAI)")
        match = re.match(r"(http://127\.0\.0\.1:\d+)/v1 ", line)
        assert match, line
        yield server, match[1]


@pytest.fixture(name="served", scope="module")
def _served(
    tiny: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Background, str]]:
    with serving(tiny, home=tmp_path_factory.mktemp("home")) as served:
        yield served


@pytest.fixture(name="openai_client")
def _openai_client(served: tuple[Background, str]) -> Iterator[openai.OpenAI]:
    with openai.OpenAI(base_url=f"{served[1]}/v1", api_key="any", max_retries=0) as client:
        yield client


@pytest.fixture(name="anthropic_client")
def _anthropic_client(served: tuple[Background, str]) -> Iterator[anthropic.Anthropic]:
    with anthropic.Anthropic(base_url=served[1], api_key="any", max_retries=0) as client:
        yield client


def test_the_openai_client_gets_a_chat_answer_and_the_same_as_a_stream(
    openai_client: openai.OpenAI,
) -> None:
    whole = openai_client.chat.completions.create(
        model=MODEL, messages=[{"role": "user", "content": HELLO}], max_tokens=6, temperature=0
    )
    stream = openai_client.chat.completions.create(
        model=MODEL,
        messages=[{"role": "user", "content": HELLO}],
        max_tokens=6,
        temperature=0,
        stream=True,
        stream_options={"include_usage": True},
    )
    chunks = list(stream)
    text = "".join(c.choices[0].delta.content or "" for c in chunks if c.choices)
    assert whole.model == MODEL
    assert whole.choices[0].finish_reason == "length"
    assert whole.usage is not None
    assert whole.usage.completion_tokens == 6
    assert text == whole.choices[0].message.content != ""
    assert chunks[-1].usage is not None
    assert chunks[-1].usage.total_tokens == whole.usage.total_tokens


def test_the_openai_client_gets_a_plain_completion_and_the_list_of_models(
    openai_client: openai.OpenAI,
) -> None:
    done = openai_client.completions.create(model=MODEL, prompt="to be or", max_tokens=3)
    assert done.usage is not None
    assert done.usage.completion_tokens == 3
    assert [model.id for model in openai_client.models.list()] == [MODEL]


def test_the_anthropic_client_gets_a_message_and_the_same_as_a_stream(
    anthropic_client: anthropic.Anthropic,
) -> None:
    message = anthropic_client.messages.create(
        model=MODEL,
        messages=[{"role": "user", "content": HELLO}],
        max_tokens=6,
        extra_body={"temperature": 0},
    )
    with anthropic_client.messages.stream(
        model=MODEL,
        messages=[{"role": "user", "content": HELLO}],
        max_tokens=6,
        extra_body={"temperature": 0},
    ) as stream:
        text = "".join(stream.text_stream)
    assert message.stop_reason == "max_tokens"
    assert message.usage.output_tokens == 6
    assert [block.text for block in message.content if block.type == "text"] == [text]


def test_the_anthropic_client_counts_the_tokens_that_a_message_then_takes(
    anthropic_client: anthropic.Anthropic,
) -> None:
    question: anthropic.types.MessageParam = {"role": "user", "content": "a question " * 20}
    counted = anthropic_client.messages.count_tokens(model=MODEL, messages=[question])
    message = anthropic_client.messages.create(model=MODEL, messages=[question], max_tokens=1)
    usage = message.usage
    assert counted.input_tokens == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_a_request_beyond_the_context_is_the_clients_problem(
    openai_client: openai.OpenAI,
) -> None:
    with pytest.raises(openai.BadRequestError, match="context"):
        openai_client.completions.create(model=MODEL, prompt="word " * 5000, max_tokens=1)


@pytest.mark.parametrize("source", ["file", "environment"])
def test_a_key_is_asked_for_wherever_it_was_given(tmp_path: Path, tiny: Path, source: str) -> None:
    key = "sk-a-key-of-my-own"
    (tmp_path / "key").write_text(f"{key}\n")
    options = ("--api-key-file", tmp_path / "key") if source == "file" else ()
    more = {} if source == "file" else {"HOTSET_API_KEY": key}
    with serving(tiny, *options, home=tmp_path, **more) as (server, url):
        for given, status in ((None, 401), ("wrong", 401), (key, 200)):
            headers = {"Authorization": f"Bearer {given}"} if given else {}
            body = {"prompt": HELLO, "max_tokens": 1}
            for path in ("/v1/completions", "/v1/chat/completions"):
                messages = {"messages": [{"role": "user", "content": HELLO}]}
                answer = httpx.post(f"{url}{path}", json=body | messages, headers=headers)
                assert answer.status_code == status, path
        with anthropic.Anthropic(base_url=url, api_key=key, max_retries=0) as client:
            question: anthropic.types.MessageParam = {"role": "user", "content": HELLO}
            client.messages.create(model=MODEL, messages=[question], max_tokens=1)
        family = [server.process.pid]
        family += [p.pid for p in psutil.Process(server.process.pid).children(recursive=True)]
        lines = [Path(f"/proc/{pid}/cmdline").read_bytes() for pid in family]
        assert len(lines) == 3
        assert not any(key.encode() in line for line in lines)
        server.send(signal.SIGINT)
        ended = server.end()
    assert ended.code == 0
    assert key not in ended.err + ended.out


@pytest.mark.parametrize(
    ("options", "more", "code", "reason"),
    [
        (("--host", "0.0.0.0"), {}, 4, "give an API key"),
        (("--host", "999.1.1.1"), {"HOTSET_API_KEY": "k"}, 3, "cannot listen on 999.1.1.1"),
        (("--port", "70000"), {}, 4, "port is 70000"),
        (("--port", "-1"), {}, 4, "port is -1"),
        (("--slots", "0"), {}, 4, "--slots is 0"),
        ((), {"HOTSET_API_KEY": "  "}, 4, "HOTSET_API_KEY: the API key is empty"),
        ((), {"HOTSET_API_KEY": "two words"}, 4, "one word of ASCII"),
        ((), {"HOTSET_API_KEY": "schlüssel"}, 4, "one word of ASCII"),
        (("--api-key-file", "/nowhere/key"), {}, 2, "/nowhere/key: cannot be read"),
        (("--api-key-file", "/"), {}, 2, "/: cannot be read: Is a directory"),
    ],
)
def test_what_must_not_be_served_is_refused_before_anything_starts(
    tmp_path: Path,
    tiny: Path,
    options: tuple[str, ...],
    more: dict[str, str],
    code: int,
    reason: str,
) -> None:
    env = environment(tmp_path, **more)
    refused = hotset("serve", tiny, *LITTLE, *options, home=tmp_path, env=env)
    assert_refused(refused, code, reason)


def test_a_port_in_use_is_refused_with_the_name_of_its_holder(tmp_path: Path, tiny: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        refused = hotset("serve", tiny, "--port", str(port), home=tmp_path)
    assert_refused(refused, 3, f"port {port} is in use by pid {os.getpid()} (", "--port")


def read_stream(url: str, finish_reasons: list[str], begun: threading.Event, tokens: int) -> None:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        stream = client.completions.create(
            model=MODEL, prompt=HELLO, max_tokens=tokens, stream=True
        )
        try:
            for chunk in stream:
                begun.set()
                finish_reasons += filter(None, [choice.finish_reason for choice in chunk.choices])
        except (openai.APIError, httpx.HTTPError) as error:
            finish_reasons.append(type(error).__name__)


@contextmanager
def streaming(url: str, tokens: int) -> Iterator[list[str]]:
    """An answer of so many tokens is on its way; its finish reason is in the list at the end."""
    finish_reasons: list[str] = []
    begun = threading.Event()
    reader = threading.Thread(target=read_stream, args=(url, finish_reasons, begun, tokens))
    reader.start()
    assert begun.wait(60)
    try:
        yield finish_reasons
    finally:
        reader.join()


@pytest.mark.parametrize("more", [{}, {"http_proxy": "http://127.0.0.1:9"}])
def test_the_first_ctrl_c_lets_a_running_answer_finish(
    tmp_path: Path, tiny: Path, more: dict[str, str]
) -> None:
    with serving(tiny, "--ctx", "8192", home=tmp_path, **more) as (server, url):
        with streaming(url, 1500) as finish_reasons:
            server.send(signal.SIGINT)
        ended = server.end()
    assert finish_reasons == ["length"]
    assert ended.code == 0
    assert "finishing 1 answer; Ctrl-C again ends at once" in ended.err


def test_the_second_ctrl_c_ends_at_once(tmp_path: Path, tiny: Path) -> None:
    with (
        serving(tiny, "--ctx", "60000", home=tmp_path) as (server, url),
        streaming(url, 59_000) as finish_reasons,
    ):
        server.send(signal.SIGINT)
        server.await_note("Ctrl-C again ends at once")
        server.send(signal.SIGINT)
        ended = server.end()
    assert finish_reasons not in (["length"], ["stop"])
    assert ended.code == 0
    assert "Traceback" not in ended.err


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP])
def test_a_polite_signal_gives_answers_some_seconds_and_ends_the_server_and_its_engine(
    tmp_path: Path, number: signal.Signals
) -> None:
    engine = scripted_program(tmp_path)
    model = write_tiny("llama", tmp_path / "tiny.gguf")[0]
    endless = {
        "messages": [{"role": "user", "content": HELLO}],
        "stream": True,
        "events": 600,
        "pause_s": 0.1,
    }
    with (
        serving(model, "--engine", engine, home=tmp_path) as (server, url),
        httpx.stream("POST", f"{url}/v1/chat/completions", json=endless, timeout=60) as answer,
    ):
        lines = answer.iter_lines()
        assert '" 0"' in next(lines)
        server.send(number)
        server.await_note(f"{number.name}: 1 answer has 4 s to finish")
        assert httpx.post(f"{url}/v1/chat/completions", json=endless).status_code == 503
        told = list(filter(None, lines))
        ended = server.end()
    assert len(told) > 5
    assert "is being stopped" in told[-1]
    assert ended.code == 128 + number
    assert "Traceback" not in ended.err


def test_a_server_under_nohup_survives_the_end_of_its_terminal(tmp_path: Path, tiny: Path) -> None:
    with background("serve", tiny, *LITTLE, home=tmp_path, prefix=("nohup",)) as server:
        server.await_note("/v1 (OpenAI)")
        server.send(signal.SIGHUP)
        with pytest.raises(psutil.TimeoutExpired):
            psutil.Process(server.process.pid).wait(0.5)
        server.send(signal.SIGINT)
        assert server.end().code == 0


def test_a_killed_engine_is_started_anew_for_the_next_request(tmp_path: Path, tiny: Path) -> None:
    with serving(tiny, home=tmp_path) as (server, url):
        (guard,) = psutil.Process(server.process.pid).children()
        (engine,) = guard.children()
        engine.kill()
        server.await_note(f"{MODEL}: the engine was killed by signal 9 in the middle of its work")
        body = {"prompt": HELLO, "max_tokens": 2}
        assert httpx.post(f"{url}/v1/completions", json=body, timeout=60).status_code == 200
        server.send(signal.SIGINT)
        assert server.end().code == 0


@pytest.mark.parametrize(
    ("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143), (signal.SIGHUP, 129)]
)
def test_a_signal_ends_the_load_of_the_only_model(
    tmp_path: Path, number: signal.Signals, code: int
) -> None:
    engine = scripted_program(tmp_path)
    (tmp_path / "tiny.json").write_text('{"load_s": 60}')
    model = write_tiny("llama", tmp_path / "tiny.gguf")[0]
    with background("serve", model, *LITTLE, "--engine", engine, home=tmp_path) as server:
        server.await_note("loading: starting the engine")
        server.send(number)
        assert server.end().code == code


def test_foreign_pages_and_names_are_refused_by_one_model_too(
    served: tuple[Background, str],
) -> None:
    body = {"prompt": HELLO, "max_tokens": 1}
    for headers in ({"Origin": "http://evil.example"}, {"Host": "evil.example"}):
        refused = httpx.post(f"{served[1]}/v1/completions", json=body, headers=headers)
        assert refused.status_code == 403


def test_an_embedding_model_is_served_too_and_refused_by_run(tmp_path: Path) -> None:
    (model,) = write_tiny("nomic-bert", tmp_path / "embed.gguf")
    with (
        serving(model, home=tmp_path) as (_, url),
        openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client,
    ):
        answer = client.embeddings.create(model="m", input=["one", "two"])
    assert len(answer.data) == 2
    assert len(answer.data[0].embedding) == len(answer.data[1].embedding) > 0
    assert_refused(hotset("run", model, "hi", home=tmp_path), 2, "no chat model")
