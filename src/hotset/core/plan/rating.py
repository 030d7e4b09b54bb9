"""A placement's predicted speed, and the one number by which placements are compared."""

from __future__ import annotations

from hotset.core.machine import Machine
from hotset.core.memory import CacheSettings, context_cells
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import CacheUnits, Parts, cache_units, split_model
from hotset.core.placement import Placement
from hotset.core.plan.types import Speed
from hotset.core.speed import (
    NOMINAL_DEPTH_TOKENS,
    HostExperts,
    SpeedModel,
    decode_terms,
    estimate,
    prefill_terms,
    speed_model,
    total_s,
)

__all__ = ["PREFILL_WEIGHT", "mean_depth", "nominal_depth", "rate", "rate_alone"]

PREFILL_WEIGHT = 0.5
"""A prompt's token counts as much as this part of a written one: decode first, then prefill."""

_LEAST_S = 1e-9  # a model without weights takes no time, but a rate needs some


def nominal_depth(settings: CacheSettings) -> int:
    """Tokens in the context for which speeds are stated."""
    return min(NOMINAL_DEPTH_TOKENS, context_cells(settings) // 2)


def mean_depth(settings: CacheSettings) -> int:
    """Tokens in the context for which placements are compared.

    A conversation may be anywhere between its start and the end of the context. Half of it is the
    middle, and most stay short, so a quarter.
    """
    return max(nominal_depth(settings), context_cells(settings) // 4)


def rate(
    model: SpeedModel,
    parts: Parts,
    caches: CacheUnits,
    deep_caches: CacheUnits,
    placement: Placement,
    host: HostExperts,
    ubatch_tokens: int,
) -> Speed:
    """Predict decode and prefill.

    Args:
        caches: with the reads at `nominal_depth`.
        deep_caches: with those at `mean_depth`.
    """
    decode = decode_terms(model, parts, caches, placement, host)
    prefill = prefill_terms(model, parts, placement, host, ubatch_tokens)
    decode_s, prefill_s = max(total_s(decode), _LEAST_S), max(total_s(prefill), _LEAST_S)
    deep_s = max(total_s(decode_terms(model, parts, deep_caches, placement, host)), _LEAST_S)
    return Speed(
        decode=estimate(model, 1 / decode_s, placement, host),
        prefill=estimate(model, ubatch_tokens / prefill_s, placement, host),
        cost_s=deep_s + PREFILL_WEIGHT * prefill_s / ubatch_tokens,
        decode_terms=decode,
        prefill_terms=prefill,
        assumed=model.assumed,
    )


def rate_alone(
    spec: ModelSpec, machine: Machine, settings: CacheSettings, host: HostExperts, threads: int
) -> Speed:
    """The same for a start without devices."""
    caches, deep = (
        cache_units(spec, settings, depth(settings)) for depth in (nominal_depth, mean_depth)
    )
    model = speed_model(spec, machine, threads=threads)
    ubatch = settings.ubatch_tokens
    return rate(model, split_model(spec), caches, deep, Placement(), host, ubatch)
