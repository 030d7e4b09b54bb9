"""From recordings to hit rates, and the file in which they are kept."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.lab.curvefile import curve_name, load_curve, save_curve
from hotset.lab.hitcurve import joined, recorded_curve
from hotset.lab.policies import POLICIES
from hotset.lab.simulate import simulate
from lab.routingkit import skewed
from plankit import real_model

FIRST, SECOND = (
    skewed([16] * 4, [1000] * 4, used=2, batches=[30, *[1] * 60], seed=seed) for seed in (1, 2)
)


def test_the_curve_is_what_the_stores_policy_hits_in_one_session_of_all_recordings() -> None:
    session = joined([FIRST, SECOND])
    assert session.num_decode_tokens == FIRST.num_decode_tokens + SECOND.num_decode_tokens
    curve = recorded_curve([FIRST, SECOND])
    for share in (0.1, 0.2, 0.4):
        hits = simulate(session, POLICIES["quota"], share=share).decode.hit_rate
        assert curve.rate(share) == pytest.approx(hits, abs=1e-4)
    # Ten slots of 64: more than a share of no slot at all, which holds nothing.
    assert curve.rate(0.01) < curve.rate(10 / 64)
    assert "2 recordings, 120 decoded tokens" in curve.source


def test_recordings_of_two_models_make_no_curve() -> None:
    other = skewed([16] * 5, [1000] * 5, used=2, batches=[1], seed=1)
    with pytest.raises(ConfigProblem, match="different models"):
        recorded_curve([FIRST, other])
    with pytest.raises(ConfigProblem, match="no recording"):
        recorded_curve([])
    prompts = skewed([16] * 4, [1000] * 4, used=2, batches=[30, 30], seed=1)
    with pytest.raises(ConfigProblem, match="no token was decoded"):
        recorded_curve([prompts])


def test_what_is_kept_is_read_again(tmp_path: Path) -> None:
    file = tmp_path / "hits" / "model.json"
    assert load_curve(file) == (None, "")
    curve = recorded_curve([FIRST])
    save_curve(file, curve)
    assert load_curve(file) == (curve, "")
    assert [path.name for path in file.parent.iterdir()] == ["model.json"]
    with pytest.raises(MachineProblem, match="cannot be written"):
        save_curve(file / "below", curve)


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"\xff\x00",
        b"[]",
        b"[" * 40_000,
        b'{"version": 2, "source": "x", "points": [[0, 0], [1, 1]]}',
        b'{"version": 1, "points": [[0, 0], [1, 1]]}',
        b'{"version": 1, "source": "x", "points": [[0, 0], [1]]}',
        b'{"version": 1, "source": "x", "points": [[0, 0], [0.5, 1.5], [1, 1]]}',
        b'{"version": 1, "source": "x", "points": [[0, 0], [0.5, NaN], [1, 1]]}',
        b'{"version": 1, "source": "x", "points": 7}',
    ],
)
def test_a_damaged_file_is_one_line_and_no_curve(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "model.json"
    file.write_bytes(content)
    curve, complaint = load_curve(file)
    assert curve is None
    assert complaint.startswith(f"{file}: no hit rates of hotset (")
    assert "\n" not in complaint


def test_a_file_that_cannot_be_read_is_told(tmp_path: Path) -> None:
    curve, complaint = load_curve(tmp_path)
    assert curve is None
    assert "cannot be read" in complaint


def test_quantizations_of_a_model_share_a_file_and_other_models_do_not() -> None:
    four, six = (real_model("qwen3.6-35b-a3b", mix) for mix in ("Q4_K_M", "Q6_K"))
    assert curve_name(four) == curve_name(six)
    names = {curve_name(four), curve_name(replace(four, name="Another")),
             curve_name(real_model("gpt-oss-20b"))}  # fmt: skip
    assert len(names) == 3
    strange = curve_name(replace(four, name="../../.."))
    assert "/" not in strange
    assert not strange.startswith(".")
