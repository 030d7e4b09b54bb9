"""Routing traces: what the plugin writes down, what the reader takes, and what it refuses."""

from __future__ import annotations

from array import array
from collections.abc import Sequence
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hotset.core.errors import FileProblem
from hotset.store import (
    NativeStore,
    TraceBatch,
    TraceLayer,
    child_settings,
    read_counters,
    read_trace,
    summarize,
)
from store import tracekit
from store.asking import Answer, ask
from store.engines import Engine, running, start
from store.tinymoe import NUM_LAYERS, NUM_USED

PROMPT = "The quick brown fox jumps over the lazy dog. "
NUM_TOKENS = 6
Record = TraceLayer | TraceBatch


class Traced:
    """An engine that has answered one prompt: its answer, its trace and its counters."""

    def __init__(
        self,
        engine: Engine,
        native: NativeStore,
        model: Path,
        folder: Path,
        share: float,
        prompt: str = PROMPT,
    ) -> None:
        plugin = engine.check().plugin
        assert plugin is not None
        ram_bytes = int(share * model.stat().st_size)
        counters, trace = folder / "counters", folder / "trace"
        settings = child_settings(
            native, plugin, [model], ram_bytes=ram_bytes, counters=counters, trace=trace
        )
        with running(engine, model, settings) as stored:
            self.answer: Answer = ask(stored.address, prompt, NUM_TOKENS)
        self.records = list(read_trace(trace))
        self.counters = read_counters(counters)

    @property
    def layers(self) -> list[TraceLayer]:
        return [record for record in self.records if isinstance(record, TraceLayer)]

    @property
    def batches(self) -> list[TraceBatch]:
        return [record for record in self.records if isinstance(record, TraceBatch)]


@pytest.fixture(scope="module")
def whole(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path_factory: pytest.TempPathFactory
) -> Traced:
    """With memory for all experts."""
    return Traced(engine, native, tiny_moe, tmp_path_factory.mktemp("whole"), 1.5)


@pytest.mark.parametrize("share", [0.0, 0.003, 0.2, 1.5])
def test_the_same_prompt_is_routed_the_same_in_any_budget(
    engine: Engine,
    native: NativeStore,
    tiny_moe: Path,
    tmp_path: Path,
    whole: Traced,
    share: float,
) -> None:
    again = Traced(engine, native, tiny_moe, tmp_path, share)
    assert again.answer == whole.answer
    assert again.records == whole.records


