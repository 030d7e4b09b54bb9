"""A plan in a few lines, for who is about to start it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.core.units import format_bytes, format_count
from hotset.gguf.window import printable

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.placement import DeviceBytes

__all__ = ["describe_plan"]


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe_plan(ready: Launchable) -> list[str]:
    """The plan in a few lines: the answer first, then where things are, then what was given up."""
    spec, plan, footprint = ready.spec, ready.plan, ready.plan.footprint
    experts = ""
    if spec.experts:
        experts = f" · {spec.experts.count} experts, {spec.experts.used} used"
    mix = max(spec.bytes_by_type, key=lambda name: spec.bytes_by_type[name])
    what = (
        f"{printable(ready.path.stem)} · {printable(spec.architecture)} · mostly {mix}"
        f" · {format_bytes(spec.n_bytes)} · {spec.n_layers} blocks{experts}"
    )
    how = (
        f"context {format_count(plan.context_tokens)} · KV {plan.kv_type}"
        f" · {_counted(plan.slots, 'slot')} · {_counted(plan.threads, 'thread')}"
    )
    where = (
        f"RAM {format_bytes(footprint.total_bytes)}:"
        f" weights {format_bytes(footprint.weights_bytes)}"
        f"{' (mapped)' if plan.load_mode == 'mmap' else ''}"
        f" │ KV and state {format_bytes(footprint.cache_bytes)}"
        f" │ compute {format_bytes(footprint.compute_bytes)} (estimate)"
        f" │ engine {format_bytes(footprint.engine_bytes)}"
    )
    if footprint.expert_cache_bytes:
        where += f" │ experts {format_bytes(footprint.expert_cache_bytes)}"
    if footprint.projector_bytes:
        where += f" │ projector {format_bytes(footprint.projector_bytes)}"
    if footprint.shared_bytes:
        where += f" │ the card's share {format_bytes(footprint.shared_bytes)}"
    if footprint.prompt_cache_bytes:
        where += f" │ prompt cache up to {format_bytes(footprint.prompt_cache_bytes)}"
    cards = [_card_line(taken) for taken in footprint.devices if taken.total_bytes]
    notes = [f"note: {reason}" for reason in (*plan.reasons, *spec.notes)]
    return [what, how, *cards, where, *notes]


def _card_line(taken: DeviceBytes) -> str:
    return (
        f"{taken.device} {format_bytes(taken.total_bytes)} of {format_bytes(taken.budget_bytes)}:"
        f" dense {format_bytes(taken.trunk_bytes)}"
        f" │ experts {format_bytes(taken.expert_bytes + taken.moe_cache_bytes)}"
        f" │ KV and state {format_bytes(taken.cache_bytes)}"
        f" │ compute {format_bytes(taken.compute_bytes)} (estimate)"
        f" │ projector {format_bytes(taken.projector_bytes)}"
    )
