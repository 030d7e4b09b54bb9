"""What is kept of a request that has ended: a row, figures, an event, a line in the log."""

from __future__ import annotations

import logging
import time

from hotset.gateway.activity import Activity, ActivityStore
from hotset.gateway.calls import Outcome
from hotset.gateway.dialects.streams import Usage
from hotset.gateway.events import EventHub
from hotset.gateway.metrics import Metrics

__all__ = ["Journal"]

_log = logging.getLogger("hotset.gateway")


class Journal:
    """Writes down requests; neither prompts nor answers reach it."""

    def __init__(self, store: ActivityStore, metrics: Metrics, hub: EventHub) -> None:
        self.store = store
        self.metrics = metrics
        self.hub = hub

    def note(self, outcome: Outcome) -> None:
        activity = _activity(outcome)
        self.store.add(activity)
        self.metrics.note(activity)
        self.hub.publish("request", request=activity.as_row())
        _log.info(
            "request id=%s client=%s model=%s endpoint=%s stream=%d status=%d code=%s wait_s=%.3f"
            " first_byte_s=%.3f duration_s=%.3f prompt_tokens=%d cached_tokens=%d"
            " completion_tokens=%d",
            activity.request_id,
            activity.client,
            activity.model,
            activity.endpoint,
            activity.is_stream,
            activity.status,
            activity.code or "-",
            activity.wait_s,
            activity.first_byte_s or 0.0,
            activity.duration_s,
            activity.prompt_tokens,
            activity.cached_tokens,
            activity.completion_tokens,
        )


def _activity(outcome: Outcome) -> Activity:
    call = outcome.call
    usage = outcome.usage or Usage()
    duration_s = outcome.ended_at - outcome.began_at
    ago_s = time.monotonic() - outcome.began_at
    return Activity(
        request_id=call.request_id,
        started_s=time.time() - ago_s,
        client=call.client,
        model=call.model.id,
        endpoint=call.endpoint.name,
        is_stream=call.is_stream,
        status=outcome.status,
        code=outcome.failure.code if outcome.failure else "",
        wait_s=(outcome.held_at or outcome.ended_at) - outcome.began_at,
        first_byte_s=outcome.first_at - outcome.began_at if outcome.first_at else None,
        duration_s=duration_s,
        prompt_tokens=usage.prompt_tokens,
        cached_tokens=usage.cached_tokens,
        completion_tokens=usage.completion_tokens,
        prompt_per_s=usage.prompt_per_s,
        completion_per_s=usage.completion_per_s,
    )
