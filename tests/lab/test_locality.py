"""What a recording tells of each layer."""

from __future__ import annotations

from array import array
from collections.abc import Sequence

from hotset.lab.locality import summarize
from hotset.store.trace import TraceBatch, TraceLayer


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
