"""What every kind of plan shares: contexts, KV types, what is left for a prompt cache."""

from __future__ import annotations

from hotset.core.errors import ConfigProblem
from hotset.core.machine import Machine
from hotset.core.memory import CONTEXT_STEP_TOKENS, CacheSettings
from hotset.core.modelspec import CacheKind, ModelSpec
from hotset.core.plan.types import Wishes
from hotset.core.refusals import refusal
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB, format_count

__all__ = [
    "KV_LADDER",
    "LEAST_CONTEXT_TOKENS",
    "STORE_BYTES",
    "beyond_training",
    "cache_settings",
    "check_kv",
    "checkpoints",
    "default_threads",
    "default_ubatch",
    "kv_ladder",
    "prompt_cache_mib",
    "refused_kv",
    "trained_context",
    "whole_steps",
]

LEAST_CONTEXT_TOKENS = CONTEXT_STEP_TOKENS
# f16 is exact for practical purposes; q8_0 costs little; anything lower is only used when asked.
KV_LADDER = ("f16", "q8_0")
# What the expert store takes beside its budget: buffers of the readers, tables.
STORE_BYTES = 64 * MIB
# The context where the file names none: what llama.cpp assumed for such files.
_DEFAULT_CONTEXT_TOKENS = 4096
_DEFAULT_UBATCH_TOKENS = 512
_PROMPT_CACHE_SHARE = 4
_MAX_PROMPT_CACHE_MIB = 8192
_CHECKPOINTS = 8


def trained_context(spec: ModelSpec) -> int:
    return spec.context_tokens or _DEFAULT_CONTEXT_TOKENS


def whole_steps(context: int) -> int:
    """The context that the engine makes of it."""
    return -(-context // CONTEXT_STEP_TOKENS) * CONTEXT_STEP_TOKENS


def default_ubatch(wishes: Wishes) -> int:
    """The batch where nothing speaks for a larger one."""
    return wishes.ubatch_tokens or _DEFAULT_UBATCH_TOKENS


def default_threads(machine: Machine, wishes: Wishes) -> int:
    """One for each fast core: slow ones and second threads of a core hold the others up."""
    return wishes.threads or machine.num_performance_cores or machine.num_cores


def cache_settings(wishes: Wishes, kv_type: str, context: int, ubatch_tokens: int) -> CacheSettings:
    """`context` is that of one slot."""
    return CacheSettings(
        context_tokens=context * wishes.slots,
        slots=wishes.slots,
        type_k=tensor_type_named(kv_type),
        type_v=tensor_type_named(kv_type),
        ubatch_tokens=ubatch_tokens,
    )


def kv_ladder(spec: ModelSpec, wishes: Wishes) -> tuple[str, ...]:
    """The KV types to try: the one asked for, or those whose blocks fit the heads of this model."""
    if wishes.kv_type:
        return (wishes.kv_type,)

    return tuple(kv for kv in KV_LADDER if not _refusal(spec, wishes, kv))


def check_kv(spec: ModelSpec, wishes: Wishes) -> None:
    """Refuse a KV type that the engine refuses.

    Raises:
        ConfigProblem: naming it, the reason, and what to use.
    """
    reason = wishes.kv_type and _refusal(spec, wishes, wishes.kv_type)
    if reason:
        raise ConfigProblem(reason)


def refused_kv(spec: ModelSpec, wishes: Wishes) -> list[str]:
    """Why a type of the ladder was not tried, one line for each; nothing if one was asked for."""
    if wishes.kv_type:
        return []
    return [reason for kv in KV_LADDER if (reason := _refusal(spec, wishes, kv))]


def _refusal(spec: ModelSpec, wishes: Wishes, kv_type: str) -> str | None:
    settings = cache_settings(wishes, kv_type, LEAST_CONTEXT_TOKENS, default_ubatch(wishes))
    return refusal(spec, settings)


def prompt_cache_mib(wishes: Wishes, left_bytes: int) -> int:
    """A part of the RAM that is left, where several conversations come and go."""
    if not wishes.is_serving or left_bytes <= 0:
        return 0
    return min(left_bytes // _PROMPT_CACHE_SHARE // MIB, _MAX_PROMPT_CACHE_MIB)


def checkpoints(spec: ModelSpec, prompt_cache: int) -> int:
    """Window and recurrent caches cannot go back; without checkpoints a changed prompt is read
    anew."""
    needs_them = any(
        layer.cache in (CacheKind.WINDOW, CacheKind.RECURRENT) for layer in spec.layers
    )
    return _CHECKPOINTS if needs_them and prompt_cache else 0


def beyond_training(context: int, trained: int) -> list[str]:
    """The warning for a context that the engine makes room for, and gives to no request."""
    if context <= whole_steps(trained):
        return []
    reason = (
        f"context {format_count(context)} is beyond the {format_count(trained)} that the model"
        f" was trained for: the engine uses no more than those, so --ctx {trained} gives as much"
    )
    return [reason]
