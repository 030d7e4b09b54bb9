"""The benchmark of the expert store: everything in it that is not a measurement."""

from __future__ import annotations

import itertools
import json
import mmap
import os
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from xml.etree import ElementTree

import pytest
from benchmarks.store import __main__ as command
from benchmarks.store import limits, pagecache
from benchmarks.store.models import QUICK_DIMS, BenchModel, few_experts, prepare
from benchmarks.store.physics import Costs, costs_of, limit_s
from benchmarks.store.plot import as_svg
from benchmarks.store.results import ModelResults, Round, rows_of
from benchmarks.store.table import as_json, as_table
from benchmarks.store.variants import (
    FEW,
    IN_RAM,
    REPACKED,
    cell_of_limit,
    cell_of_share,
    in_turn,
)
from benchmarks.store.workload import Measured, prompt_of
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.errors import MachineProblem
from hotset.core.units import MIB
from hotset.gguf.synth import Dims, Locality

DIMS = Dims(n_layers=2, n_experts=8, n_used=4)
seconds = st.floats(1e-4, 10.0)


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> BenchModel:
    return prepare(tmp_path_factory.mktemp("models"), "q4_k", Locality.MEDIUM, DIMS)


def test_a_model_is_written_once_and_its_matrices_are_its_experts(model: BenchModel) -> None:
    written = model.path.stat()
    again = prepare(model.path.parent, "q4_k", Locality.MEDIUM, DIMS)
    assert again == model
    assert model.path.stat().st_mtime_ns == written.st_mtime_ns
    assert len(model.matrices) == 2 * 3 * 8
    # Two matrices in Q4_K and one in Q6_K, 144 and 210 bytes for 256 weights.
    assert model.expert_bytes == 2 * 8 * (256 * 256) // 256 * (2 * 144 + 210)
    ends = sorted((start, start + n) for start, n in model.matrices)
    assert all(end <= start for (_, end), (start, _) in itertools.pairwise(ends))
    assert ends[-1][1] <= model.file_bytes == written.st_size


def test_the_sibling_differs_in_experts_used_alone_and_does_not_stay(model: BenchModel) -> None:
    with few_experts(model.path.parent, model, DIMS) as sibling:
        assert sibling.n_used < model.n_used
        assert sibling.matrices == model.matrices
        start = model.matrices[0][0]
        assert sibling.path.read_bytes()[start:] == model.path.read_bytes()[start:]
        left = sibling.path
    assert not left.exists()
    assert model.path.exists()


@given(expert_s=seconds, rest_s=seconds, n_used=st.integers(3, 16))
def test_costs_are_found_again_from_two_numbers_of_experts(
    expert_s: float, rest_s: float, n_used: int
) -> None:
    costs = costs_of(rest_s + n_used * expert_s, n_used, rest_s + 2 * expert_s, 2)
    assert costs.experts_s == pytest.approx(n_used * expert_s, rel=1e-6, abs=1e-9)
    assert costs.rest_s == pytest.approx(rest_s, rel=1e-6, abs=1e-6)


@given(whole_s=seconds, few_s=seconds)
def test_costs_are_never_negative_and_add_up_whatever_was_measured(
    whole_s: float, few_s: float
) -> None:
    costs = costs_of(whole_s, 8, few_s, 2)
    assert min(costs.experts_s, costs.rest_s) >= 0
    assert costs.experts_s + costs.rest_s == pytest.approx(whole_s)


@given(
    costs=st.builds(Costs, seconds, seconds), missed=st.floats(0, 1e9), n_layers=st.integers(1, 64)
)
def test_the_limit_lies_between_hiding_all_reads_and_hiding_none(
    costs: Costs, missed: float, n_layers: int
) -> None:
    read_s = missed / 2e9
    limit = limit_s(costs, n_layers, missed, 2e9)
    assert limit == pytest.approx(costs.rest_s + max(read_s, costs.experts_s))
    assert limit <= (costs.rest_s + costs.experts_s + read_s) * (1 + 1e-9)
    assert limit_s(costs, n_layers, 0, 2e9) == pytest.approx(costs.experts_s + costs.rest_s)


def test_a_limit_and_a_share_are_two_ways_to_say_the_same() -> None:
    share = cell_of_share(50, 1000 * MIB, 200 * MIB, 300 * MIB)
    limit = cell_of_limit(1000, 200 * MIB, 300 * MIB)
    assert share.store_bytes == limit.store_bytes == 500 * MIB
    assert share.limit_bytes == limit.limit_bytes == 1000 * MIB
    assert share.mmap.limit_bytes == share.store.limit_bytes
    assert share.mmap.store_bytes is None


def test_a_round_has_every_variant_once_and_opponents_side_by_side() -> None:
    cells = [cell_of_share(p, 1000, 10, 10) for p in (25, 110)]
    variants = in_turn(cells, with_repacked=True)
    keys = [variant.key for variant in variants]
    assert len(set(keys)) == len(keys)
    assert {IN_RAM, FEW, REPACKED} < set(variants)
    assert all(keys.index(c.store.key) == keys.index(c.mmap.key) + 1 for c in cells)
    assert REPACKED not in in_turn(cells, with_repacked=False)


