"""Who leaves when another model needs the room."""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable

from hotset.gateway.ledger import Bytes, Model, Phase, Rules, fits, plus

__all__ = ["choose_leaving", "worth"]

# A model unused for so long is worth half of what it was.
_FADE_S = 300.0


def worth(model: Model, now_s: float) -> float:
    """What keeping a model saves: its start's time, the less the longer nobody has asked, per GiB.

    The time to load counts from a second on: a start that was quick once need not be the next time.
    """
    idle_s = 0.0 if model.running or model.waiting else max(0.0, now_s - model.used_s)
    gib = max(sum(model.held.values()) / 2**30, 0.01)
    return max(model.load_s, 1.0) / gib * math.exp2(-idle_s / _FADE_S)


def choose_leaving(
    models: Iterable[Model],
    missing: Bytes,
    now_s: float,
    rules: Rules,
    chosen_before: Collection[str],
    is_overdue: bool,
) -> list[Model]:
    """The models of least worth that together free what is missing; none if they cannot.

    Args:
        models: those in memory that have not been told to leave.
        missing: bytes, per device.
        chosen_before: ids that were closed for this the last time: they come first, so that a
            choice does not waver while answers are being finished.
        is_overdue: busy models may be taken, too. They are to finish their requests.
    """
    order: list[Model] = []
    for tier in (_is_free_to_go, _has_had_its_time)[: 2 if is_overdue else 1]:
        found = [m for m in models if not m.is_pinned and m not in order and tier(m, now_s, rules)]
        order += sorted(found, key=lambda m: (m.id not in chosen_before, worth(m, now_s), m.id))
    leaving: list[Model] = []
    for model in order:
        if fits(missing, plus(*(m.held for m in leaving))):
            break
        leaving.append(model)
    if not fits(missing, plus(*(m.held for m in leaving))):
        return []
    for model in leaving[::-1]:  # the greedy choice may hold some that the later ones make needless
        others = [m for m in leaving if m is not model]
        if fits(missing, plus(*(m.held for m in others))):
            leaving = others
    return leaving


def _is_free_to_go(model: Model, now_s: float, rules: Rules) -> bool:
    """Idle for a while, or being loaded for nobody any more."""
    is_abandoned = model.phase is Phase.LOADING and not model.waiting
    return is_abandoned or model.may_leave(now_s, rules)


def _has_had_its_time(model: Model, now_s: float, rules: Rules) -> bool:
    return model.phase is Phase.READY and model.has_stayed(now_s, rules)
