"""The expert store seen from Python: find it, load it, start engines with it, read its counters
and its routing traces."""

from __future__ import annotations

from hotset.store.child import ChildSettings, child_settings
from hotset.store.counters import Counters, LayerCounters, StoreState, read_counters
from hotset.store.locate import NativeStore, find_native
from hotset.store.pages import RunningStore, running_stores
from hotset.store.probe import StoreCheck, check_embedded, check_llama_server
from hotset.store.trace import LayerSummary, TraceBatch, TraceLayer, read_trace, summarize

__all__ = [
    "ChildSettings",
    "Counters",
    "LayerCounters",
    "LayerSummary",
    "NativeStore",
    "RunningStore",
    "StoreCheck",
    "StoreState",
    "TraceBatch",
    "TraceLayer",
    "check_embedded",
    "check_llama_server",
    "child_settings",
    "find_native",
    "read_counters",
    "read_trace",
    "running_stores",
    "summarize",
]
