"""Drafting against the engine: every synthetic family with a head, in dry starts that draft."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from benchmarks.planner.drafting import (
    DRAFTING_CARD_CASES,
    TINY_DRAFTING_CASES,
    compare_drafting,
    is_as_counted,
)
from benchmarks.planner.dry import drafting_breakdowns
from benchmarks.planner.memory import software_card
from benchmarks.planner.memorycases import LOAD_CASES

from enginekit import fake_engine
from hotset.core.errors import EngineProblem
from hotset.gguf.synth import FAMILIES

ACCOUNT = "say('| memory breakdown [MiB] |'); say('|   - Host |  {0} = 1 + {1} + 2 |'); say('end');"


def test_both_contexts_take_what_is_counted_in_every_family_with_a_head() -> None:
    assert {case.model for case in TINY_DRAFTING_CASES} == {n for n in FAMILIES if "-mtp" in n}

    rows = list(compare_drafting(TINY_DRAFTING_CASES))

    assert [name for name, _ in rows] == ["main", "draft"] * len(TINY_DRAFTING_CASES)
    assert [row for _, row in rows if not row.is_within] == []


def test_a_head_goes_where_its_unit_goes() -> None:
    with software_card() as found:
        if found is None:
            pytest.skip("needs requirements/engines.txt, AVX-512 and a Vulkan driver for software")
        rows = list(compare_drafting(DRAFTING_CARD_CASES, *found))

    assert len(rows) == 4 * len(DRAFTING_CARD_CASES)
    assert [row for name, row in rows if not is_as_counted(name, row)] == []
    drafts = [row.taken for name, row in rows if name == "draft"]
    assert all((taken.context_mib > 0) == (taken.device != "Host") for taken in drafts)


def test_accounts_are_told_apart_in_engines_that_give_the_second_first(tmp_path: Path) -> None:
    first, later = ACCOUNT.format(5, 2), ACCOUNT.format(9, 6)
    said = "say('load_model: [spec] estimated memory usage of MTP context is 0.00 MiB');"
    settings = LOAD_CASES[0].settings(tmp_path / "m.gguf")

    for behaviour, contexts in ((first + later, [2, 6]), (first + said + later, [6, 2])):
        engine = fake_engine(tmp_path, f"{behaviour}time.sleep(60)")
        accounts = drafting_breakdowns(engine, settings, os.environ)
        assert [account[0].context_mib for account in accounts] == contexts


def test_an_engine_that_gives_one_account_alone_does_not_draft(tmp_path: Path) -> None:
    engine = fake_engine(tmp_path, ACCOUNT.format(5, 2))
    settings = LOAD_CASES[0].settings(tmp_path / "m.gguf")

    with pytest.raises(EngineProblem, match="1 of 2 accounts"):
        drafting_breakdowns(engine, settings, os.environ)
