"""How often a cache of experts hits: priors, recorded curves, and what a plan makes of them."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.hits import HitCurve, prior_curve
from hotset.core.plan import Wishes, make_plan
from plankit import computer, real_model

QWEN = real_model("qwen3.6-35b-a3b")
SHARES = st.floats(-1, 2)
FAMILIES = ("qwen3moe", "gemma4", "gpt-oss", "unheard-of")


def curve(*points: tuple[float, float]) -> HitCurve:
    return HitCurve(((0.0, 0.0), *points, (1.0, 1.0)), "made up")


@given(SHARES, SHARES, st.integers(1, 512), st.sampled_from(FAMILIES))
def test_a_larger_cache_never_hits_less(
    a: float, b: float, n_experts: int, architecture: str
) -> None:
    prior = prior_curve(architecture, n_experts)
    low, high = (prior.rate(share) for share in sorted((a, b)))
    assert 0.0 <= low <= high <= 1.0
    assert (prior.rate(0.0), prior.rate(1.0)) == (0.0, 1.0)


@given(st.floats(0, 1))
def test_between_two_points_lies_what_is_between_them(part: float) -> None:
    recorded = curve((0.2, 0.3), (0.6, 0.8))
    assert recorded.rate(0.2 + 0.4 * part) == pytest.approx(0.3 + 0.5 * part)
    assert recorded.rate(0.2 * part) == pytest.approx(0.3 * part)


def test_few_large_experts_are_used_evenly() -> None:
    assert prior_curve("llama", 8).rate(0.25) == 0.25 < prior_curve("llama", 128).rate(0.25)


def test_a_family_that_was_recorded_has_a_prior_of_its_own() -> None:
    others = prior_curve("unheard-of", 128)
    for family in FAMILIES[:3]:
        prior = prior_curve(family, 128)
        assert family in prior.source
        assert prior.points != others.points
        # They are what the mean of them is made of.
        assert all(abs(prior.rate(x) - others.rate(x)) < 0.08 for x in (0.05, 0.1, 0.2, 0.3, 0.4))


@pytest.mark.parametrize(
    "points",
    [
        (),
        ((0.0, 0.0), (0.5, 0.6)),
        ((0.1, 0.0), (1.0, 1.0)),
        ((0.0, 0.0), (0.5, 0.6), (0.5, 0.7), (1.0, 1.0)),
        ((0.0, 0.0), (0.4, 0.6), (0.5, 0.5), (1.0, 1.0)),
        ((0.0, 0.0), (0.4, 1.2), (1.0, 1.0)),
        ((0.0, 0.0), (0.4, float("nan")), (1.0, 1.0)),
    ],
)
def test_points_that_no_cache_has_are_refused(points: tuple[tuple[float, float], ...]) -> None:
    with pytest.raises(ValueError, match=r"points|cache of"):
        HitCurve(points, "made up")


def test_a_plan_reckons_with_the_recorded_hits_where_experts_stay_on_the_disk() -> None:
    machine, wishes = computer(ram_gib=12), Wishes(can_store=True)

    def missed_bytes(recorded: HitCurve | None) -> int:
        spec = replace(QWEN, recorded_hits=recorded)
        terms = make_plan(spec, machine, wishes).speed.decode_terms
        (reads,) = [term for term in terms if term.what == "disk: reads of misses"]
        return reads.n_bytes

    prior = missed_bytes(None)
    assert missed_bytes(QWEN.hits) == prior
    assert missed_bytes(curve((0.01, 0.99))) < prior < missed_bytes(curve((0.99, 0.01)))
    # A fifth of the hits that are missing, for every size: a fifth of the bytes.
    fifth = curve(*((share, 0.8 + 0.2 * hits) for share, hits in QWEN.hits.points[1:-1]))
    assert missed_bytes(fifth) == pytest.approx(prior / 5, rel=0.01)