def test_prompts_of_other_phases_and_rounds_are_other_prompts() -> None:
    prompts = {
        seed: prompt_of(32, 2000, seed) for seed in ("0/decode", "0/warm-up", "1/decode", "1/pre")
    }
    assert len({tuple(prompt) for prompt in prompts.values()}) == len(prompts)
    assert prompts["0/decode"] == prompt_of(32, 2000, "0/decode")
    assert all(300 <= token < 1997 for prompt in prompts.values() for token in prompt)


def run(decode: float, **changes: object) -> Measured:
    plain = Measured(1.0, 5 * MIB, decode, 10, 0.0, prefill={512: 10 * decode}, parallel=2 * decode)
    return replace(plain, **changes)  # type: ignore[arg-type]  # named fields of a dataclass


@pytest.fixture
def results(model: BenchModel) -> ModelResults:
    """Three rounds: the machine is twice as slow in the second, the store wins 8 to 2 always."""
    cell = cell_of_share(40, model.expert_bytes, model.other_bytes, MIB)
    rounds = []
    for pace in (1.0, 0.5, 1.0):
        store = run(8 * pace, hit_rate=0.9, arena_bytes=cell.store_bytes, read_bytes=1e6)
        rounds.append(
            Round(1e9, {
                IN_RAM.key: run(10 * pace), FEW.key: run(15 * pace, prefill=None, parallel=None),
                cell.mmap.key: run(2 * pace), cell.store.key: store,
            })
        )  # fmt: skip
    variants = tuple(in_turn([cell], with_repacked=False))
    return ModelResults(model, (cell,), variants, tuple(rounds))


def test_ratios_are_taken_within_a_round_so_that_a_slow_moment_does_not_count(
    results: ModelResults,
) -> None:
    in_ram, mmap_row, store = rows_of(results)
    assert store.to_mmap == pytest.approx({"decode": 4.0, "512": 4.0, "parallel": 4.0})
    assert store.to_ram == pytest.approx({"decode": 0.8, "512": 0.8, "parallel": 0.8})
    assert mmap_row.to_ram["decode"] == pytest.approx(0.2)
    assert (in_ram.to_ram, in_ram.to_mmap, mmap_row.to_mmap) == ({}, {}, {})
    assert store.arena_share == pytest.approx(0.4, abs=1e-3)
    assert in_ram.limit_share is None


def test_without_waiting_for_reads_the_limit_is_the_stock_engine_in_ram(
    results: ModelResults,
) -> None:
    hidden = [
        replace(one, disk_bytes_per_s=1e15) for one in results.rounds
    ]  # reads take no time: nothing but computing is left
    store = rows_of(replace(results, rounds=tuple(hidden)))[-1]
    assert store.limit_rate == pytest.approx(10.0)
    assert store.limit_share == pytest.approx(store.to_ram["decode"])
    slow = [replace(one, disk_bytes_per_s=1e6) for one in results.rounds]
    behind = rows_of(replace(results, rounds=tuple(slow)))[-1]
    assert behind.limit_rate is not None
    assert behind.limit_rate < 1.0


def test_the_table_has_a_line_per_variant_and_columns_of_equal_width(results: ModelResults) -> None:
    title, *lines = as_table(results).splitlines()
    assert "q4_k, medium routing" in title
    assert [line[:20].strip() for line in lines[1:]] == [
        row.label[:20].strip() for row in rows_of(results)
    ]
    assert len({len(line) for line in lines}) == 1


def test_the_json_can_be_read_back_and_holds_every_measurement(results: ModelResults) -> None:
    read = json.loads(as_json({"cpus": 2}, [results, results]))
    assert read["machine"] == {"cpus": 2}
    assert len(read["models"]) == 2
    measured = read["models"][0]["rounds"][1]["measured"]
    assert measured.keys() == results.rounds[1].measured.keys()
    assert measured[IN_RAM.key]["decode"] == results.rounds[1].measured[IN_RAM.key].decode
    assert [row["label"] for row in read["models"][0]["rows"]] == [
        row.label for row in rows_of(results)
    ]


def test_the_plot_is_well_formed_and_stays_inside_its_frame(results: ModelResults) -> None:
    svg = ElementTree.fromstring(as_svg([results] * 4))  # noqa: S314 - made here, not received
    space = "{http://www.w3.org/2000/svg}"
    assert len(svg.findall(f"{space}g")) == 4
    for circle in svg.iter(f"{space}circle"):
        assert 0 <= float(circle.attrib["cx"]) <= 460
        assert 0 <= float(circle.attrib["cy"]) <= 320