def test_every_layer_of_every_batch_is_there_once_and_in_order(whole: Traced) -> None:
    passes = [(batch.batch, batch.layer) for batch in whole.batches]
    assert passes == [
        (number, layer)
        for number in range(len(passes) // NUM_LAYERS)
        for layer in range(NUM_LAYERS)
    ]
    # A byte is a token, but " t" is one as well; the last layer computes only the last of them.
    num_tokens = len(PROMPT) - PROMPT.count(" t")
    prompt = [batch for batch in whole.batches if batch.batch_tokens == num_tokens]
    assert [batch.num_tokens for batch in prompt] == [num_tokens] * (NUM_LAYERS - 1) + [1]
    assert not prompt[-1].is_decode
    decoded = {batch.batch for batch in whole.batches if batch.batch > prompt[0].batch}
    assert len(decoded) == NUM_TOKENS - 1
    assert all(batch.is_decode for batch in whole.batches if batch.batch in decoded)


def test_a_layer_that_computes_no_token_of_a_batch_has_no_record_of_it(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path: Path
) -> None:
    """A long prompt takes several batches; no logits are wanted of those before the last."""
    traced = Traced(engine, native, tiny_moe, tmp_path, 0.0, prompt=PROMPT * 16)
    seen: dict[int, list[int]] = {}
    for batch in traced.batches:
        seen.setdefault(batch.batch, []).append(batch.layer)
    assert list(seen) == list(range(len(seen)))
    every = list(range(NUM_LAYERS))
    assert [layers for layers in seen.values() if layers != every] == [every[:-1]]


def test_each_token_has_as_many_distinct_experts_as_the_model_uses(whole: Traced) -> None:
    assert [layer.name for layer in whole.layers] == [f"blk.{i}" for i in range(NUM_LAYERS)]
    for batch in whole.batches:
        assert batch.num_used == NUM_USED
        for begin in range(0, len(batch.experts), NUM_USED):
            assert len(set(batch.experts[begin : begin + NUM_USED])) == NUM_USED


def test_the_trace_tells_what_the_store_counts(whole: Traced) -> None:
    """Where all fits, each expert of a batch is asked for once, and read when it first comes."""
    asked = [(batch.layer, expert) for batch in whole.batches for expert in set(batch.experts)]
    sizes = {layer.layer: layer.expert_bytes for layer in whole.layers}
    assert whole.counters.num_requests == len(asked)
    assert whole.counters.num_hits == len(asked) - len(set(asked))
    assert whole.counters.read_bytes >= sum(sizes[layer] for layer, _ in set(asked))
    for at, counted in enumerate(whole.counters.layers):
        of_layer = [expert for layer, expert in asked if layer == at]
        assert counted.num_requests == len(of_layer)
        assert counted.num_misses == len(set(of_layer))
        assert (counted.name, counted.expert_bytes) == (whole.layers[at].name, sizes[at])
    assert [summary.num_distinct for summary in summarize(whole.records)] == [
        len({expert for at, expert in asked if at == layer}) for layer in range(NUM_LAYERS)
    ]


def test_a_full_disk_ends_the_trace_and_not_the_request(
    engine: Engine, native: NativeStore, tiny_moe: Path, whole: Traced
) -> None:
    plugin = engine.check().plugin
    assert plugin is not None
    settings = child_settings(native, plugin, [tiny_moe], ram_bytes=0, trace=Path("/dev/full"))
    with running(engine, tiny_moe, settings) as stored:
        assert ask(stored.address, PROMPT, NUM_TOKENS) == whole.answer
    assert stored.log.count("hotset: routing trace /dev/full: No space left on device") == 1


def test_the_trace_of_a_killed_engine_lacks_no_more_than_its_last_batch(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path: Path, whole: Traced
) -> None:
    plugin = engine.check().plugin
    assert plugin is not None
    trace = tmp_path / "trace"
    settings = child_settings(native, plugin, [tiny_moe], ram_bytes=0, trace=trace)
    stored = start(engine, tiny_moe, settings, None)
    ask(stored.address, PROMPT, NUM_TOKENS)
    stored.child.kill()
    assert stored.stop() < 0
    records = list(read_trace(trace))
    assert records == whole.records[: len(records)]
    assert len(whole.records) - len(records) < NUM_LAYERS


def test_a_trace_that_cannot_be_begun_refuses_the_store_by_its_path(
    engine: Engine, native: NativeStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSET_TRACE", "/missing/trace")
    check = engine.check(native)
    assert not check.works
    assert "routing trace /missing/trace: No such file or directory" in check.reason


def test_an_engine_that_computes_nothing_leaves_the_file_as_it_is(
    engine: Engine, native: NativeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    trace = written(tmp_path, tracekit.trace(LAYERS))
    monkeypatch.setenv("HOTSET_TRACE", str(trace))
    assert engine.check(native).works
    assert trace.read_bytes() == tracekit.trace(LAYERS)


def test_a_new_trace_takes_the_place_of_a_longer_one(
    engine: Engine, native: NativeStore, tiny_moe: Path, tmp_path: Path, whole: Traced
) -> None:
    (tmp_path / "trace").write_bytes(bytes(1 << 20))
    assert Traced(engine, native, tiny_moe, tmp_path, 0.0).records == whole.records


# ---- The reader alone.

LAYERS = [tracekit.layer(0, "blk.0", 4, 700), tracekit.layer(1, "blk.1", 300)]


def written(folder: Path, content: bytes) -> Path:
    path = folder / "routing.trace"
    path.write_bytes(content)
    return path


def test_what_was_written_is_read(tmp_path: Path) -> None:
    records = [*LAYERS, tracekit.batch(5, 1, [[299, 1], [2, 3]], batch_tokens=9)]
    assert list(read_trace(written(tmp_path, tracekit.trace(records)))) == [
        TraceLayer(0, "blk.0", 4, 700),
        TraceLayer(1, "blk.1", 300, 1000),
        TraceBatch(5, 1, 9, 2, 2, array("H", [299, 1, 2, 3])),
    ]


def test_kinds_of_records_of_later_versions_are_skipped(tmp_path: Path) -> None:
    content = tracekit.trace([tracekit.record(77, b"abc"), LAYERS[0], tracekit.record(78, b"")])
    assert len(list(read_trace(written(tmp_path, content)))) == 1


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        (tracekit.layer(3, "blk.3", 4), "layer 3 comes where 2 must"),
        (tracekit.layer(2, "blk.2", 0), "without experts"),
        (tracekit.record(1, b"short"), "a layer in 5 bytes"),
        (tracekit.layer(2, "", 4)[:4] + b"\x11" + bytes(3) + bytes([2]) + bytes(3)
         + bytes([4]) + bytes(11) + b"\xff", "no UTF-8"),
        (tracekit.record(2, b"short"), "a batch in 5 bytes"),
        (tracekit.batch(0, 2, [[1]]), "layer 2, which has not been told"),
        (tracekit.batch(0, 0, [[4]]), "expert 4 of 4"),
        (tracekit.record(2, bytes(24)), "0 tokens with 0 experts each in 0 bytes"),
        (tracekit.record(2, bytes(16) + b"\1\0\0\0\1\0\0\0" + bytes(3)), "in 3 bytes"),
        (tracekit.record(2, bytes(16) + b"\2\0\0\0\1\0\0\0" + bytes(2)), "2 tokens with 1"),
    ],
)  # fmt: skip
def test_a_record_that_makes_no_sense_is_named_by_its_offset(
    tmp_path: Path, bad: bytes, said: str
) -> None:
    good = tracekit.trace(LAYERS)
    trace = read_trace(written(tmp_path, good + bad + LAYERS[0]))
    assert [next(trace), next(trace)]
    with pytest.raises(FileProblem) as raised:
        next(trace)
    assert f"damaged at offset {len(good)}: " in raised.value.message
    assert said in raised.value.message


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "it is no trace"),
        (tracekit.HEADER[:15], "it is no trace"),
        (b"GGUF" + bytes(100), "it is no trace"),
        (b"HOTSETTR" + (9).to_bytes(8, "little"), "version 9, but this hotset reads version 1"),
        (None, "No such file"),
    ],
)
def test_a_file_that_is_no_trace_of_this_version_is_refused(
    tmp_path: Path, content: bytes | None, said: str
) -> None:
    path = written(tmp_path, content) if content is not None else tmp_path / "missing"
    with pytest.raises(FileProblem, match=said):
        list(read_trace(path))


