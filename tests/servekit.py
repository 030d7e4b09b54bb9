"""A gateway at work, and a client that asks it for a few tokens."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import openai

from clikit import Background, background, environment

_LITTLE = ("--threads", "1", "--port", "0")


@contextmanager
def serving(*words: str | Path, home: Path, **more: str) -> Iterator[tuple[Background, str]]:
    env = environment(home, **more)
    with background("serve", *words, *_LITTLE, home=home, env=env) as server:
        match = re.match(r"(http://127\.0\.0\.1:\d+)/v1 ", server.await_note("/v1 (OpenAI)"))
        assert match
        yield server, match[1]


def ask(url: str, model: str, tokens: int = 4) -> str:
    with openai.OpenAI(base_url=f"{url}/v1", api_key="any", max_retries=0) as client:
        answer = client.chat.completions.create(
            model=model, messages=[{"role": "user", "content": "hello"}], max_tokens=tokens
        )
    assert answer.usage is not None
    assert answer.usage.completion_tokens == tokens
    return answer.model
