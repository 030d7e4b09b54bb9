"""The soak: everything in it that is not a measurement."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import replace
from types import SimpleNamespace
from typing import Any, cast

import httpx
import pytest
from benchmarks.store.engine import Running
from benchmarks.store.soak.memory import Sample, growth
from benchmarks.store.soak.report import SoakResult, as_lines, broken_bounds
from benchmarks.store.soak.traffic import Traffic, reference_tokens
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import EngineProblem
from hotset.core.units import MIB

N_VOCAB = 4000


def samples_of(totals: list[int]) -> list[Sample]:
    return [Sample(float(i), total, 0, 0) for i, total in enumerate(totals)]


GOOD = SoakResult(1000 * MIB, 500 * MIB, 0, samples_of([990 * MIB] * 100), {"short": 5}, [], 3, 0)


def total(sample: Sample) -> int:
    return sample.total_bytes


@given(st.integers(0, 10**9), st.integers(-(10**6), 10**6), st.integers(8, 200))
def test_growth_is_that_of_the_line_and_not_of_what_lies_between(
    start: int, step: int, count: int
) -> None:
    line = [start + step * i for i in range(4 * count + 1)]
    grown = growth(samples_of(line), total)
    assert grown == 3 * count * step
    bump = [value + (10**9 if count < i < 3 * count else 0) for i, value in enumerate(line)]
    assert growth(samples_of(bump), total) == grown


def test_each_bound_is_named_when_it_is_broken_and_only_then() -> None:
    assert broken_bounds(GOOD) == []
    rising = samples_of([(900 + i) * MIB for i in range(100)])
    spike = samples_of([990 * MIB] * 50 + [1031 * MIB] + [990 * MIB] * 49)
    for changes, words in (
        ({"samples": spike}, "3.1% above the budget"),
        ({"peak_bytes": 1031 * MIB}, "3.1% above the budget"),
        ({"samples": rising}, "memory grew by"),
        ({"num_changed": 1}, "1 of 3 fixed answers changed"),
        ({"num_compared": 0}, "never asked"),
        ({"errors": ["short: status 500: no"]}, "1 requests failed, first: short: status 500"),
    ):
        (line,) = broken_bounds(replace(GOOD, **cast(Any, changes)))
        assert words in line
    assert broken_bounds(replace(GOOD, peak_bytes=1029 * MIB)) == []


def test_the_report_shows_every_figure_of_the_result() -> None:
    result = replace(GOOD, peak_bytes=1024 * MIB, num_requests={"short": 41, "long": 7})
    text = "\n".join(as_lines(result))
    for words in ("41 short", "7 long", "1000.0 MiB", "500.0 of it", "1024.0 MiB, +2.4%", "990.0"):
        assert words in text


class FakeEngine:
    """Answers as a server does, and notes what it was asked."""

    def __init__(self, status: int = 200, busy: int = 0) -> None:
        self.orders: list[dict[str, Any]] = []
        self.status = status
        self.busy = busy
        self.client = httpx.Client(
            base_url="http://engine", transport=httpx.MockTransport(self.answer)
        )

    def answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/slots":
            self.busy -= 1
            return httpx.Response(200, json=[{"is_processing": self.busy >= 0}])
        order = json.loads(request.content)
        self.orders.append(order)
        return httpx.Response(self.status, json={"tokens": [1, 2, 3]})


def running(engine: FakeEngine) -> Running:
    return cast(Running, SimpleNamespace(client=engine.client))


def test_a_soak_asks_for_all_kinds_and_the_same_seed_asks_the_same() -> None:
    first, second = FakeEngine(busy=2), FakeEngine()
    traffic = Traffic(running(first), N_VOCAB, "seed")
    again = Traffic(running(second), N_VOCAB, "seed")
    for _ in range(60):
        traffic.episode()
        again.episode()
    assert set(traffic.num_requests) == {"short", "long", "two at once", "given up"}
    assert traffic.num_requests.total() == len(first.orders)
    assert traffic.errors == []
    # Two at once may come in either order.
    prompts = [Counter(tuple(order["prompt"]) for order in e.orders) for e in (first, second)]
    assert prompts[0] == prompts[1]
    lengths = {len(order["prompt"]) for order in first.orders}
    assert min(lengths) >= 16
    assert max(lengths) <= 2048
    assert any(length >= 512 for length in lengths)


def test_requests_that_fail_are_noted_and_the_fixed_one_stops_the_soak() -> None:
    engine = FakeEngine(status=500)
    traffic = Traffic(running(engine), N_VOCAB, "seed")
    while traffic.num_requests["short"] == 0:
        traffic.episode()
    assert any(error.startswith("short: status 500") for error in traffic.errors)
    with pytest.raises(EngineProblem, match="no answer to the fixed prompt"):
        reference_tokens(running(engine), N_VOCAB)


def test_the_fixed_prompt_is_always_the_same_and_read_anew() -> None:
    engine = FakeEngine()
    assert reference_tokens(running(engine), N_VOCAB) == [1, 2, 3]
    reference_tokens(running(engine), N_VOCAB)
    assert engine.orders[0] == engine.orders[1]
    assert engine.orders[0]["cache_prompt"] is False
    assert engine.orders[0]["temperature"] == 0


def test_an_engine_that_is_gone_ends_the_soak() -> None:
    def gone(_: httpx.Request) -> httpx.Response:
        raise httpx.ConnectError("refused")

    engine = FakeEngine()
    engine.client = httpx.Client(base_url="http://engine", transport=httpx.MockTransport(gone))
    with pytest.raises(EngineProblem, match="was it killed"):
        Traffic(running(engine), N_VOCAB, "seed").episode()
