"""The page of counters, as a reader meets it: whole, half made, of another version, damaged."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import EngineProblem
from hotset.store import Counters, StoreState, read_counters
from store.pagekit import LAYER_BYTES, NUM_TOTALS, layer, page_of

NUMBERS = st.integers(0, 2**64 - 1)


def refusal_of(page: bytes | None, folder: Path) -> str:
    path = folder / "counters"
    if page is not None:
        path.write_bytes(page)
    with pytest.raises(EngineProblem, match="expert store counters") as refused:
        read_counters(path)
    return refused.value.message.removeprefix(f"expert store counters {path}: ")


@given(
    st.lists(NUMBERS, min_size=NUM_TOTALS, max_size=NUM_TOTALS),
    st.lists(st.tuples(*[NUMBERS] * 8), max_size=20),
    st.sampled_from(StoreState),
)
def test_what_was_laid_out_is_read_back(
    tmp_path_factory: pytest.TempPathFactory,
    totals: list[int],
    numbers: list[tuple[int, ...]],
    state: StoreState,
) -> None:
    layers = [layer(f"blk.{i}", numbers=each) for i, each in enumerate(numbers)]
    path = tmp_path_factory.getbasetemp() / "counters"
    # Room that is not used yet lies behind the last layer.
    path.write_bytes(page_of(totals, layers, state=state) + bytes(LAYER_BYTES))
    counters = read_counters(path)
    assert counters == Counters(*totals, state=state, layers=tuple(layers))
    assert counters.num_misses == counters.num_requests - counters.num_hits


def test_layers_come_in_the_order_of_the_model_whatever_the_order_of_the_page(
    tmp_path: Path,
) -> None:
    names = [("blk.10", 0), ("blk.2", 1), ("blk.2", 0), ("blk.1", 1), ("", 0), ("7", 0)]
    (tmp_path / "counters").write_bytes(
        page_of([0] * NUM_TOTALS, [layer(name, copy) for name, copy in names])
    )
    assert [(each.name, each.copy) for each in read_counters(tmp_path / "counters").layers] == [
        ("", 0), ("7", 0), ("blk.2", 0), ("blk.10", 0), ("blk.1", 1), ("blk.2", 1)
    ]  # fmt: skip


@pytest.mark.parametrize("content", [None, b"", b"HOTSETCT", bytes(64), bytes(70000)])
def test_counters_that_are_not_there_yet_are_an_error(
    tmp_path: Path, content: bytes | None
) -> None:
    said = refusal_of(content, tmp_path)
    assert said == "No such file or directory" or "the engine has not loaded the store" in said


@pytest.mark.parametrize(
    "page",
    [
        # What hotset 0.1 wrote at first: no layers, the totals right behind their number.
        b"HOTSETCT" + struct.pack("<II12Q", 1, 12, *range(12)),
        page_of([0] * NUM_TOTALS, [], version=9),
        b"HOTSETCT" + struct.pack("<II", 3, 0),
    ],
    ids=["1", "9", "3"],
)
def test_counters_of_another_version_are_refused_in_one_line(tmp_path: Path, page: bytes) -> None:
    said = refusal_of(page, tmp_path)
    assert said.startswith(f"version {page[8]}, but this hotset reads version 2")
    assert "\n" not in said


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        ({"num_totals": 11}, "11 totals"),
        ({"layer_bytes": 128}, "128 bytes per layer"),
        ({"header_bytes": 16}, "a header of 16 bytes"),
        ({"state": 3}, "state 3"),
        ({"num_layers": 2**32 - 1}, "that 4294967295 layers need"),
        ({"num_layers": 3}, "that 3 layers need"),
    ],
)
def test_a_page_that_contradicts_its_version_is_refused(
    tmp_path: Path, damage: dict[str, int], reason: str
) -> None:
    page = page_of([0] * NUM_TOTALS, [layer("blk.0"), layer("blk.1")], **damage)
    assert reason in refusal_of(page, tmp_path)


def test_a_page_that_ends_anywhere_is_refused(tmp_path: Path) -> None:
    page = page_of([1] * NUM_TOTALS, [layer("blk.0")])
    for size in range(len(page)):
        assert refusal_of(page[:size], tmp_path)
