"""The memory table: the engine's account is read as written, and a model that is off shows."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.planner import memorytable
from benchmarks.planner.dry import HOST, Taken, breakdown, first_breakdown
from benchmarks.planner.memory import Compared, Planned, compare_dry, compare_loads, planned_on_card
from benchmarks.planner.memorycases import (
    CARD_CASES,
    DRY_CASES,
    LOAD_CASES,
    PAIRS,
    Case,
    quick_cases,
)
from benchmarks.planner.storememory import STORE_CASES, Stored

from enginekit import fake_engine, smollm2
from hotset.core.compute import compute_bytes_estimate
from hotset.core.errors import EngineProblem
from hotset.core.memory import cache_bytes
from hotset.core.units import MIB
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES
from hotset.gguf.synth.recipe import ModelKind
from plankit import real_model

TITLE = "0.09 I common_memory_breakdown_print: | memory breakdown [MiB]  | total   free    self |"
CARD = "0.09 I x: |   - Vulkan0 (llvmpipe (LLVM 15.0.6, 256 bits)) |  2048 = 2047 + (4414 =  3221 +    1024 +     169) +       -4414 |"  # noqa: E501
RAM = "0.09 I x: |   - Host                                       |                 1399 =  1051 +       7 +     348                |"  # noqa: E501
REPACKED = "0.09 I x: |   - CPU_REPACK         |         90 =    90 +       0 +       0           |"
AFTER = "0.09 I common_params_fit_impl: projected to use 4414 MiB of device memory"


def test_the_first_account_of_a_log_is_read_with_every_device() -> None:
    log = ["loading", TITLE, CARD, RAM, REPACKED, AFTER, TITLE, RAM, AFTER]

    assert breakdown(log) == (Taken("Vulkan0", 3221, 1024, 169), Taken(HOST, 1141, 7, 348))
    assert breakdown(log[:5]) == ()  # another row may follow
    assert breakdown([CARD, RAM, AFTER]) == ()  # no title: a model's text, or another table


def test_an_engine_that_gives_no_account_is_named_with_its_reason(tmp_path: Path) -> None:
    engine = fake_engine(tmp_path, "say('0.00.001.000 E cannot read this')\nsys.exit(3)")
    settings = LOAD_CASES[0].settings(tmp_path / "m.gguf")

    with pytest.raises(EngineProblem, match=r"ended with status 3 .*cannot read this"):
        first_breakdown(engine, settings, os.environ)


def test_the_engine_takes_what_is_counted_before_it_loads_anything() -> None:
    rows = list(compare_dry(quick_cases()))

    assert len(rows) == len(quick_cases()) >= 4
    for row in rows:
        assert row.is_exact, row
        assert -1 < row.compute_error_mib < 10, row
        assert abs(row.total_share) < 0.02, row


def test_every_family_takes_what_is_counted_and_never_more() -> None:
    cases = tuple(
        Case(model=name, context_tokens=8192, ubatch_tokens=2048)
        for name, recipe in FAMILIES.items()
        if recipe.kind is ModelKind.CHAT
    )

    off = [row for row in compare_dry(cases) if not row.is_within]

    assert len(cases) > 30
    assert off == []


def test_a_load_takes_what_is_counted() -> None:
    (row,) = compare_loads(LOAD_CASES[:1])

    assert row.is_within, row


def compared(model_mib: int = 1000, context_mib: int = 100, compute_mib: int = 200) -> Compared:
    ours = Planned(HOST, 1000 * MIB, 100 * MIB, 200 * MIB)
    taken = Taken(HOST, model_mib, context_mib, compute_mib)
    return Compared(Case(model="mixtral-8x7b", mix="Q4_0", context_tokens=512), ours, taken)


def test_a_row_is_within_only_if_every_figure_is() -> None:
    assert compared().is_within
    assert not compared(model_mib=1001).is_within
    assert not compared(context_mib=99).is_within
    assert not compared(compute_mib=202).is_within  # too little is counted
    assert compared(compute_mib=150).is_within  # within 64 MiB
    assert not compared(compute_mib=120).is_within


def test_a_card_and_ram_hold_the_whole_model_between_them() -> None:
    for case in CARD_CASES:
        if case.model == "smollm2":
            spec = model_spec(open_model(smollm2()))
        else:
            spec = real_model(case.model, case.mix)
        card, ram = planned_on_card(spec, case)
        assert card.model_bytes + ram.model_bytes - spec.trunk_bytes in (0, spec.tied_output_bytes)
        caches = cache_bytes(spec, case.cache_settings())
        assert card.context_bytes + ram.context_bytes == caches.total


def test_the_cases_cover_what_the_table_promises() -> None:
    assert len(set(PAIRS)) >= 15
    assert len(set(DRY_CASES)) == len(DRY_CASES) >= 100
    assert len(LOAD_CASES) >= 12
    assert len(set(CARD_CASES)) >= 20
    assert {case.context_tokens for case in DRY_CASES} >= {4096, 262144}
    assert {case.kv for case in DRY_CASES} == {"f16", "q8_0", "q4_0"}
    assert {case.ubatch_tokens for case in DRY_CASES} == {512, 2048}


def test_the_page_shows_every_row_and_where_it_is_off(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "memory.md"
    monkeypatch.setattr(memorytable, "DOCS", page)
    monkeypatch.setattr(memorytable, "compare_dry", lambda _: [compared(), compared(model_mib=9)])
    monkeypatch.setattr(memorytable, "compare_loads", lambda _: [compared()])
    monkeypatch.setattr(memorytable, "compare_stores", lambda _: [stored()])
    monkeypatch.setenv("VK_DRIVER_FILES", "/dev/null")

    assert memorytable.print_comparison(is_quick=True, is_written=True) == 1

    out, text = capsys.readouterr().out, page.read_text()
    assert "out of tolerance" in out
    assert "skipped" in out
    assert "**1000 / 9**" in text
    assert "| dry, all | 2 | 1 | 1 |" in text
    assert text.count("| mixtral-8x7b Q4_0 |") == 3


def stored(store: int = 68 * MIB, processor: int = 44 * MIB) -> Stored:
    return Stored(STORE_CASES[2], 68 * MIB, 44 * MIB, store, processor)


@pytest.mark.parametrize(
    ("store_mib", "processor_mib", "is_within"),
    [(68, 44, True), (67, 43, True), (70, 44, False), (4, 44, True), (3, 44, False)],
)
def test_too_little_is_out_of_tolerance_and_so_is_far_too_much(
    store_mib: int, processor_mib: int, is_within: bool
) -> None:
    assert stored(store_mib * MIB, processor_mib * MIB).is_within == is_within


def test_the_part_with_the_store_can_be_made_anew_alone(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "memory.md"
    page.write_text("# Head\n\n## Loads\n\nrows\n\n## On a card\n\nmore\n")
    monkeypatch.setattr(memorytable, "DOCS", page)
    for share in (1, 2):
        rows = [stored(store=68 * MIB // share)] * share
        monkeypatch.setattr(memorytable, "compare_stores", lambda _, rows=rows: rows)
        assert memorytable.print_stores(is_quick=True, is_written=True) == 0

    text = page.read_text()
    assert "2 starts, 2 within" in capsys.readouterr().out
    assert text.startswith("# Head\n\n## Loads\n\nrows\n\n## With the expert store\n")
    assert text.endswith("\n\n## On a card\n\nmore\n")
    assert text.count("68.00 / 34.00") == 2
    assert "68.00 / 68.00" not in text


def test_the_fitted_constant_is_the_one_that_made_the_rows() -> None:
    rows = []
    for case in DRY_CASES[::7]:
        spec = real_model(case.model, case.mix)
        from_code = compute_bytes_estimate(spec, case.cache_settings())
        rows.append(Compared(case, compared().planned, Taken(HOST, 0, 0, round(from_code / MIB))))

    assert memorytable.fitted_rows(rows) == pytest.approx(5, abs=0.1)
