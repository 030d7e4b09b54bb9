"""The scheduler's decisions in words: why a model is where it is, and what a request waits for."""

from __future__ import annotations

from hotset.core.units import format_bytes
from hotset.gateway.eviction import choose_leaving
from hotset.gateway.ledger import Bytes, Model, Phase, fits, minus
from hotset.gateway.pool import Waiting
from hotset.gateway.scheduler import Scheduler

__all__ = ["age", "explain", "places"]


def places(scheduler: Scheduler) -> dict[int, Waiting]:
    """Of each waiting request: its place (1 is next, 0 while its model loads), and a reason."""
    found: dict[int, Waiting] = {}
    for model in scheduler.models.values():
        if model.phase is Phase.READY:
            reason = f"{model.id} answers {_counted(len(model.running), 'request')}"
            if model.is_closed:
                reason = f"{model.id} leaves for a model that has waited longer"
            found |= {
                n: Waiting(position=place, reason=reason)
                for place, n in enumerate(model.waiting, 1)
            }
        elif model.phase is Phase.LOADING:
            found |= dict.fromkeys(
                model.waiting, Waiting(position=0, reason=f"{model.id} is being loaded")
            )
    out = [m for m in scheduler.models.values() if m.phase not in (Phase.READY, Phase.LOADING)]
    numbers = sorted(number for model in out for number in model.waiting)
    for place, number in enumerate(numbers, 1):
        model = next(model for model in out if number in model.waiting)
        found[number] = Waiting(position=place, reason=f"{model.id} {_wait_reason(model)}")
    return found


def explain(scheduler: Scheduler, model: Model, now_s: float) -> list[str]:
    """Why it is, or is not, loaded, and what asking for it now would do."""
    if model.phase is Phase.READY:
        return [f"loaded for {age(now_s - model.since_s)}: {model.why}", *_ready(model, now_s)]
    if model.phase is Phase.LOADING:
        waiting = _counted(len(model.waiting), "request")
        return [f"being loaded for {age(now_s - model.since_s)}; {waiting} wait for it"]
    since = f", {age(now_s - model.since_s)} ago" if model.since_s else ""
    state = "not loaded" if model.phase is Phase.OUT else "leaving"
    return [f"{state}: {model.why}{since}", *_if_asked(scheduler, model, now_s)]


def age(seconds: float) -> str:
    """`8s`, `2m10s`, `3h05m`."""
    whole = int(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    if minutes < 60:
        return f"{minutes}m{rest:02}s"
    return f"{minutes // 60}h{minutes % 60:02}m"


def _ready(model: Model, now_s: float) -> list[str]:
    held = " and ".join(f"{format_bytes(n)} of {device}" for device, n in model.held.items())
    lines = [
        (
            f"takes {held} as planned; {_counted(len(model.running), 'request')} running,"
            f" {len(model.waiting)} waiting"
        )
    ]
    if model.is_closed:
        lines.append("takes no new requests: others have waited long enough for its place")
    elif model.is_pinned:
        lines.append("pinned: it leaves only by hand")
    elif model.is_idle() and model.ttl_s is not None:
        left_s = max(0.0, model.ttl_s - (now_s - model.used_s))
        lines.append(f"leaves in {age(left_s)} if nobody asks for it")
    return lines


def _if_asked(scheduler: Scheduler, model: Model, now_s: float) -> list[str]:
    """What a request would set going."""
    if model.waiting:
        waiting = _counted(len(model.waiting), "request")
        return [f"{waiting} for it: {_wait_reason(model)}"]
    if model.problem and model.retry_s > now_s:
        return [
            (
                f"asked for now, it would fail with the same reason: it is not tried again for"
                f" {age(model.retry_s - now_s)} (`hotset load {model.id}` tries it)"
            )
        ]
    took = f"; its last start took {model.load_s:.1f} s" if model.load_s else ""
    staying = [m for m in scheduler.models.values() if m.is_in]
    need = _trimmed(model.need, minus(scheduler.room, *(m.held for m in staying if m.is_pinned)))
    free = minus(scheduler.room, *(m.held for m in staying))
    what = " and ".join(f"{format_bytes(n)} of {device}" for device, n in need.items())
    if not scheduler.room or fits(need, free):
        return [f"asked for now, it would be loaded at once: it needs {what}{took}"]
    for is_overdue in (False, True):
        leaving = choose_leaving(staying, minus(need, free), now_s, scheduler.rules, (), is_overdue)
        if leaving:
            break
    if not leaving:
        return [
            (
                f"asked for now, it would wait until a model in use has had its time: it needs"
                f" {what}, {_free(free)}{took}"
            )
        ]
    names = ", ".join(m.id for m in leaving)
    busy = sum(len(m.running) for m in leaving)
    after = f" after {_counted(busy, 'running request')}" if busy else ""
    return [f"asked for now, it would replace {names}{after}: it needs {what}, {_free(free)}{took}"]


def _trimmed(need: Bytes, most: Bytes) -> dict[str, int]:
    return {device: min(n, most.get(device, n)) for device, n in need.items()}


def _free(free: Bytes) -> str:
    return " and ".join(f"{format_bytes(max(0, n))} of {d}" for d, n in free.items()) + " are free"


def _wait_reason(model: Model) -> str:
    if model.phase is Phase.OUT:
        return model.wait_why or "is next"
    return "is started again once it is out and its memory is free"


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
