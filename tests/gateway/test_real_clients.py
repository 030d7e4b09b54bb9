"""The official OpenAI and Anthropic packages against the real engine behind the gateway."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import anthropic
import httpx
import openai
import pytest

from enginekit import settings_for, smollm2
from gatewaykit import Gateway, RawClient, await_true, gateway, model
from hotset.core.settings import Settings
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.running import Running
from hotset.engine.start import start
from hotset.engine.watch import Patience
from scriptedkit import Scripted, scripted_gateway

CONTEXT_TOKENS = 512

# With tools, and as strict about system messages as some published ones.
TEMPLATE = Path(__file__).with_name("strict_tools.jinja").read_text()

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {"city": {"type": "string", "enum": ["Paris"]}},
    "required": ["city"],
}
TOOL: Any = {"type": "function", "function": {"name": "get_weather", "parameters": SCHEMA}}
GREEDY = {"temperature": 0}
HI: Any = [{"role": "user", "content": "Say hi"}]
WEATHER: Any = [{"role": "user", "content": "What is the weather in Paris?"}]
LONG: Any = [{"role": "user", "content": "word " * 2 * CONTEXT_TOKENS}]


@pytest.fixture(scope="module")
def plain() -> Iterator[Running]:
    """SmolLM2 with its own template, which has no tools."""
    settings = settings_for(smollm2(), alias="plain", context_tokens=CONTEXT_TOKENS)
    with start(EmbeddedEngine(), settings, os.environ) as running:
        yield running


@pytest.fixture(scope="module")
def strict() -> Iterator[Running]:
    """SmolLM2 with a template that has tools and is strict."""
    settings = settings_for(
        smollm2(), alias="strict", context_tokens=CONTEXT_TOKENS, chat_template=TEMPLATE
    )
    with start(EmbeddedEngine(), settings, os.environ) as running:
        yield running


@pytest.fixture(scope="module")
def both(plain: Running, strict: Running) -> Iterator[Gateway]:
    with gateway(model("plain", aliases=("nick",)), model("strict")) as running:
        for engine in (plain, strict):
            running.pool.engines[engine.settings.alias] = (engine.url, engine.api_key)
        yield running


@pytest.fixture
def open_ai(both: Gateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=both.url + "/v1", api_key="none", max_retries=0)


@pytest.fixture
def anthropics(both: Gateway) -> anthropic.Anthropic:
    return anthropic.Anthropic(base_url=both.url, api_key="none", max_retries=0)


def test_openai_a_stream_says_what_the_whole_answer_says(open_ai: openai.OpenAI) -> None:
    options: Any = {"messages": HI, "max_tokens": 12, "temperature": 0}
    whole = open_ai.chat.completions.create(model="nick", **options)
    chunks = list(open_ai.chat.completions.create(model="nick", stream=True, **options))
    text = "".join(c.choices[0].delta.content or "" for c in chunks)
    assert text == whole.choices[0].message.content
    assert whole.model == "nick"
    assert {c.model for c in chunks} == {"nick"}
    assert whole.usage is not None
    usage = chunks[-1].usage
    assert usage is not None
    assert (usage.prompt_tokens, usage.completion_tokens) == (
        whole.usage.prompt_tokens,
        whole.usage.completion_tokens,
    )


def test_openai_usage_as_a_chunk_of_its_own_for_who_asks(open_ai: openai.OpenAI) -> None:
    stream = open_ai.chat.completions.create(
        model="plain",
        messages=HI,
        max_tokens=2,
        stream=True,
        stream_options={"include_usage": True},
    )
    last = list(stream)[-1]
    assert last.choices == []
    assert last.usage is not None


def test_openai_null_limits_and_the_newer_name_of_the_limit(open_ai: openai.OpenAI) -> None:
    answer = open_ai.chat.completions.create(
        model="plain",
        messages=HI,
        max_completion_tokens=2,
        temperature=None,
        stop=None,
        extra_body={"max_tokens": None},
    )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == 2
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("is_stream", [True, False])
def test_openai_a_context_overflow_is_a_400_with_both_numbers(
    open_ai: openai.OpenAI, is_stream: bool
) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        open_ai.chat.completions.create(model="plain", messages=LONG, stream=is_stream)
    assert caught.value.code == "context_length_exceeded"
    assert isinstance(caught.value.body, dict)
    assert caught.value.body["n_ctx"] == CONTEXT_TOKENS
    assert caught.value.body["n_prompt_tokens"] > CONTEXT_TOKENS


def test_openai_an_answer_that_fills_the_context_ends_with_length_and_usage(
    open_ai: openai.OpenAI,
) -> None:
    long: Any = [{"role": "user", "content": "word " * (CONTEXT_TOKENS - 40)}]
    chunks = list(
        open_ai.chat.completions.create(
            model="plain",
            messages=long,
            max_tokens=4096,
            stream=True,
            extra_body={"logit_bias": [[2, False]]},
        )
    )
    assert chunks[-1].choices[0].finish_reason == "length"
    usage = chunks[-1].usage
    assert usage is not None
    assert usage.total_tokens == CONTEXT_TOKENS


def test_openai_tools_are_refused_where_the_template_has_none(open_ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        open_ai.chat.completions.create(model="plain", messages=WEATHER, tools=[TOOL])
    assert caught.value.code == "tools_not_supported"


@pytest.mark.parametrize("is_stream", [True, False])
def test_openai_a_named_tool_is_called_with_arguments_of_its_schema(
    open_ai: openai.OpenAI, is_stream: bool
) -> None:
    other: Any = {"type": "function", "function": {"name": "other", "description": None}}
    options: Any = {
        "model": "strict",
        "messages": WEATHER,
        "tools": [other, TOOL],
        "tool_choice": {"type": "function", "function": {"name": "get_weather"}},
        "max_tokens": 60,
        "temperature": 0,
        # The grammar lets words come before the call, and more calls after it; this small model
        # would never end either.
        "stop": ["</tool_call>"],
        "extra_body": {"logit_bias": [["<tool_call>", 8]]},
    }
    if is_stream:
        name, arguments, reason = "", "", None
        for chunk in open_ai.chat.completions.create(stream=True, **options):
            reason = chunk.choices[0].finish_reason or reason
            for call in chunk.choices[0].delta.tool_calls or []:
                assert call.function is not None
                name += call.function.name or ""
                arguments += call.function.arguments or ""
    else:
        answer = open_ai.chat.completions.create(**options)
        (called,) = answer.choices[0].message.tool_calls or []
        assert called.type == "function"
        name, arguments = called.function.name, called.function.arguments
        reason = answer.choices[0].finish_reason
    assert (name, json.loads(arguments), reason) == ("get_weather", {"city": "Paris"}, "tool_calls")


def test_openai_a_conversation_with_calls_and_results_goes_on(open_ai: openai.OpenAI) -> None:
    call = {"id": "c1", "type": "function", "function": {"name": "get_weather", "arguments": ""}}
    messages: Any = [
        *WEATHER,
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": "c1", "content": "sunny"},
    ]
    answer = open_ai.chat.completions.create(model="strict", messages=messages, max_tokens=3)
    assert answer.choices[0].message.content
    messages[1]["tool_calls"][0]["function"]["arguments"] = "{half"
    with pytest.raises(openai.BadRequestError) as caught:
        open_ai.chat.completions.create(model="strict", messages=messages)
    assert caught.value.param == "messages[1].tool_calls[0].function.arguments"


def test_openai_an_answer_is_held_to_a_schema(open_ai: openai.OpenAI) -> None:
    schema = {
        "type": "object",
        "properties": {"code": {"type": "string", "pattern": "^\\d{3}$"}},
        "required": ["code"],
        "additionalProperties": False,
    }
    answer = open_ai.chat.completions.create(
        model="plain",
        messages=HI,
        response_format={"type": "json_schema", "json_schema": {"name": "x", "schema": schema}},
        max_tokens=60,
        temperature=0,
    )
    code = json.loads(answer.choices[0].message.content or "")["code"]
    assert len(code) == 3
    assert code.isdigit()


def test_openai_late_and_repeated_system_messages_are_taken(open_ai: openai.OpenAI) -> None:
    messages: Any = [
        {"role": "system", "content": "Be brief."},
        {"role": "developer", "content": "Be kind."},
        *HI,
        {"role": "assistant", "content": "Hi."},
        {"role": "system", "content": "Be sad."},
    ]
    answer = open_ai.chat.completions.create(model="strict", messages=messages, max_tokens=2)
    assert answer.usage is not None
    words = "Be brief.\n\nBe kind."
    ordered: Any = [
        {"role": "system", "content": words},
        *messages[2:4],
        {"role": "user", "content": "Be sad."},
    ]
    same = open_ai.chat.completions.create(model="strict", messages=ordered, max_tokens=2)
    assert same.usage is not None
    assert same.usage.prompt_tokens == answer.usage.prompt_tokens


def test_openai_images_are_refused_without_vision(open_ai: openai.OpenAI) -> None:
    url = "data:image/png;base64,iVBORw0KGgo="
    parts: Any = [{"type": "image_url", "image_url": {"url": url}}]
    with pytest.raises(openai.BadRequestError) as caught:
        open_ai.chat.completions.create(
            model="plain", messages=[{"role": "user", "content": parts}]
        )
    assert caught.value.code == "image_not_supported"
    assert caught.value.param == "messages[0].content[0]"


def test_openai_completions_and_responses(open_ai: openai.OpenAI) -> None:
    words = open_ai.completions.create(model="plain", prompt="One two", max_tokens=3)
    assert words.usage is not None
    assert words.usage.completion_tokens == 3
    chunks = list(
        open_ai.completions.create(model="plain", prompt="One two", max_tokens=3, stream=True)
    )
    assert chunks[-1].choices[0].finish_reason == "length"
    assert chunks[-1].usage is not None
    answer = open_ai.responses.create(model="plain", input="Say hi", max_output_tokens=4)
    assert answer.output_text
    with open_ai.responses.stream(model="plain", input="Say hi", max_output_tokens=4) as stream:
        final = [event.type for event in stream][-1]
    assert final == "response.completed"


def test_openai_an_overflow_of_responses_is_a_400(open_ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError) as caught:
        open_ai.responses.create(model="plain", input=LONG[0]["content"], stream=True)
    assert caught.value.code == "context_length_exceeded"


def test_openai_embeddings_of_a_chat_model_are_a_400(open_ai: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="cannot make embeddings"):
        open_ai.embeddings.create(model="plain", input="x")


def text_of(answer: anthropic.types.Message) -> str:
    return "".join(block.text for block in answer.content if block.type == "text")


def test_anthropic_a_stream_says_what_the_whole_answer_says(
    anthropics: anthropic.Anthropic,
) -> None:
    options: Any = {"model": "nick", "messages": HI, "max_tokens": 12, "extra_body": GREEDY}
    whole = anthropics.messages.create(**options)
    with anthropics.messages.stream(**options) as stream:
        streamed = stream.get_final_message()
    assert text_of(streamed) == text_of(whole)
    assert (streamed.model, whole.model) == ("nick", "nick")
    assert streamed.stop_reason == whole.stop_reason == "max_tokens"
    assert streamed.usage.output_tokens == whole.usage.output_tokens


def test_anthropic_a_conversation_with_calls_and_results_goes_on(
    anthropics: anthropic.Anthropic,
) -> None:
    use = {"type": "tool_use", "id": "c1", "name": "get_weather", "input": {"city": "Paris"}}
    result = {"type": "tool_result", "tool_use_id": "c1", "content": "sunny"}
    words = {"type": "text", "text": "And tomorrow?"}
    messages: Any = [
        *WEATHER,
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [words, result]},
    ]
    tools: Any = [{"name": "get_weather", "input_schema": SCHEMA}]
    options: Any = {"model": "strict", "tools": tools}
    answer = anthropics.messages.create(messages=messages, max_tokens=3, **options)
    assert answer.usage.output_tokens == 3
    ordered: Any = [
        *messages[:2],
        {"role": "user", "content": [result]},
        {"role": "user", "content": [words]},
    ]
    counted = [
        anthropics.messages.count_tokens(messages=each, **options).input_tokens
        for each in (messages, ordered)
    ]
    assert counted[0] == counted[1]


def test_anthropic_errors_have_its_form(anthropics: anthropic.Anthropic) -> None:
    with pytest.raises(
        anthropic.BadRequestError, match=r"prompt is too long: \d+ tokens > 512 maximum"
    ):
        anthropics.messages.create(model="plain", messages=LONG, max_tokens=2)
    source: Any = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
    picture: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
    with pytest.raises(anthropic.BadRequestError, match="cannot see images"):
        anthropics.messages.create(model="plain", messages=picture, max_tokens=2)


def test_anthropic_a_stop_text_is_the_reason(anthropics: anthropic.Anthropic) -> None:
    options: Any = {"model": "plain", "messages": HI, "max_tokens": 12, "extra_body": GREEDY}
    stop = text_of(anthropics.messages.create(**options)).split()[1]
    answer = anthropics.messages.create(stop_sequences=[stop], **options)
    assert (answer.stop_reason, answer.stop_sequence) == ("stop_sequence", stop)


def test_anthropic_counting_agrees_with_the_answers_usage(
    anthropics: anthropic.Anthropic,
) -> None:
    counted = anthropics.messages.count_tokens(model="plain", messages=HI).input_tokens
    usage = anthropics.messages.create(model="plain", messages=HI, max_tokens=1).usage
    assert counted == usage.input_tokens + (usage.cache_read_input_tokens or 0)


def test_anthropic_a_changing_billing_line_keeps_the_prompt_cache(
    anthropics: anthropic.Anthropic,
) -> None:
    read = []
    for cch in ("a5145", "0b3c1f"):
        line = f"x-anthropic-billing-header: cc_version=2.1.9.{cch}; cch={cch};"
        system: Any = [
            {"type": "text", "text": line},
            {"type": "text", "text": "You help with code. " * 10},
        ]
        answer = anthropics.messages.create(model="plain", system=system, messages=HI, max_tokens=1)
        read.append(answer.usage.input_tokens)
    assert read[0] > 40
    assert read[1] <= 4


def test_a_whole_answer_is_what_the_engine_itself_would_give(both: Gateway, plain: Running) -> None:
    body = {"model": "plain", "messages": HI, "max_tokens": 4, "temperature": 0, "logprobs": True}
    options: Any = {"headers": plain.headers(), "timeout": 60, "trust_env": False}
    for path, changing in (
        ("/v1/chat/completions", {"id", "created", "timings", "usage"}),
        ("/v1/messages", {"id", "usage"}),
    ):
        direct = httpx.post(plain.url + path, json=body, **options).json()
        through = both.post(path, body).json()
        assert set(through) == set(direct)
        for key in set(direct) - changing:
            assert through[key] == direct[key]


@pytest.mark.parametrize("is_stream", [True, False])
def test_a_client_that_leaves_stops_the_real_engine(
    both: Gateway, plain: Running, is_stream: bool
) -> None:
    body = {"model": "plain", "messages": HI, "max_tokens": 400, "stream": is_stream}
    body["logit_bias"] = [[2, False]]  # no end before the limit
    client = RawClient(both, body)
    assert await_true(plain.num_busy_slots)
    client.leave()
    assert await_true(lambda: both.pool.num_held == 0)
    assert await_true(lambda: plain.num_busy_slots() == 0)


def test_a_killed_engine_ends_its_streams_with_an_error() -> None:
    settings = settings_for(smollm2(), alias="small", context_tokens=CONTEXT_TOKENS)
    with start(EmbeddedEngine(), settings, os.environ) as engine, gateway() as running:
        running.pool.engines["small"] = (engine.url, engine.api_key)
        body = {
            "model": "small",
            "messages": HI,
            "max_tokens": 400,
            "stream": True,
            "logit_bias": [[2, False]],
        }
        client = RawClient(running, body)
        client.read_until(b'"content":"')
        os.kill(engine.pid, 9)
        seen = client.read_to_end()
        assert b'"engine_failed"' in seen
        assert b"[DONE]" not in seen
        assert seen.endswith(b"0\r\n\r\n")


class _Pair(Scripted):
    """The two models with real engines; one of them fits."""

    def settings(self, model_id: str) -> Settings:
        template = TEMPLATE if model_id == "strict" else None
        return settings_for(
            smollm2(), alias=model_id, context_tokens=CONTEXT_TOKENS, chat_template=template
        )


def _use_openai(url: str) -> None:
    with openai.OpenAI(base_url=url + "/v1", api_key="none", max_retries=0) as client:
        chunks = list(
            client.chat.completions.create(model="plain", messages=HI, max_tokens=6, stream=True)
        )
        assert chunks[-1].usage is not None
        assert chunks[-1].usage.completion_tokens == 6
        answer = client.chat.completions.create(
            model="strict",
            messages=WEATHER,
            tools=[TOOL],
            tool_choice={"type": "function", "function": {"name": "get_weather"}},
            max_tokens=60,
            temperature=0,
            stop=["</tool_call>"],
            extra_body={"logit_bias": [["<tool_call>", 8]]},
        )
        (called,) = answer.choices[0].message.tool_calls or []
        assert called.type == "function"
        assert json.loads(called.function.arguments) == {"city": "Paris"}
        with pytest.raises(openai.BadRequestError) as caught:
            client.chat.completions.create(model="plain", messages=LONG)
        assert caught.value.code == "context_length_exceeded"


def _use_anthropic(url: str) -> None:
    with anthropic.Anthropic(base_url=url, api_key="none", max_retries=0) as client:
        with client.messages.stream(model="strict", messages=HI, max_tokens=6) as stream:
            assert stream.get_final_message().usage.output_tokens == 6
        whole = client.messages.create(model="plain", messages=HI, max_tokens=6)
        assert whole.usage.output_tokens == 6
        source: Any = {"type": "base64", "media_type": "image/png", "data": "iVBORw0KGgo="}
        picture: Any = [{"role": "user", "content": [{"type": "image", "source": source}]}]
        with pytest.raises(anthropic.BadRequestError, match="cannot see images"):
            client.messages.create(model="strict", messages=picture, max_tokens=2)


def test_both_clients_are_served_while_two_models_take_turns(tmp_path: Path) -> None:
    pair = _Pair(tmp_path, ("plain", "strict"), patience=Patience())
    pair.engine = EmbeddedEngine()
    with scripted_gateway(pair) as running, ThreadPoolExecutor(2) as clients:
        for _ in range(2):
            used = [clients.submit(use, running.url) for use in (_use_openai, _use_anthropic)]
            for use in used:
                use.result()
        loads = {row["id"]: row["num_loads"] for row in running.get("/api/models").json()["models"]}
    assert min(loads.values()) >= 2
