"""From a model and a machine to the settings of one start, with reasons.

Everything is computed on the CPU, weights are mapped from the file. What must fit in RAM is what
cannot be read again: caches and compute buffers. Weights should fit, too. Where they do not, the
routed experts stay on the disk and the expert store keeps the hot ones in what RAM is left; without
the store the page cache has to do, and the plan says so.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.machine import Machine
from hotset.core.memory import (
    CONTEXT_STEP_TOKENS,
    CacheSettings,
    cache_bytes,
    check_cache_types,
    compute_bytes_estimate,
    largest_context,
)
from hotset.core.modelspec import CacheKind, Experts, ModelSpec
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import GIB, MIB, format_bytes, format_count

__all__ = ["Footprint", "Plan", "Wishes", "make_plan"]

# An engine process before it has loaded anything: 105 MiB of program, 60 MiB of libraries and
# heap, measured with xllamacpp 2026.10.
ENGINE_BYTES = 170 * MIB
# The context where the file names none: what llama.cpp assumed for such files.
_DEFAULT_CONTEXT_TOKENS = 4096
_LEAST_CONTEXT_TOKENS = CONTEXT_STEP_TOKENS
# f16 is exact for practical purposes; q8_0 costs little; anything lower is only used when asked.
_KV_LADDER = ("f16", "q8_0")
_PROMPT_CACHE_SHARE = 4
_MAX_PROMPT_CACHE_MIB = 8192
_CHECKPOINTS = 8
# Without room for the weights, caches may take this part of the RAM; the rest is for weights.
_CACHE_SHARE = 3
# What the expert store takes beside its budget: buffers of the readers, tables.
_STORE_BYTES = 64 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for. None means: the best that fits. What is given is law.

    Attributes:
        context_tokens: per slot.
        kv_type: for K and V.
        slots: requests at the same time.
        ubatch_tokens: physical prefill batch.
        threads: compute threads.
        is_serving: prompts of several conversations come and go, so that a prompt cache pays.
        ram_bytes: RAM for everything together.
        can_store: the engine takes the expert store.
    """

    context_tokens: int | None = None
    kv_type: str | None = None
    slots: int = 1
    ubatch_tokens: int = 512
    threads: int | None = None
    is_serving: bool = False
    ram_bytes: int | None = None
    can_store: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one start, by class.

    `weights_bytes` are mapped: they can be dropped and read again. MTP blocks are not counted, the
    engine skips them. With the expert store they are only what is no expert, and
    `expert_cache_bytes` is the store's.
    """

    weights_bytes: int
    expert_cache_bytes: int = 0
    cache_bytes: int
    compute_bytes: int
    prompt_cache_bytes: int
    engine_bytes: int = ENGINE_BYTES

    @property
    def fixed_bytes(self) -> int:
        """What must be in RAM all the time."""
        fixed = self.cache_bytes + self.compute_bytes + self.prompt_cache_bytes
        return fixed + self.expert_cache_bytes + self.engine_bytes

    @property
    def total_bytes(self) -> int:
        return self.fixed_bytes + self.weights_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision: what to start with, what it takes, and why.

    Attributes:
        is_larger_than_ram: the weights do not fit beside the fixed part; parts of the file are
            read again and again.
        is_repacked: whether the engine may keep weights in a layout that computes faster. It is a
            copy in memory that cannot be dropped, so only where the weights fit (llama.cpp makes
            10.9 GiB of it for an 18.4 GiB Qwen3-30B-A3B in Q4_K).
        reasons: one line for each thing that was given up.
    """

    context_tokens: int
    kv_type: str
    slots: int
    ubatch_tokens: int
    threads: int
    prompt_cache_mib: int
    checkpoints: int
    footprint: Footprint
    is_larger_than_ram: bool
    is_repacked: bool
    reasons: tuple[str, ...]


