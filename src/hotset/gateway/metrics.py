"""Figures for Prometheus: requests, tokens and speeds as they come, models as they stand."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.metrics_core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from hotset.gateway.activity import Activity
from hotset.gateway.pool import Pool, State

__all__ = ["CONTENT_TYPE", "Metrics"]

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

_SECONDS = (0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300, 600)


class _PoolCollector(Collector):
    """Reads the pool when it is asked; asking loads nothing."""

    def __init__(self, pool: Pool) -> None:
        self._pool = pool

    def collect(self) -> Iterator[Metric]:
        state = _gauge("model_state", "1 for the state that a model is in", "state")
        memory = _gauge("model_memory_bytes", "Memory of a model", "device")
        gauges = {
            "num_busy": _gauge("model_busy_requests", "Requests that a model works on"),
            "num_queued": _gauge("model_queued_requests", "Requests that wait for a model"),
            "load_s": _gauge("model_load_seconds", "Duration of the last load"),
        }
        counters = {
            "num_loads": _counter("model_loads", "Loads of a model"),
            "num_failures": _counter("model_load_failures", "Starts that failed"),
            "num_evictions": _counter("model_evictions", "Times that a model made room"),
            "num_expert_hits": _counter("expert_hits", "Experts found in memory"),
            "num_expert_requests": _counter("expert_requests", "Experts asked for"),
        }
        for model in self._pool.models():
            residence = self._pool.residence(model.id)
            for each in State:
                state.add_metric((model.id, each.value), float(model.state is each))
            for device, n_bytes in residence.memory_bytes.items():
                memory.add_metric((model.id, device), n_bytes)
            for name, gauge in gauges.items():
                gauge.add_metric((model.id,), getattr(residence, name) or 0)
            for name, counter in counters.items():
                counter.add_metric((model.id,), getattr(residence, name))
        yield from (state, memory, *gauges.values(), *counters.values())


def _gauge(name: str, text: str, *labels: str) -> GaugeMetricFamily:
    return GaugeMetricFamily(f"hotset_{name}", text, labels=("model", *labels))


def _counter(name: str, text: str) -> CounterMetricFamily:
    return CounterMetricFamily(f"hotset_{name}", text, labels=("model",))


class Metrics:
    """A registry of its own. The label `model` only ever holds names of served models."""

    def __init__(self, pool: Pool) -> None:
        self._registry = registry = CollectorRegistry()
        by_model = ("model",)
        self._requests = Counter(
            "hotset_requests",
            "Requests that have ended",
            ("model", "endpoint", "status"),
            registry=registry,
        )
        self._refused = Counter(
            "hotset_refused_requests",
            "Requests that were refused before a model was known",
            ("status",),
            registry=registry,
        )
        self._tokens = {
            name: Counter(f"hotset_{name}", text, by_model, registry=registry)
            for name, text in (
                ("prompt_tokens", "Tokens of prompts, the cached ones included"),
                ("cached_tokens", "Tokens of prompts that were not read again"),
                ("completion_tokens", "Tokens of answers"),
            )
        }
        self._speeds = {
            name: Gauge(f"hotset_{name}", text, by_model, registry=registry)
            for name, text in (
                ("prompt_per_s", "Speed of reading in the last answer, tokens per second"),
                ("completion_per_s", "Speed of writing in the last answer, tokens per second"),
            )
        }
        self._times = {
            name: Histogram(
                f"hotset_{name}econds", text, by_model, registry=registry, buckets=_SECONDS
            )
            for name, text in (
                ("wait_s", "Until the model was ready for a request"),
                ("first_byte_s", "Until the first byte of an answer"),
                ("duration_s", "Until the end of a request"),
            )
        }
        registry.register(_PoolCollector(pool))

    def note(self, activity: Activity) -> None:
        self._requests.labels(activity.model, activity.endpoint, str(activity.status)).inc()
        for name, counter in self._tokens.items():
            counter.labels(activity.model).inc(getattr(activity, name))
        for name, gauge in self._speeds.items():
            if speed := getattr(activity, name):
                gauge.labels(activity.model).set(speed)
        for name, histogram in self._times.items():
            value = getattr(activity, name)
            if value is not None:
                histogram.labels(activity.model).observe(value)

    def note_refused(self, status: int) -> None:
        self._refused.labels(str(status)).inc()

    def text(self) -> bytes:
        return generate_latest(self._registry)
