"""What `hotset plan` prints: one screen, and the same facts as JSON."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

from hotset.core.placement import ProjectorPlace
from hotset.core.units import GIB, format_bytes, format_count
from hotset.gguf.window import printable

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.cli.subjects import Subject
    from hotset.core.machine import Gpu, Machine
    from hotset.core.placement import DeviceBytes
    from hotset.core.plan import Footprint, Plan, Wishes
    from hotset.core.plan.alternatives import Alternative
    from hotset.core.speed import Estimate, Term

__all__ = ["comparison", "plan_facts", "plan_lines"]

_BAR_WIDTH = 28
_OPTION_WIDTH = 16


def plan_lines(
    ready: Launchable,
    subject: Subject,
    machine: Machine,
    wishes: Wishes,
    others: Sequence[Alternative],
    *,
    has_bars: bool,
) -> Iterator[str]:
    """The answer first, then where things are, then why."""
    plan = ready.plan
    yield _model_line(ready, subject)
    yield f"on {_machine_words(machine)}"
    yield ""
    yield from _answer_lines(ready, plan, machine)
    yield ""
    for taken in plan.footprint.devices:
        if taken.total_bytes:
            yield _bar_line(
                taken.device, taken.total_bytes, taken.budget_bytes, _parts(taken), has_bars
            )
    ram = plan.footprint
    yield _bar_line(
        "RAM", ram.total_bytes, machine.ram_available_bytes, _ram_parts(plan, ram), has_bars
    )
    yield ""
    if told := _experts_line(ready, plan):
        yield told
    if ready.spec.mtp_bytes:
        yield f"  MTP layers: {format_bytes(ready.spec.mtp_bytes)} in the file, not used."
    for reason in (*plan.reasons, *ready.spec.notes):
        yield f"  {reason}"
    for index, other in enumerate(others):
        label = "  Other choices:" if index == 0 else " " * 16
        yield f"{label} {other.option:<{_OPTION_WIDTH}} {other.effect}"
    yield from _footnotes(machine, wishes, plan)


def _model_line(ready: Launchable, subject: Subject) -> str:
    spec = ready.spec
    mix = max(spec.bytes_by_type, key=lambda name: spec.bytes_by_type[name])
    parts = [
        printable(ready.path.stem),
        f"mostly {mix}",
        format_bytes(spec.n_bytes),
        f"{spec.n_layers} blocks",
    ]
    if spec.experts:
        parts[-1] += f", {spec.experts.count} experts, {spec.experts.used} used"
    if subject.projector:
        parts.append("projector found")
    return " · ".join(parts)


def _machine_words(machine: Machine) -> str:
    parts = [_gpu_words(gpu) for gpu in machine.devices] or ["no graphics card"]
    parts.append(
        f"{format_bytes(machine.ram_total_bytes)} RAM"
        f" ({format_bytes(machine.ram_available_bytes)} free)"
    )
    if machine.disk and machine.disk.read_bytes_s:
        parts.append(f"{machine.disk.kind} {machine.disk.read_bytes_s / 1e9:.1f} GB/s")
    return " · ".join(parts)


def _gpu_words(gpu: Gpu) -> str:
    used = f" ({format_bytes(gpu.used_bytes)} in use)" if gpu.used_bytes else ""
    shared = ", shares the RAM" if gpu.shares_ram else ""
    return f"{gpu.name} {format_bytes(gpu.total_bytes)}{used}{shared}"


def _answer_lines(ready: Launchable, plan: Plan, machine: Machine) -> Iterator[str]:
    whole = " (all of it)" if plan.context_tokens == ready.spec.context_tokens else ""
    slots = f"{plan.slots} slot" + ("s" if plan.slots > 1 else "")
    vision = {
        ProjectorPlace.NONE: "no",
        ProjectorPlace.DEVICE: "yes, on the card",
        ProjectorPlace.RAM: "yes, in RAM",
    }[plan.placement.projector]
    yield (
        f"  context {format_count(plan.context_tokens)}{whole}   KV {plan.kv_type}   {slots}"
        f"   vision {vision}   ubatch {plan.ubatch_tokens}   {plan.threads} threads"
    )
    speeds = (
        f"decode {_range(plan.speed.decode)} tok/s   prefill {_range(plan.speed.prefill)} tok/s"
    )
    rate = machine.disk.read_bytes_s if machine.disk else None
    if plan.speed.num_answers:
        speeds += f"   from {_counted(plan.speed.num_answers, 'run')} on this machine"
    elif plan.speed.num_models:
        speeds += f"   from {_counted(plan.speed.num_models, 'other model')} on this machine"
    start = f"   ready in about {_start_s(plan, rate):.0f} s from a cold disk" if rate else ""
    yield f"  {speeds}{start}"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _start_s(plan: Plan, disk_bytes_s: int) -> float:
    """Reading all weights once, and a second for the rest."""
    taken = sum(d.trunk_bytes + d.expert_bytes for d in plan.footprint.devices)
    return 1.0 + (taken + plan.footprint.weights_bytes) / disk_bytes_s


def comparison(plans: Sequence[Launchable]) -> Iterator[str]:
    """One line for each of several models, against the first."""
    names = [printable(ready.path.stem) for ready in plans]
    width = max(map(len, names))
    first = plans[0].plan.speed.decode.likely
    yield "compared"
    for name, ready in zip(names, plans, strict=True):
        plan = ready.plan
        change = "" if ready is plans[0] else f"  ({plan.speed.decode.likely / first - 1:+.0%})"
        yield (
            f"  {name:<{width}}  {format_bytes(ready.spec.n_bytes):>9}"
            f"  context {format_count(plan.context_tokens):>9}  KV {plan.kv_type}"
            f"  decode {_range(plan.speed.decode)} tok/s{change}"
        )


def _range(estimate: Estimate) -> str:
    digits = 1 if estimate.high < 20 else 0
    return f"{estimate.low:,.{digits}f}-{estimate.high:,.{digits}f}"


def _parts(taken: DeviceBytes) -> list[tuple[str, int]]:
    return [
        ("dense", taken.trunk_bytes),
        ("KV", taken.cache_bytes),
        ("compute", taken.compute_bytes),
        ("vision", taken.projector_bytes),
        ("experts", taken.expert_bytes),
        ("hot experts", taken.moe_cache_bytes),
        ("driver", taken.overhead_bytes),
    ]


def _ram_parts(plan: Plan, ram: Footprint) -> list[tuple[str, int]]:
    what = "weights" if plan.load_mode == "none" else "weights (mapped)"
    return [
        (what, ram.weights_bytes),
        ("hot experts", ram.expert_cache_bytes),
        ("KV", ram.cache_bytes),
        ("compute", ram.compute_bytes),
        ("vision", ram.projector_bytes),
        ("device's share", ram.shared_bytes),
        ("prompt cache", ram.prompt_cache_bytes),
        ("engine", ram.engine_bytes),
    ]


def _bar_line(
    name: str, total: int, budget: int, parts: list[tuple[str, int]], has_bars: bool
) -> str:
    shown = []
    for label, n_bytes in parts:
        if n_bytes:
            bar = "█" * max(1, round(n_bytes / max(budget, total) * _BAR_WIDTH)) if has_bars else ""
            shown.append(f"{bar} {label} {n_bytes / GIB:.1f}".strip())
    return f"  {name:<7} {total / GIB:>5.1f} of {budget / GIB:.1f} GiB   {' │ '.join(shown)}"


def _experts_line(ready: Launchable, plan: Plan) -> str:
    """Where the experts are, in one sentence."""
    experts = ready.spec.experts
    if experts is None or not plan.has_devices:
        return ""
    cached = plan.placement.moe_cache_bytes
    if cached:
        share = cached / experts.n_bytes
        hits = ready.spec.hits.rate(share)
        return (
            f"  The card's cache holds {share:.0%} of all experts: about {hits:.0%} of look-ups"
            " should hit; the rest is copied from RAM."
        )
    held = sum(taken.expert_bytes for taken in plan.footprint.devices)
    first = len(ready.spec.layers) + 1 - plan.placement.n_offloaded
    hosted = set(plan.placement.host_moe_units)
    n_held = sum(layer >= first and layer not in hosted for layer in experts.layers)
    if n_held == len(experts.layers):
        return "  All experts are on the card."
    return (
        f"  The card holds the experts of {n_held} of {len(experts.layers)} blocks"
        f" ({held / experts.n_bytes:.0%}); the CPU computes the others from RAM."
    )


def _footnotes(machine: Machine, wishes: Wishes, plan: Plan) -> Iterator[str]:
    from hotset.core.placement import default_reserve_bytes
    from hotset.core.speed import MEASURED

    if plan.has_devices and machine.devices:
        reserve = wishes.reserve_bytes
        if reserve is None:
            reserve = default_reserve_bytes(machine.devices[0])
        if reserve:
            yield f"  {format_bytes(reserve)} of each card is left alone (--reserve)."
    if plan.speed.assumed and not plan.speed.num_answers:
        yield (
            f"  Assumed, not measured: {', '.join(plan.speed.assumed)};"
            " `hotset doctor --measure` measures it."
        )
    terms = (*plan.speed.decode_terms, *plan.speed.prefill_terms)
    source = next((term.source for term in terms if term.source), "")
    if source and source != MEASURED and not plan.speed.num_answers:
        yield (
            f"  Copies to the card are counted at {source}; `hotset doctor --measure` measures"
            " them."
        )


def plan_facts(
    ready: Launchable, machine: Machine, others: Sequence[Alternative]
) -> dict[str, Any]:
    """The same as plain facts; sizes in bytes, speeds in tokens per second."""
    return {
        "model": str(ready.path),
        "projector": str(ready.projector) if ready.projector else None,
        **_plan_facts(ready.plan),
        "mtp_bytes": ready.spec.mtp_bytes,
        "ram_available_bytes": machine.ram_available_bytes,
        "alternatives": [
            {"option": other.option, "effect": other.effect, **_plan_facts(other.plan)}
            for other in others
        ],
    }


def _plan_facts(plan: Plan) -> dict[str, Any]:
    from dataclasses import asdict

    speed = plan.speed
    footprint = asdict(plan.footprint)
    footprint["total_bytes"] = plan.footprint.total_bytes
    for facts, taken in zip(footprint["devices"], plan.footprint.devices, strict=True):
        facts["total_bytes"] = taken.total_bytes
    return {
        "context_tokens": plan.context_tokens,
        "kv_type": plan.kv_type,
        "slots": plan.slots,
        "ubatch_tokens": plan.ubatch_tokens,
        "threads": plan.threads,
        "prompt_cache_mib": plan.prompt_cache_mib,
        "checkpoints": plan.checkpoints,
        "load_mode": plan.load_mode,
        "is_larger_than_ram": plan.is_larger_than_ram,
        "placement": asdict(plan.placement),
        "footprint": footprint,
        "decode_tokens_per_s": asdict(speed.decode),
        "prefill_tokens_per_s": asdict(speed.prefill),
        "decode_terms": [_term_facts(term) for term in speed.decode_terms],
        "prefill_terms": [_term_facts(term) for term in speed.prefill_terms],
        "assumed": list(speed.assumed),
        "from_answers": speed.num_answers,
        "from_other_models": speed.num_models,
        "reasons": list(plan.reasons),
    }


def _term_facts(term: Term) -> dict[str, Any]:
    return {
        "what": term.what,
        "n_bytes": term.n_bytes,
        "bytes_per_s": term.bytes_s,
        "count": term.count,
        "each_s": term.each_s,
        "seconds": term.seconds,
        "source": term.source,
    }