def make_plan(spec: ModelSpec, machine: Machine, wishes: Wishes) -> Plan:
    """Decide context, KV type and batch for `spec` on `machine`.

    Raises:
        MachineProblem: the wishes, or the smallest context, do not fit; names ways out.
        ConfigProblem: the KV type asked for does not suit the model.
    """
    if wishes.ram_bytes is not None:
        available = min(wishes.ram_bytes, machine.ram_available_bytes)
        machine = replace(machine, ram_available_bytes=available)
    trained = spec.context_tokens or _DEFAULT_CONTEXT_TOKENS
    ladder = (wishes.kv_type,) if wishes.kv_type else _ladder(spec, wishes)
    room = _room_bytes(spec, machine, wishes, ladder[-1])
    reasons: list[str] = []

    context = _whole_steps(wishes.context_tokens or trained)
    kv_type = _first_fitting(spec, wishes, ladder, context, room)
    if kv_type is None and wishes.context_tokens:
        # The user's word is law as far as the machine can follow; the weights give way.
        kv_type = _first_fitting(spec, wishes, ladder, context, machine.ram_available_bytes)
        if kv_type is None:
            raise MachineProblem(_does_not_fit(spec, machine, wishes, ladder[0], context))
    elif kv_type is None:
        kv_type = ladder[-1]
        context = _largest(spec, wishes, kv_type, room)
        if context < _LEAST_CONTEXT_TOKENS:
            # Too small a machine to keep a part for the weights: take what there is.
            room = machine.ram_available_bytes
            context = _largest(spec, wishes, kv_type, room)
        if context < _LEAST_CONTEXT_TOKENS:
            raise MachineProblem(_does_not_fit(spec, machine, wishes, kv_type, trained))
        reasons.append(
            f"context {format_count(context)} of {format_count(trained)}: more does not fit in the"
            f" {format_bytes(room)} of RAM left for caches and buffers"
        )
    if kv_type != ladder[0]:
        reasons.append(f"KV {kv_type} instead of {ladder[0]}, for a longer context")
    if context > trained:
        reasons.append(
            f"context {format_count(context)} is beyond the {format_count(trained)} that the model"
            " was trained for; answers may degrade"
        )
    return _finish(spec, machine, wishes, kv_type, context, reasons)


