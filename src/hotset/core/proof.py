"""A plan against the engine's own account of what it allocated."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from hotset.core.experience import RAM
from hotset.core.loaded import BufferKind, Loaded
from hotset.core.units import MIB, format_bytes

__all__ = ["Account", "Planned", "accounts", "deviations"]

# Below these a difference is no news: the aim of the estimate for compute buffers, and the engine's
# print-out of whole and hundredth MiB for what is exact.
_COMPUTE_SHARE = 0.10
_COMPUTE_BYTES = 64 * MIB
_EXACT_BYTES = 1 * MIB
_CACHES = (BufferKind.KV, BufferKind.RECURRENT)
_BUFFERS = (BufferKind.COMPUTE, BufferKind.OUTPUT)


@dataclass(frozen=True, slots=True, kw_only=True)
class Account:
    """One device, or RAM: what was planned and what the engine took, bytes.

    Attributes:
        planned_model, model: weights; both None where they cannot be compared: in RAM they are
            mapped, and counted by the engine as the range that they lie in.
        planned_context, context: caches and states.
        planned_compute, compute: buffers of a batch and outputs.
    """

    device: str
    planned_model: int | None
    model: int | None
    planned_context: int
    context: int
    planned_compute: int
    compute: int


@dataclass(frozen=True, slots=True)
class Planned:
    """What a plan says of one device."""

    device: str
    model_bytes: int | None
    context_bytes: int
    compute_bytes: int


def accounts(planned: Iterable[Planned], loaded: Loaded) -> tuple[Account, ...]:
    """Planned against real, one for each of `planned`, in its order.

    Everything that is on no planned device is in RAM: mapped, pinned or plain, the engine has many
    names for it. So `planned` names `RAM` once, and every device that is used.
    """
    rows = list(planned)
    names = {row.device for row in rows}

    def taken(device: str, kinds: tuple[BufferKind, ...]) -> int:
        return sum(
            buffer.n_bytes
            for buffer in loaded.buffers
            if buffer.kind in kinds
            and (buffer.device == device or (device == RAM and buffer.device not in names))
        )

    return tuple(
        Account(
            device=row.device,
            planned_model=row.model_bytes,
            model=None if row.model_bytes is None else taken(row.device, (BufferKind.MODEL,)),
            planned_context=row.context_bytes,
            context=taken(row.device, _CACHES),
            planned_compute=row.compute_bytes,
            compute=taken(row.device, _BUFFERS),
        )
        for row in rows
    )


def deviations(found: Iterable[Account]) -> list[str]:
    """What differs from the plan by more than is expected, in words; nothing where all is well."""
    said = []
    for account in found:
        pairs = (
            ("weights", account.planned_model or 0, account.model or 0, _EXACT_BYTES),
            ("KV and state", account.planned_context, account.context, _EXACT_BYTES),
            (
                "compute",
                account.planned_compute,
                account.compute,
                max(_COMPUTE_BYTES, int(_COMPUTE_SHARE * account.compute)),
            ),
        )
        said += [
            f"{account.device} {what} {format_bytes(real)}, planned {format_bytes(planned)}"
            for what, planned, real, tolerance in pairs
            if abs(real - planned) > tolerance
        ]
    return said