def test_dropping_a_file_empties_the_page_cache_of_it_and_reading_fills_it(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(os.urandom(64 * mmap.PAGESIZE))
    assert pagecache.resident_bytes(path) == 64 * mmap.PAGESIZE
    try:
        pagecache.drop(path)
    except MachineProblem as problem:
        pytest.skip(problem.message)
    if pagecache.resident_bytes(path) == 64 * mmap.PAGESIZE:
        pytest.skip("this file system keeps its pages")
    assert pagecache.resident_bytes(path) == 0
    path.read_bytes()
    assert pagecache.resident_bytes(path) == 64 * mmap.PAGESIZE


class FakeGroups:
    """A folder that looks like /, with control groups of one version in it."""

    def __init__(self, root: Path, line: str, own: str, control: str | None) -> None:
        self.root = root
        (root / "proc/self").mkdir(parents=True)
        (root / "proc/self/cgroup").write_text(f"3:cpu:/else\n{line}\n")
        self.own = root / own
        self.own.mkdir(parents=True)
        if control is not None:
            (self.own / "cgroup.subtree_control").write_text(control)


@pytest.mark.parametrize(
    ("line", "own", "control", "limit"),
    [
        ("4:memory:/a/b", "sys/fs/cgroup/memory/a/b", None, "memory.limit_in_bytes"),
        ("0::/a/b", "sys/fs/cgroup/a/b", "cpu memory", "memory.max"),
        ("4:memory:/seen/from/outside", "sys/fs/cgroup/memory", None, "memory.limit_in_bytes"),
    ],
)
def test_groups_are_made_where_the_memory_controller_is(
    tmp_path: Path, line: str, own: str, control: str | None, limit: str
) -> None:
    groups = FakeGroups(tmp_path, line, own, control)
    parent, names = limits.find_parent(tmp_path)
    assert parent == groups.own
    assert names.limit == limit


def test_a_version_2_group_with_processes_gets_a_neighbour_instead_of_a_child(
    tmp_path: Path,
) -> None:
    groups = FakeGroups(tmp_path, "0::/a/b", "sys/fs/cgroup/a/b", "")
    (groups.own.parent / "cgroup.subtree_control").write_text("memory pids")
    assert limits.find_parent(tmp_path)[0] == groups.own.parent


@pytest.mark.parametrize("line", ["0::/a", "5:pids:/a"])
def test_without_a_memory_controller_the_refusal_names_the_remedy(
    tmp_path: Path, line: str
) -> None:
    FakeGroups(tmp_path, line, "sys/fs/cgroup/a", None)
    with pytest.raises(MachineProblem, match=r"no memory controller.*systemd-run"):
        limits.find_parent(tmp_path)


@pytest.fixture
def real_groups() -> Iterator[Path]:
    """The parent of real groups; nothing may be left in it."""
    try:
        with limits.memory_group(None) as group:
            parent = group.path.parent
    except MachineProblem as problem:
        pytest.skip(problem.message)
    before = set(parent.iterdir())
    yield parent
    assert set(parent.iterdir()) == before


def test_a_group_limits_a_process_and_is_gone_afterwards_with_what_still_runs(
    real_groups: Path,
) -> None:
    greedy = "b = b'x' * (200 << 20)"
    with limits.memory_group(64 * MIB) as group:
        assert group.path.parent == real_groups
        done = subprocess.run(group.command([sys.executable, "-c", greedy]), check=False)
        assert done.returncode != 0
        assert 0 <= group.peak_bytes() <= 64 * MIB
        sleeping = subprocess.Popen(
            group.command(
                [sys.executable, "-c", "print(1, flush=True); import time; time.sleep(99)"]
            ),
            stdout=subprocess.PIPE,
        )
        assert sleeping.stdout is not None
        sleeping.stdout.readline()
        assert 0 < group.anonymous_bytes() < 64 * MIB
    assert sleeping.wait(10) != 0
    sleeping.stdout.close()


def test_groups_of_benchmarks_that_were_killed_are_removed_and_others_are_not(
    real_groups: Path,
) -> None:
    stale, alive, foreign = (
        real_groups / name
        for name in (
            "hotset-bench-999999999-1",
            f"hotset-bench-{os.getpid()}-1",
            "hotset-benchmark",
        )
    )
    for path in (stale, alive, foreign):
        path.mkdir()
    try:
        assert limits.remove_stale() == [stale.name]
        assert alive.is_dir()
        assert foreign.is_dir()
    finally:
        for path in (alive, foreign):
            path.rmdir()


def test_a_limit_below_what_is_no_expert_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(command, "DIMS", DIMS)
    monkeypatch.setattr(command, "remove_stale", list)
    code = command.main(["--folder", str(tmp_path), "--limit", "1", "--rounds", "1"])
    said = capsys.readouterr().err.splitlines()[-1]
    if code == 3:
        pytest.skip(said)
    assert code == 4
    assert said.startswith(
        "benchmark: limit 1 MiB: what is not an expert and the reserve take more"
    )


def test_the_quick_model_is_small_and_has_experts_to_choose_from(tmp_path: Path) -> None:
    quick = prepare(tmp_path, "iq4_xs", Locality.STRONG, QUICK_DIMS)
    assert quick.file_bytes < 100 * MIB
    assert quick.expert_bytes > quick.file_bytes / 2
