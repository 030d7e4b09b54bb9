"""A plan whose experts go to the expert store although they would fit into RAM."""

from __future__ import annotations

from dataclasses import replace

from hotset.core.experience import RAM
from hotset.core.machine import Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.placement import host_compute_bytes
from hotset.core.plan.common import cache_settings
from hotset.core.plan.search import usable_devices
from hotset.core.plan.shape import ram_shape
from hotset.core.plan.types import Plan, Wishes
from hotset.core.speed import HostExperts, HostTier
from hotset.core.storecompute import store_compute_bytes

__all__ = ["stored_plan"]


def stored_plan(spec: ModelSpec, machine: Machine, plan: Plan, expert_bytes: int) -> Plan:
    """`plan` with the experts in the store, and with the buffers that this takes.

    Args:
        machine: that the plan is for.
        expert_bytes: memory for experts; 0: they stay where they are mapped, and the store only
            computes them.
    """
    settings = cache_settings(
        Wishes(slots=plan.slots), plan.kv_type, plan.context_tokens, plan.ubatch_tokens
    )
    has_card = plan.has_devices
    backends = {gpu.backend for gpu in usable_devices(machine) if has_card}
    first = len(spec.layers) + 1 - plan.placement.n_offloaded
    estimate = host_compute_bytes(
        spec, settings, backends, min(first, spec.n_layers), has_store=True
    )
    shape = ram_shape(settings, is_alone=not has_card, has_store=True)
    held = spec.experts.n_bytes if spec.experts and expert_bytes else 0
    footprint = replace(
        plan.footprint,
        expert_cache_bytes=expert_bytes,
        weights_bytes=spec.trunk_bytes - held,
        compute_bytes=machine.experience.compute(RAM, shape, estimate),
        store_compute_bytes=store_compute_bytes(spec, settings, is_beside_card=has_card),
    )
    # Weights in another layout would be copies, which the store cannot share.
    host = HostExperts(HostTier.STORE, expert_bytes)
    return replace(plan, footprint=footprint, is_repacked=False, host=host)