def _whole_steps(context: int) -> int:
    """The context that the engine makes of it."""
    return -(-context // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS


def _room_bytes(spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str) -> int:
    """RAM for what is not weights: what they leave, or a part where they do not fit anyway."""
    left = machine.ram_available_bytes - spec.trunk_bytes
    if left >= _fixed_bytes(spec, wishes, kv_type, _LEAST_CONTEXT_TOKENS):
        return left
    return machine.ram_available_bytes // _CACHE_SHARE


def _first_fitting(
    spec: ModelSpec, wishes: Wishes, ladder: tuple[str, ...], context: int, room_bytes: int
) -> str | None:
    fitting = (kv for kv in ladder if _fixed_bytes(spec, wishes, kv, context) <= room_bytes)
    return next(fitting, None)


def _ladder(spec: ModelSpec, wishes: Wishes) -> tuple[str, ...]:
    """The KV types to try unasked: those whose blocks fit the heads of this model."""

    def is_usable(kv_type: str) -> bool:
        try:
            check_cache_types(spec, _cache_settings(wishes, kv_type, _LEAST_CONTEXT_TOKENS))
        except ConfigProblem:
            return False
        return True

    return tuple(kv_type for kv_type in _KV_LADDER if is_usable(kv_type))


def _finish(
    spec: ModelSpec,
    machine: Machine,
    wishes: Wishes,
    kv_type: str,
    context: int,
    reasons: list[str],
) -> Plan:
    settings = _cache_settings(wishes, kv_type, context)
    fixed = _fixed_bytes(spec, wishes, kv_type, context)
    left = machine.ram_available_bytes - fixed - spec.trunk_bytes
    prompt_cache_mib = 0
    if wishes.is_serving and left > 0:
        prompt_cache_mib = min(left // _PROMPT_CACHE_SHARE // MIB, _MAX_PROMPT_CACHE_MIB)
    is_larger = left < 0
    expert_cache = 0
    if is_larger and spec.experts and wishes.can_store:
        expert_cache = _expert_cache_bytes(spec, spec.experts, machine, fixed)
        reasons.append(
            f"experts stay on the disk ({format_bytes(spec.experts.n_bytes)}),"
            f" {format_bytes(expert_cache)} of them cached in RAM"
        )
    elif is_larger:
        reasons.append(
            f"the weights ({format_bytes(spec.trunk_bytes)}) do not fit beside the"
            f" {format_bytes(fixed)} of caches and buffers: parts of the file are read again and"
            " again, which is slow"
        )
    # Window and recurrent caches cannot go back; without checkpoints a changed prompt is read anew.
    needs_checkpoints = any(
        layer.cache in (CacheKind.WINDOW, CacheKind.RECURRENT) for layer in spec.layers
    )
    return Plan(
        context_tokens=context,
        kv_type=kv_type,
        slots=wishes.slots,
        ubatch_tokens=wishes.ubatch_tokens,
        threads=wishes.threads or machine.num_cores,
        prompt_cache_mib=prompt_cache_mib,
        checkpoints=_CHECKPOINTS if needs_checkpoints and prompt_cache_mib else 0,
        footprint=Footprint(
            weights_bytes=spec.trunk_bytes - (_expert_bytes(spec) if expert_cache else 0),
            expert_cache_bytes=expert_cache,
            cache_bytes=cache_bytes(spec, settings).total,
            compute_bytes=compute_bytes_estimate(spec, settings),
            prompt_cache_bytes=prompt_cache_mib * MIB,
        ),
        is_larger_than_ram=is_larger,
        is_repacked=not is_larger,
        reasons=tuple(reasons),
    )


def _expert_bytes(spec: ModelSpec) -> int:
    return spec.experts.n_bytes if spec.experts else 0


def _expert_cache_bytes(spec: ModelSpec, experts: Experts, machine: Machine, fixed: int) -> int:
    """RAM for experts: all that is left beside what every token needs.

    Raises:
        MachineProblem: it does not hold the experts that a token uses in one layer, twice.
    """
    others = fixed + spec.trunk_bytes - experts.n_bytes + _STORE_BYTES
    cache = machine.ram_available_bytes - others
    least = 2 * experts.bytes_per_token // len(experts.layers)
    if cache < least:
        raise MachineProblem(
            f"{spec.name}: {format_bytes(machine.ram_available_bytes)} of RAM are too little even"
            f" with the experts on the disk; the least is {_enough(others + least)},"
            " or less with a shorter --ctx"
        )
    return cache


def _enough(n_bytes: int) -> str:
    """`n_bytes` for people, not less than it is, so that who gives this much gives enough."""
    step = (GIB if n_bytes >= GIB else MIB) / 10
    return format_bytes(math.ceil(math.ceil(n_bytes / step) * step))


def _cache_settings(wishes: Wishes, kv_type: str, context: int) -> CacheSettings:
    return CacheSettings(
        context_tokens=context * wishes.slots,
        slots=wishes.slots,
        type_k=tensor_type_named(kv_type),
        type_v=tensor_type_named(kv_type),
        ubatch_tokens=wishes.ubatch_tokens,
    )


def _fixed_bytes(spec: ModelSpec, wishes: Wishes, kv_type: str, context: int) -> int:
    settings = _cache_settings(wishes, kv_type, context)
    caches = cache_bytes(spec, settings).total
    return caches + compute_bytes_estimate(spec, settings) + ENGINE_BYTES


def _largest(spec: ModelSpec, wishes: Wishes, kv_type: str, budget_bytes: int) -> int:
    """The largest context whose fixed part stays within the budget; 0 if none does."""
    settings = _cache_settings(wishes, kv_type, _LEAST_CONTEXT_TOKENS)
    budget_bytes -= ENGINE_BYTES
    total = largest_context(spec, settings, budget_bytes)
    return total // wishes.slots // CONTEXT_STEP_TOKENS * CONTEXT_STEP_TOKENS


def _does_not_fit(
    spec: ModelSpec, machine: Machine, wishes: Wishes, kv_type: str, context: int
) -> str:
    """The message: what is needed, what there is, and the ways out with their numbers."""
    need = _fixed_bytes(spec, wishes, kv_type, context)
    have = machine.ram_available_bytes
    ways = []
    if kv_type != _KV_LADDER[-1] and _KV_LADDER[-1] in _ladder(spec, wishes):
        smaller = _fixed_bytes(spec, wishes, _KV_LADDER[-1], context)
        if smaller <= have:
            ways.append(f"--kv {_KV_LADDER[-1]} needs {format_bytes(smaller)}")
    largest = _largest(spec, wishes, kv_type, have)
    if largest >= _LEAST_CONTEXT_TOKENS:
        ways.append(f"--ctx {largest} fits")
    if wishes.slots > 1:
        ways.append("fewer --slots")
    ways.append(f"close programs that use the other {format_bytes(machine.ram_total_bytes - have)}")
    return (
        f"{spec.name}: {format_count(context)} tokens of {kv_type} KV with their buffers need"
        f" {format_bytes(need)} of RAM, {format_bytes(have)} are available; {'; '.join(ways)}"
    )
