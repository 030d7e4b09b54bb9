"""Recordings of other programs, and both formats as one routing."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.core.errors import FileProblem, MachineProblem
from hotset.lab.routing import load_routing, read_records
from hotset.store.trace import TraceBatch, TraceLayer, write_trace
from lab.routingkit import skewed_records

HEAD = (
    "# route_trace v1\n"
    "# model=m.gguf arch=a n_layer=2 n_expert=4 n_expert_used=2\n"
    "# layer=1 expert_bytes=10 dense_bytes=5\n"
    "# layer=2 expert_bytes=20 dense_bytes=5\n"
    "turn,phase,step,layer,slot,expert,weight\n"
)


def written(folder: Path, text: str) -> Path:
    path = folder / "recording.csv"
    path.write_text(text)
    return path


def rows(*cells: tuple[int, int, int, int, int]) -> str:
    return "".join(
        f"{turn},{phase},{step},{layer},0,{expert},0.5\n"
        for turn, phase, step, layer, expert in cells
    )


def test_a_prompt_becomes_one_batch_and_each_decoded_token_one(tmp_path: Path) -> None:
    prompt = [(0, 0, step, layer, e) for step in (0, 1) for layer in (1, 2) for e in (step, 3)]
    steps = [(0, 1, step, layer, e) for step in (2, 3) for layer in (1, 2) for e in (3, 1)]
    records = list(read_records(written(tmp_path, HEAD + rows(*prompt, *steps))))
    assert records[:2] == [TraceLayer(0, "blk.1", 4, 10), TraceLayer(1, "blk.2", 4, 20)]
    batches = [record for record in records if isinstance(record, TraceBatch)]
    assert [(b.batch, b.layer, b.num_tokens, b.is_decode) for b in batches] == [
        (0, 0, 2, False), (0, 1, 2, False),
        (1, 0, 1, True), (1, 1, 1, True), (2, 0, 1, True), (2, 1, 1, True),
    ]  # fmt: skip
    assert batches[0].experts.tolist() == [0, 3, 1, 3]
    routing = load_routing(tmp_path / "recording.csv")
    assert routing.num_decode_tokens == 2
    assert routing.cycle_units == 4
    # Several tokens are asked for by number, one in the router's order.
    assert [event.experts for event in routing.events[::2]] == [(0, 1, 3), (3, 1), (3, 1)]
    assert routing.decode_only().events == routing.events[2:]


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (HEAD + "0,1,2,1,0,4,0\n", "line 6: layer 1, expert 4: there is none"),
        (HEAD + "0,1,2,7,0,1,0\n", "line 6: layer 7, expert 1: there is none"),
        (HEAD + "0,1,2,1\n", "line 6: a cell is missing or no number"),
        (HEAD + "0,1,x,1,0,1,0\n", "line 6: a cell is missing or no number"),
        (HEAD.replace("expert,", "e,"), "line 5: no column 'expert'"),
        (HEAD.replace("expert_bytes=10", "expert_bytes=-1"), "line 3: the model's shape"),
        (HEAD.replace("expert_bytes=10", "size=1"), "line 3: the model's shape"),
        (HEAD.replace("n_expert=4", "n_expert=70000"), "n_expert is 70000"),
        (HEAD.replace("n_expert=4", "n_expert=x"), "line 2: the model's shape"),
        (HEAD, "holds no routing"),
    ],
)
def test_a_line_that_makes_no_sense_is_named(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(FileProblem) as raised:
        load_routing(written(tmp_path, text))
    assert said in raised.value.message


def test_bytes_that_are_no_text_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "recording.csv"
    path.write_bytes(HEAD.encode() + b"\xff\xfe,")
    with pytest.raises(FileProblem, match="no text in UTF-8"):
        load_routing(path)


def test_what_is_written_as_a_trace_is_read_again(tmp_path: Path) -> None:
    records = skewed_records([8, 4], [100, 200], used=2, batches=[3, 1, 20, 1], seed=8)
    path = tmp_path / "routing.trace"
    write_trace(path, records)
    assert list(read_records(path)) == records
    with pytest.raises(MachineProblem, match="cannot be written"):
        write_trace(tmp_path / "missing" / "routing.trace", records)
