"""Predicted speeds, corrected by what answers on this machine have shown.

The correction is one factor for decode and one for prefill of a *setup*: which devices compute,
where the experts are, with how many threads. It is the same for all plans of one setup, so it
changes what is printed and not which plan is chosen.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace

from hotset.core.experience import Pace, Paces
from hotset.core.machine import Machine
from hotset.core.memory import context_cells
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import cache_units, split_model
from hotset.core.plan.common import cache_settings
from hotset.core.plan.search import usable_devices
from hotset.core.plan.types import Plan, Wishes
from hotset.core.speed import (
    FITTED,
    Estimate,
    HostTier,
    SpeedModel,
    decode_terms,
    prefill_terms,
    speed_model,
    total_s,
)

__all__ = [
    "expected_decode",
    "expected_prefill",
    "machine_key",
    "model_key",
    "paced",
    "setup_of",
]

# The range about a corrected prediction. Answers of one kind differ by some percent, the more so
# the fewer of them were seen; other models say less than the model itself.
_OWN_FACTOR, _FEW_OWN_FACTOR = 1.10, 1.20
_OTHERS_FACTOR, _FEW_OTHERS_FACTOR = 1.20, 1.30
_FEW = 3
_KEY_LENGTH = 16


def model_key(spec: ModelSpec) -> str:
    """Tells models of other sizes or shapes apart. Where the file lies does not matter."""
    facts = (
        spec.name, spec.architecture, spec.n_layers, spec.n_vocab, spec.n_embd, spec.n_bytes,
        sorted(spec.bytes_by_type.items()), [layer.n_bytes for layer in spec.layers],
    )  # fmt: skip
    return _digest(facts)


def machine_key(machine: Machine) -> str:
    """Tells machines apart, and what is known of one: a prediction from other figures is another
    prediction, and its ratio to what was measured means nothing for this one."""
    disk = machine.disk
    facts = (
        machine.cpu_name, machine.num_cores, machine.ram_bandwidth_bytes_s,
        [(gpu.name, gpu.bandwidth_bytes_s, gpu.link, gpu.copy_bytes_s) for gpu in machine.devices],
        disk and (disk.read_bytes_s, disk.random_read_bytes_s), FITTED,
    )  # fmt: skip
    return _digest(facts)


def _digest(facts: object) -> str:
    return hashlib.sha256(repr(facts).encode()).hexdigest()[:_KEY_LENGTH]


def setup_of(spec: ModelSpec, plan: Plan) -> str:
    """Who computes, where the experts are, how many threads."""
    used = [
        taken.device
        for taken, count in zip(plan.footprint.devices, plan.placement.units, strict=False)
        if count
    ]
    hosted = ""
    if plan.placement.moe_cache_bytes:
        hosted = " with an expert cache"
    elif plan.placement.host_moe_units:
        hosted = " without experts"
    tier = f"{plan.host.tier}"
    if plan.host.tier is HostTier.STORE and spec.experts:
        # How often the store hits is a prior; what has been seen is true for about this much of it.
        tier += f" of {round(10 * plan.host.ram_bytes / spec.experts.n_bytes)} tenths"
    return f"{'+'.join(used) or 'CPU'}{hosted}, {tier}, {plan.threads} threads"


def expected_decode(spec: ModelSpec, machine: Machine, plan: Plan, depth_tokens: int) -> float:
    """Uncorrected tokens per second with so many tokens in the context."""
    settings = cache_settings(
        Wishes(slots=plan.slots), plan.kv_type, plan.context_tokens, plan.ubatch_tokens
    )
    caches = cache_units(spec, settings, min(depth_tokens, context_cells(settings)))
    model = _speed_model(spec, machine, plan)
    return 1 / total_s(decode_terms(model, split_model(spec), caches, plan.placement, plan.host))


def expected_prefill(spec: ModelSpec, machine: Machine, plan: Plan, num_tokens: int) -> float:
    """Uncorrected tokens per second of a prompt of `num_tokens`."""
    batch = min(num_tokens, plan.ubatch_tokens)
    model = _speed_model(spec, machine, plan)
    terms = prefill_terms(model, split_model(spec), plan.placement, plan.host, batch)
    return batch / total_s(terms)


def _speed_model(spec: ModelSpec, machine: Machine, plan: Plan) -> SpeedModel:
    devices = usable_devices(machine) if plan.placement.units else ()
    return speed_model(spec, replace(machine, devices=devices), threads=plan.threads)


@dataclass(frozen=True, slots=True)
class _Known:
    """A pace, and whether it is the model's own or that of all that have run here."""

    pace: Pace
    is_own: bool


def _known(own: Pace | None, others: Pace | None) -> _Known | None:
    if own is not None:
        return _Known(own, is_own=True)
    return None if others is None else _Known(others, is_own=False)


def paced(spec: ModelSpec, machine: Machine, plan: Plan) -> Plan:
    """The plan with corrected speeds, where there is anything to correct them by."""
    setup, experience = setup_of(spec, plan), machine.experience
    own, others = (by.get(setup, Paces()) for by in (experience.own, experience.others))
    decode = _known(own.decode, others.decode)
    prefill = _known(own.prefill, others.prefill)
    told = decode or prefill
    if told is None:
        return plan
    num = told.pace.num_samples
    speed = replace(
        plan.speed,
        decode=_corrected(plan.speed.decode, decode),
        prefill=_corrected(plan.speed.prefill, prefill),
        num_answers=num if told.is_own else 0,
        num_models=0 if told.is_own else num,
    )
    return replace(plan, speed=speed)


def _corrected(estimate: Estimate, known: _Known | None) -> Estimate:
    if known is None:
        return estimate
    is_few = known.pace.num_samples < _FEW
    if known.is_own:
        least = _FEW_OWN_FACTOR if is_few else _OWN_FACTOR
    else:
        least = _FEW_OTHERS_FACTOR if is_few else _OTHERS_FACTOR
    factor = max(least, known.pace.spread)
    likely = estimate.likely * known.pace.ratio
    return Estimate(likely / factor, likely, likely * factor)
