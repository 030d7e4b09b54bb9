"""What the live line says, from pages of counters and an engine's events."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from hotset.cli.experts import ExpertWatch
from hotset.cli.meter import AnswerMeter, ServiceMeter
from hotset.engine.client import ChatStream, PromptProgress, Timings
from hotset.engine.running import Running
from hotset.store.page import CountersPage
from store.pagekit import page_of

NUM_MATRICES, NUM_USED = 12, 4
MB = 1_000_000


@pytest.fixture(name="page")
def _page() -> Iterator[CountersPage]:
    with CountersPage() as page:
        tell(page)
        yield page


def tell(
    page: CountersPage, *, tokens: int = 0, requests: int = 0, hits: int = 0, read_bytes: int = 0
) -> None:
    """What the store has counted since its start."""
    rows = tokens * NUM_MATRICES * NUM_USED
    totals = [0, NUM_MATRICES, 0, rows, 0, 0, requests, hits, 0, read_bytes, 0, 0]
    Path(page.path).write_bytes(page_of(totals, []))


class Silent(Running):
    """An engine that never says anything, because there is none."""

    def __init__(self) -> None: ...

    @property
    def num_lines(self) -> int:
        return 0


def stream_of() -> ChatStream:
    """A stream that nobody reads: the test says how far it is."""
    return ChatStream(Silent(), [], {})


def timings(tokens: int, per_s: float) -> Timings:
    return Timings(
        prompt_tokens=8, cached_tokens=0, prompt_per_s=1.0, answer_tokens=tokens, answer_per_s=per_s
    )


def test_a_prompt_is_as_far_as_the_experts_are_and_never_farther_than_it_is_long(
    page: CountersPage,
) -> None:
    with stream_of() as stream:
        meter = AnswerMeter(stream, ExpertWatch(page, NUM_USED))
        assert meter.line() == "reading the prompt · 0 s"
        stream.prompt = PromptProgress(num_tokens=2000, num_cached=100, num_done=100)
        tell(page, tokens=300, requests=1000, hits=250, read_bytes=1500 * MB)
        assert meter.line() == (
            "reading the prompt, 400 of 2,000 tokens · 0 s · experts 25% from RAM · 1.5 GB read"
        )
        stream.prompt = PromptProgress(num_tokens=2000, num_cached=100, num_done=1024)
        assert meter.line().startswith("reading the prompt, 1,024 of 2,000 tokens")
        tell(page, tokens=5000)
        assert meter.line().startswith("reading the prompt, 2,000 of 2,000 tokens")


def test_an_answers_hits_are_its_own_and_the_bytes_are_of_both(page: CountersPage) -> None:
    with stream_of() as stream:
        meter = AnswerMeter(stream, ExpertWatch(page, NUM_USED))
        tell(page, tokens=300, requests=1000, hits=0, read_bytes=1000 * MB)
        stream.timings = timings(1, 5.0)
        assert meter.line() == "1 token · 5.0 tok/s · 1.0 GB read"
        tell(page, tokens=310, requests=1100, hits=90, read_bytes=1200 * MB)
        stream.timings = timings(11, 9.84)
        assert meter.line() == "11 tokens · 9.8 tok/s · experts 90% from RAM · 1.2 GB read"


def test_the_line_takes_nothing_from_the_summary(page: CountersPage) -> None:
    experts = ExpertWatch(page, NUM_USED)
    experts.line()
    tell(page, tokens=10, requests=100, hits=90, read_bytes=200 * MB)
    with stream_of() as stream:
        AnswerMeter(stream, experts).line()
    assert experts.line() == "experts 90% from RAM, 10% from disk (0.2 GB read)"
    assert experts.line() == ""


def test_without_the_store_the_line_tells_of_tokens_only() -> None:
    with stream_of() as stream:
        meter = AnswerMeter(stream, ExpertWatch(None))
        assert meter.line() == "reading the prompt · 0 s"
        stream.timings = timings(7, 30.0)
        assert meter.line() == "7 tokens · 30.0 tok/s"


def test_a_service_that_did_nothing_says_nothing_and_later_what_it_did(
    page: CountersPage, monkeypatch: pytest.MonkeyPatch
) -> None:
    now_s = 100.0
    monkeypatch.setattr("time.monotonic", lambda: now_s)
    meter = ServiceMeter(ExpertWatch(page, NUM_USED))
    assert meter.line() == ""
    now_s = 102.0
    tell(page, tokens=30, requests=1000, hits=800, read_bytes=500 * MB)
    assert meter.line() == ("15.0 tok/s, prompts and answers · experts 80% from RAM · 0.25 GB/s")
    now_s = 110.0
    assert meter.line() == "idle · 30 tokens so far · experts 80% from RAM · 0.5 GB read"
