"""Other choices beside a plan, each with what it gains and what it costs."""

from __future__ import annotations

from dataclasses import dataclass, replace

from hotset.core.errors import HotsetError
from hotset.core.machine import Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import Projector, ProjectorPlace
from hotset.core.plan.solve import make_plan
from hotset.core.plan.types import Plan, Wishes
from hotset.core.speed import total_s
from hotset.core.units import GIB

__all__ = ["Alternative", "alternatives"]

_MOST = 3
_LEAST_CONTEXT_TOKENS = 32_768
_LARGE_UBATCH = 2048
_LOSSY = ("q4_0",)
# Below this a difference is no reason to choose; the estimate is not that exact either.
_NOTHING = 0.02
# Of a model so small that no term takes any time.
_LEAST_S = 1e-9


@dataclass(frozen=True, slots=True)
class Alternative:
    """One other choice.

    Attributes:
        option: what to add to the command.
        effect: in words, with numbers.
        plan: what it would give.
    """

    option: str
    effect: str
    plan: Plan


def alternatives(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, plan: Plan
) -> list[Alternative]:
    """Two or three other plans, those that change most first; only of what was left open."""
    found = []
    for option, other in _others(wishes, plan):
        try:
            tried = make_plan(spec, machine, other, projector)
        except HotsetError:
            continue
        effect = _effect(plan, tried)
        if effect or tried.kv_type in _LOSSY:
            found.append(Alternative(option, effect or "would gain nothing here", tried))
    found.sort(key=lambda a: -_change(plan, a.plan))
    return found[:_MOST]


def _others(wishes: Wishes, plan: Plan) -> list[tuple[str, Wishes]]:
    """Wishes that differ in one thing, with the option that says so."""
    half = plan.context_tokens // 2
    other_kv = "f16" if plan.kv_type == "q8_0" else "q8_0"
    others = []
    if wishes.context_tokens is None and half >= _LEAST_CONTEXT_TOKENS:
        others.append((f"--ctx {half}", replace(wishes, context_tokens=half)))
    if plan.placement.projector is not ProjectorPlace.NONE:
        others.append(("--no-vision", replace(wishes, has_vision=False)))
    if wishes.ubatch_tokens is None and plan.has_devices and plan.ubatch_tokens < _LARGE_UBATCH:
        others.append((f"--ubatch {_LARGE_UBATCH}", replace(wishes, ubatch_tokens=_LARGE_UBATCH)))
    if wishes.kv_type is None:
        fixed = replace(wishes, context_tokens=wishes.context_tokens or plan.context_tokens)
        others += [(f"--kv {kv}", replace(fixed, kv_type=kv)) for kv in (other_kv, *_LOSSY)]
    return others


def _change(plan: Plan, other: Plan) -> float:
    """How different a choice is for whoever waits."""
    decode, prefill = _gains(plan, other)
    return max(abs(decode), abs(prefill) / 4)


def _gains(plan: Plan, other: Plan) -> tuple[float, float]:
    """By how much it decodes and reads faster, by the sums alone: what answers have shown corrects
    each setup by another factor, or by none, and such rates cannot be compared."""
    (decode_s, prefill_s), (other_decode_s, other_prefill_s) = (
        (
            max(total_s(each.speed.decode_terms), _LEAST_S),
            max(total_s(each.speed.prefill_terms), _LEAST_S) / each.ubatch_tokens,
        )
        for each in (plan, other)
    )
    return decode_s / other_decode_s - 1, prefill_s / other_prefill_s - 1


def _effect(plan: Plan, other: Plan) -> str:
    parts = []
    moved = _on_devices(other) - _on_devices(plan)
    if abs(moved) >= GIB // 10:
        parts.append(f"{moved / GIB:+.1f} GiB of weights on the card")
    for name, change in zip(("decode", "prefill"), _gains(plan, other), strict=True):
        if abs(change) >= _NOTHING:
            parts.append(f"{name} {change:+.0%}")
    if other.is_larger_than_ram and not plan.is_larger_than_ram:
        parts.append("weights no longer fit into RAM")
    if parts and other.kv_type in _LOSSY:
        parts.append("answers lose precision")
    return ", ".join(parts)


def _on_devices(plan: Plan) -> int:
    return sum(d.trunk_bytes + d.expert_bytes + d.moe_cache_bytes for d in plan.footprint.devices)
