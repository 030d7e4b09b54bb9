"""The sums of a plan, term by term: what is counted, by which rule, and what it makes."""

from __future__ import annotations

from collections.abc import Iterator

from hotset.core.compute import batch_tokens, compute_bytes_estimate
from hotset.core.drafting import DRAFT_CACHE_TYPE, DRAFT_TOKENS, drafting
from hotset.core.memory import CacheSettings, cache_bytes, context_cells
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import split_model
from hotset.core.placement import DeviceBytes
from hotset.core.plan.common import cache_settings
from hotset.core.plan.rating import nominal_depth
from hotset.core.plan.types import Plan, Speed, Wishes
from hotset.core.speed import Estimate, Term, total_s
from hotset.core.storecompute import fullest_rows
from hotset.core.units import MIB, format_bytes, format_count

__all__ = ["explain"]


def explain(spec: ModelSpec, plan: Plan) -> Iterator[str]:
    """Every term of memory and time, one to a line."""
    wishes = Wishes(slots=plan.slots)
    settings = cache_settings(wishes, plan.kv_type, plan.context_tokens, plan.ubatch_tokens)
    yield "caches (exact)"
    cells = context_cells(settings)
    kinds = cache_bytes(spec, settings)
    for name in ("full", "window", "latent", "indexer"):
        if n := getattr(kinds, name):
            how = f"{plan.slots} x {format_count(cells)} cells" if name != "window" else "window"
            yield _line(f"{name} KV, {plan.kv_type}", n, how)
    if kinds.recurrent:
        yield _line("recurrent state", kinds.recurrent, f"F32, {plan.slots} of them")
    yield "compute buffers (estimate, meant to be too much)"
    how = f"batch of {format_count(plan.ubatch_tokens)}, mask over {format_count(cells)} cells"
    stored = plan.footprint.store_compute_bytes
    activations = compute_bytes_estimate(spec, settings, has_experts=not stored)
    yield _line("activations and mask", activations, how)
    if stored:
        yield _line("the store's products", stored, _products(spec, plan, settings))
    parts = split_model(spec)
    units = plan.placement.ranges(parts.n_units)
    for taken, own in zip(plan.footprint.devices, units, strict=False):
        yield f"{taken.device} (may take {format_bytes(taken.budget_bytes)})"
        yield from _device_lines(taken, own, parts.output_unit)
    yield "RAM"
    footprint = plan.footprint
    for name, n, how in (
        ("weights", footprint.weights_bytes, "what no device holds"),
        ("expert store", footprint.expert_cache_bytes, "the rest, for experts from the disk"),
        ("KV and state", footprint.cache_bytes, "of blocks in RAM"),
        ("compute", footprint.compute_bytes, "estimate"),
        ("shared with devices", footprint.shared_bytes, "their memory is RAM"),
        ("projector", footprint.projector_bytes, "weights and one picture"),
        ("prompt cache", footprint.prompt_cache_bytes, "a quarter of what is left"),
        ("engine", footprint.engine_bytes, "a process without a model"),
    ):
        if n:
            yield _line(name, n, how)
    yield from _head_lines(spec, settings)
    depth = format_count(nominal_depth(settings))
    yield f"time of one token, {depth} tokens into the context"
    yield from _time_lines(plan.speed.decode_terms)
    yield from _measured_lines(plan.speed, plan.speed.decode, 1)
    if spec.experts:
        yield f"hit rates of caches of experts: {spec.hits.source}"
    yield f"time of a batch of {format_count(plan.ubatch_tokens)} prompt tokens"
    yield from _time_lines(plan.speed.prefill_terms)
    yield from _measured_lines(plan.speed, plan.speed.prefill, plan.ubatch_tokens)


def _head_lines(spec: ModelSpec, settings: CacheSettings) -> Iterator[str]:
    """What lies unused of an MTP head, and what an engine would take that drafts with it."""
    if not spec.mtp_bytes:
        return
    yield "the file"
    yield _line("MTP layers", spec.mtp_bytes, "in it, not used")
    added = drafting(spec, settings)
    if added is None:
        return
    yield "drafting with the MTP layers would add (--spec-type draft-mtp; not planned)"
    for name, n, how in (
        ("weights", sum(added.weights_bytes), "of those layers, as they are in the file"),
        (f"KV, {DRAFT_CACHE_TYPE}", sum(added.cache_bytes), "of those layers"),
        ("recurrent state", added.state_bytes, f"{DRAFT_TOKENS} more of each"),
        ("compute", added.main_compute_bytes, "states and outputs of drafted tokens; estimate"),
        ("compute, drafting", added.compute_bytes, "a second set of buffers; estimate"),
    ):
        if n:
            yield _line(name, n, how)
    if added.unknown_head_cache_bytes:
        how = "at most, and no weights, in an engine that has no MTP for this model"
        yield _line("or KV of all blocks", added.unknown_head_cache_bytes, how)


def _products(spec: ModelSpec, plan: Plan, settings: CacheSettings) -> str:
    """How the buffer of the expert store's device adds up."""
    rows = fullest_rows(spec, settings)
    widths = " + ".join(map(format_count, rows.widths))
    beside = ", and rows of the card" if plan.has_devices else ""
    n_tokens = format_count(batch_tokens(settings))
    return f"batch of {n_tokens} x {rows.used} experts x ({widths}) x 4 B{beside}"


def _measured_lines(speed: Speed, rate: Estimate, num_tokens: int) -> Iterator[str]:
    """What answers on this machine make of the sum."""
    if speed.num_answers or speed.num_models:
        by = f"{speed.num_answers} answers" if speed.num_answers else f"{speed.num_models} models"
        taken = f"{num_tokens / rate.likely * 1e3:>10.2f} ms"
        yield f"  {'as measured':<34}{taken}  by {by} on this machine"


def _device_lines(taken: DeviceBytes, units: range, output_unit: int) -> Iterator[str]:
    blocks = f"{len(units) - (output_unit in units)} blocks"
    output = " and the output" if output_unit in units else ""
    for name, n, how in (
        ("dense weights", taken.trunk_bytes, f"{blocks}{output}, exact"),
        ("experts", taken.expert_bytes, "whole blocks, exact"),
        ("expert cache", taken.moe_cache_bytes, "whole MiB"),
        ("KV and state", taken.cache_bytes, "of those blocks, exact"),
        ("compute", taken.compute_bytes, "activations, mask, copies of experts; estimate"),
        ("projector", taken.projector_bytes, "weights and one picture"),
        ("driver", taken.overhead_bytes, "assumed by backend"),
    ):
        if n:
            yield _line(name, n, how)


def _line(name: str, n_bytes: int, how: str) -> str:
    return f"  {name:<22}{n_bytes / MIB:>12,.2f} MiB  {how}"


def _time_lines(terms: tuple[Term, ...]) -> Iterator[str]:
    for term in terms:
        if term.count:
            how = f"{term.count} x {term.each_s * 1e6:.0f} us"
        else:
            how = f"{term.n_bytes / 1e9:.3f} GB / {term.bytes_s / 1e9:.1f} GB/s"
            how += f" ({term.source})" if term.source else ""
        yield f"  {term.what:<34}{term.seconds * 1e3:>10.2f} ms  {how}"
    yield f"  {'together':<34}{total_s(terms) * 1e3:>10.2f} ms"
