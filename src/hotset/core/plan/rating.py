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

__all__ = ["PREFILL_WEIGHT", "cost_s", "nominal_depth", "rate", "rate_alone"]

PREFILL_WEIGHT = 0.5
"""A prompt's token counts as much as this part of a written one: decode first, then prefill."""

_LEAST_S = 1e-9  # a model without weights takes no time, but a rate needs some


def cost_s(speed: Speed) -> float:
    """Smaller is better: seconds for a token written and a part of one read."""
    return 1 / speed.decode.likely + PREFILL_WEIGHT / speed.prefill.likely


def nominal_depth(settings: CacheSettings) -> int:
    """Tokens in the context for which speeds are stated."""
    return min(NOMINAL_DEPTH_TOKENS, context_cells(settings) // 2)


def rate(
    model: SpeedModel,
    parts: Parts,
    caches: CacheUnits,
    placement: Placement,
    host: HostExperts,
    ubatch_tokens: int,
) -> Speed:
    """Predict decode and prefill.

    Args:
        caches: with the reads at `nominal_depth`.
    """
    decode = decode_terms(model, parts, caches, placement, host)
    prefill = prefill_terms(model, parts, placement, host, ubatch_tokens)
    decode_s, prefill_s = max(total_s(decode), _LEAST_S), max(total_s(prefill), _LEAST_S)
    return Speed(
        decode=estimate(model, 1 / decode_s, placement, host),
        prefill=estimate(model, ubatch_tokens / prefill_s, placement, host),
        decode_terms=decode,
        prefill_terms=prefill,
        assumed=model.assumed,
    )


def rate_alone(
    spec: ModelSpec, machine: Machine, settings: CacheSettings, host: HostExperts, threads: int
) -> Speed:
    """The same for a start without devices."""
    caches = cache_units(spec, settings, nominal_depth(settings))
    model = speed_model(spec, machine, threads=threads)
    return rate(model, split_model(spec), caches, Placement(), host, settings.ubatch_tokens)