EXPERTS = st.lists(st.integers(0, 3), min_size=1, max_size=3)


@st.composite
def traces(draw: st.DrawFn) -> list[bytes]:
    """Records of a trace of two layers."""
    records = list(LAYERS)
    for number in range(draw(st.integers(0, 4))):
        for layer in range(2):
            used = draw(st.integers(1, 3))
            tokens = draw(st.lists(st.lists(st.integers(0, 3), min_size=used, max_size=used),
                                   min_size=1, max_size=4))  # fmt: skip
            records.append(tracekit.batch(number, layer, tokens))
    return records


@settings(max_examples=60, deadline=None)
@given(records=traces(), data=st.data())
def test_a_trace_cut_off_anywhere_gives_its_whole_records_and_then_the_place(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    content = tracekit.trace(records)
    cut = data.draw(st.integers(len(tracekit.HEADER), len(content)))
    path = written(tmp_path_factory.getbasetemp(), content[:cut])
    ends = [len(tracekit.trace(records[:n])) for n in range(len(records) + 1)]
    num_whole = sum(end <= cut for end in ends) - 1
    got, problem = read_until_problem(path)
    assert len(got) == num_whole
    if cut == ends[num_whole]:
        assert problem is None
    else:
        assert problem is not None
        assert f"damaged at offset {ends[num_whole]:,}: " in problem
        assert "cut off" in problem


@settings(max_examples=150, deadline=None)
@given(records=traces(), data=st.data())
def test_any_damage_is_either_a_trace_or_a_problem_of_the_file(
    tmp_path_factory: pytest.TempPathFactory, records: list[bytes], data: st.DataObject
) -> None:
    content = bytearray(tracekit.trace(records))
    for _ in range(data.draw(st.integers(1, 4))):
        content[data.draw(st.integers(0, len(content) - 1))] = data.draw(st.integers(0, 255))
    got, problem = read_until_problem(written(tmp_path_factory.getbasetemp(), bytes(content)))
    assert problem is None or "routing trace" in problem
    layers = {record.layer: record for record in got if isinstance(record, TraceLayer)}
    for record in got:
        if isinstance(record, TraceBatch):
            assert len(record.experts) == record.num_tokens * record.num_used
            assert max(record.experts) < layers[record.layer].num_experts


def read_until_problem(path: Path) -> tuple[list[Record], str | None]:
    records: list[Record] = []
    try:
        for record in read_trace(path):
            records.append(record)
    except FileProblem as problem:
        return records, problem.message
    return records, None


def decode(number: int, experts: Sequence[int]) -> TraceBatch:
    return TraceBatch(number, 0, 1, 1, len(experts), array("H", experts))


def test_a_layer_is_summed_up_over_its_batches() -> None:
    prompt = TraceBatch(2, 0, 9, 1, 2, array("H", [7, 8]))
    batches = [decode(0, [1, 2]), decode(1, [1, 3]), prompt, decode(3, [7, 8]), decode(4, [8, 7])]
    (summary,) = summarize([TraceLayer(0, "blk.0", 20, 1), *batches])
    assert (summary.num_batches, summary.num_decode_batches, summary.num_tokens) == (5, 4, 5)
    assert (summary.num_choices, summary.num_distinct) == (10, 5)
    # A tenth of 20: the two that were chosen three times each.
    assert summary.top_share == 0.6
    # One of two experts, then both; the prompt between them is nobody's neighbour.
    assert summary.overlap == 0.75


def test_a_layer_without_neighbouring_decode_batches_has_no_overlap() -> None:
    layers = [TraceLayer(number, f"blk.{number}", 8, 1) for number in range(2)]
    never, once = summarize([*layers, TraceBatch(0, 1, 1, 1, 1, array("H", [3]))])
    assert (never.num_choices, never.top_share, never.overlap) == (0, 0.0, None)
    assert (once.num_choices, once.top_share, once.overlap) == (1, 1.0, None)
