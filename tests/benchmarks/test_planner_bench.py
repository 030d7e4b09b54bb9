"""The planner's benchmark: what it prints is what the model gives, and its checks can fail."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random
from statistics import median

import pytest
from benchmarks.planner import __main__ as command
from benchmarks.planner import calibration, fuzz
from benchmarks.planner.rows import Row, decode_per_s, read_rows
from benchmarks.planner.speed import NOMINAL_SHARE, error, fit, halves, rank_correlation
from hypothesis import example, given, settings
from hypothesis import strategies as st

from hotset.cli.pacing import starts_file
from hotset.core.placement import Projector, ProjectorPlace
from hotset.core.plan import Plan, Wishes, make_plan
from hotset.core.speed import FITTED
from plankit import card, computer, real_model


@settings(max_examples=150, deadline=None)
@given(st.integers(0, 1 << 40))
@example(6981)  # a card that grew until it was used cost RAM that the context needed
def test_plans_for_random_machines_and_models_keep_their_promises(seed: int) -> None:
    fuzz.check_one(seed)


def whole_plan() -> Plan:
    return make_plan(real_model("qwen3-30b-a3b"), computer(card(16)), Wishes())


@pytest.mark.parametrize(
    ("promise", "wishes", "ram_gib"),
    [
        ("RAM budget", Wishes(), 0.1),
        ("KV type is law", Wishes(kv_type="f32"), 32),
        ("context is law", Wishes(context_tokens=77_777), 32),
        ("ubatch is law", Wishes(ubatch_tokens=7), 32),
        ("slots are law", Wishes(slots=3), 32),
        ("experts in RAM are law", Wishes(cpu_moe_layers=3), 32),
    ],
)
def test_a_plan_that_breaks_a_promise_is_found(
    promise: str, wishes: Wishes, ram_gib: float
) -> None:
    spec, machine = real_model("qwen3-30b-a3b"), computer(card(16), ram_gib=ram_gib, used_gib=0)
    with pytest.raises(AssertionError, match=promise):
        fuzz.check_plan(spec, machine, wishes, None, whole_plan())


def test_a_plan_that_overfills_a_card_or_loses_bytes_is_found() -> None:
    spec, machine, plan = real_model("qwen3-30b-a3b"), computer(card(16)), whole_plan()
    fuzz.check_plan(spec, machine, Wishes(), None, plan)
    (taken,) = plan.footprint.devices
    broken = {
        "device budget": replace(taken, budget_bytes=1),
        "weights": replace(taken, trunk_bytes=taken.trunk_bytes - 1),
        "caches": replace(taken, cache_bytes=taken.cache_bytes - 1),
    }
    for promise, device in broken.items():
        worse = replace(plan, footprint=replace(plan.footprint, devices=(device,)))
        with pytest.raises(AssertionError, match=promise):
            fuzz.check_plan(spec, machine, Wishes(), None, worse)
    seeing = replace(plan, placement=replace(plan.placement, projector=ProjectorPlace.DEVICE))
    with pytest.raises(AssertionError, match="vision only with a projector"):
        fuzz.check_plan(spec, machine, Wishes(), None, seeing)
    blind = Wishes(has_vision=False)
    with pytest.raises(AssertionError, match="turned off"):
        fuzz.check_plan(spec, machine, blind, Projector(1, 1), seeing)


def test_random_cases_are_the_same_for_the_same_seed_and_of_every_kind() -> None:
    kinds = {fuzz.check_one(seed) for seed in range(40)}
    assert {"on cards", "alone", "MachineProblem"} <= kinds
    assert fuzz.random_machine(Random(5)) == fuzz.random_machine(Random(5))


def test_a_report_counts_what_is_broken(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["planner", "fuzz", "--examples", "3", "--seed", "9"])
    assert command.main() == 0
    assert "broken 0" in capsys.readouterr().out

    def breaks(seed: int) -> str:
        raise AssertionError(f"seed {seed} is no good")

    monkeypatch.setattr(fuzz, "check_one", breaks)
    assert command.main() == 1
    assert "broken 3" in capsys.readouterr().out


def test_a_calibration_prints_both_errors_and_leaves_the_users_record_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    record = tmp_path / "hotset" / "starts.json"
    record.parent.mkdir()
    record.write_text("the user's")
    (record.parent / "machine.json").write_text("measured")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr("sys.argv", ["planner", "calibration", "a.gguf", "--runs", "2"])

    def runs(model: Path, *, num_runs: int, num_tokens: int) -> calibration.Outcome:
        kept = starts_file()
        assert kept != record
        assert not kept.exists()
        assert kept.with_name("machine.json").read_text() == "measured"
        assert (model, num_runs, num_tokens) == (Path("a.gguf"), 2, 96)
        return calibration.Outcome("a", 1 << 30, 50.0, 19.0, 20.0)

    monkeypatch.setattr(calibration, "calibrate", runs)
    assert command.main() == 0
    assert "| a | 1.00 | 50.0 | 19.0 | 20.0 | +150% | -5.0% |" in capsys.readouterr().out
    assert record.read_text() == "the user's"
    assert starts_file() == record


def test_the_speed_model_meets_its_aims_on_runs_that_it_was_not_fitted_to() -> None:
    _, held = halves(read_rows())
    truth = [row.decode or 0.0 for row in held]
    guess = [decode_per_s(row, FITTED, NOMINAL_SHARE) for row in held]
    errors = [abs(g / t - 1) for g, t in zip(guess, truth, strict=True)]
    assert median(errors) <= 0.30
    assert rank_correlation(truth, guess) >= 0.8


def test_the_constants_in_the_code_are_what_the_fit_gives() -> None:
    fitted, _ = halves(read_rows())
    rates, share = fit(fitted)

    def loss(of_rates: object, of_share: float) -> float:
        assert isinstance(of_rates, type(FITTED))
        return sum(abs(error(row, of_rates, of_share)) for row in fitted) / len(fitted)

    assert loss(FITTED, NOMINAL_SHARE) <= loss(rates, share) * 1.05


def test_no_run_is_in_both_halves_and_inferred_ones_are_in_neither() -> None:
    rows = read_rows()
    fitted, held = halves(rows)
    assert not {row.id for row in fitted} & {row.id for row in held}
    assert abs(len(fitted) - len(held)) <= 3
    assert all(row.ram_is != "inferred" for row in fitted + held)
    assert len({row.id for row in rows}) == len(rows)


def test_a_fit_finds_constants_that_made_the_runs() -> None:
    truth = replace(FITTED, vram_share=0.7, unit_s=60e-6, ram_share=0.8)
    made: list[Row] = [
        replace(row, decode=decode_per_s(row, truth, 0.7)) for row in read_rows() if row.decode
    ]
    rates, share = fit(made)
    assert sum(abs(error(row, rates, share)) for row in made) / len(made) < 0.03


def test_rank_correlation_is_spearmans() -> None:
    assert rank_correlation([1, 2, 3], [10, 20, 30]) == pytest.approx(1)
    assert rank_correlation([1, 2, 3], [3, 2, 1]) == pytest.approx(-1)
    assert rank_correlation([1, 2, 3, 4], [1, 3, 2, 4]) == pytest.approx(0.8)  # 1 - 6*2/60
    assert rank_correlation([1, 1, 2], [5, 5, 9]) == pytest.approx(1)
    assert rank_correlation([1, 1], [1, 2]) == 0.0


def test_the_table_shows_every_run_and_both_halves(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["planner", "speed"])
    assert command.main() == 0
    out = capsys.readouterr().out
    for row in read_rows():
        assert (f"| {row.id} |" in out) == (row.decode is not None)
    for words in ("fitted half", "held-out half", "prefill, all", "rank correlation"):
        assert words in out
