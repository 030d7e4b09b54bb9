"""A conversation whose model leaves and returns, and whose gateway ends and begins again.

`HOTSET_CONVERSATION_TOKENS=8000` for a long one, by hand: it takes some minutes.
"""

from __future__ import annotations

import os
import shutil
import signal
import sys
from dataclasses import dataclass, field
from pathlib import Path

import httpx
import pytest

from enginekit import smollm2
from hotset.gguf.synth.models import write_tiny
from servekit import ask, serving

_NUM_TOKENS = int(os.environ.get("HOTSET_CONVERSATION_TOKENS", "700"))
# SmolLM2's trained context, which also holds the answers.
_CONTEXT_TOKENS = 8192
_ANSWER_TOKENS = 24
SMOL, OTHER = "smollm2-135m-instruct", "tiny-moe"
_WORDS = "the river ran past the old mill and nobody had counted its stones in the year"


@pytest.fixture(name="folder", scope="module")
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("models")
    shutil.copy(smollm2(), folder)
    write_tiny("qwen3moe", folder / "Tiny-MoE-Q4_0.gguf")
    return folder


@dataclass
class Talk:
    """One conversation, as a client keeps it.

    Attributes:
        answers: the texts, in order.
        read: for each answer, tokens of its prompt that were computed, and all of them.
    """

    messages: list[dict[str, str]] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)
    read: list[tuple[int, int]] = field(default_factory=list)

    def say(self, url: str, text: str, *, reads_anew: bool = False) -> None:
        self.messages.append({"role": "user", "content": text})
        body = {
            "model": SMOL,
            "messages": self.messages,
            "max_tokens": _ANSWER_TOKENS,
            "temperature": 0,
            "cache_prompt": not reads_anew,
        }
        answer = httpx.post(f"{url}/v1/chat/completions", json=body, timeout=600).json()
        message = answer["choices"][0]["message"]
        usage = answer["usage"]
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        self.messages.append({"role": "assistant", "content": message["content"]})
        self.answers.append(message["content"])
        self.read.append((usage["prompt_tokens"] - cached, usage["prompt_tokens"]))
        # For who runs it by hand.
        sys.stdout.write("computed {} of a prompt of {} tokens\n".format(*self.read[-1]))

    @property
    def share_read(self) -> float:
        """Of the last prompt, the share that was computed."""
        computed, total = self.read[-1]
        return computed / total


def _long_text() -> str:
    """About as many tokens as wanted: one per word."""
    words = _WORDS.split()
    return " ".join(words[(i * i) % len(words)] for i in range(_NUM_TOKENS - 200))


_QUESTIONS = ("Summarize this: " + _long_text(), "What was it about?", "Say it shorter.", "Why?")


@pytest.mark.timeout(120 + _NUM_TOKENS // 5)
def test_a_conversation_survives_a_swap_a_restart_and_a_damaged_disk(
    tmp_path: Path, folder: Path
) -> None:
    room = ("--ram", "500MiB", "--ctx", str(_CONTEXT_TOKENS if _NUM_TOKENS > 1500 else 2048))
    undisturbed, talk = Talk(), Talk()
    with serving(folder, *room, home=tmp_path) as (_, url):
        for question in _QUESTIONS[:3]:
            undisturbed.say(url, question)
        # Tokens that are computed in other batches differ in their last bits.
        undisturbed.say(url, _QUESTIONS[3], reads_anew=True)

    home = tmp_path / "disturbed"
    home.mkdir()
    with serving(folder, *room, home=home) as (server, url):
        talk.say(url, _QUESTIONS[0])
        assert talk.share_read == 1
        ask(url, OTHER)
        talk.say(url, _QUESTIONS[1])
        assert talk.share_read < 0.05
        server.send(signal.SIGINT)
        server.end()
    with serving(folder, *room, home=home) as (server, url):
        talk.say(url, _QUESTIONS[2])
        assert talk.share_read < 0.05
        server.send(signal.SIGTERM)
        assert server.end().code == 0

    (state,) = (home / ".cache/hotset/conversations").iterdir()
    with state.open("r+b") as file:
        file.seek(state.stat().st_size // 2)
        file.write(b"damaged!")
    with serving(folder, *room, home=home) as (_, url):
        talk.say(url, _QUESTIONS[3])
        assert talk.share_read == 1
        log = httpx.get(f"{url}/api/logs?model={SMOL}").text
        assert "a saved conversation is dropped: damaged" in log
    assert talk.answers == undisturbed.answers
