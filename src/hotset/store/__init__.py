"""The expert store seen from Python: find it, load it, start engines with it, read its counters."""

from __future__ import annotations

from hotset.store.child import ChildSettings, child_settings
from hotset.store.counters import Counters, read_counters
from hotset.store.locate import NativeStore, find_native
from hotset.store.probe import StoreCheck, check_embedded, check_llama_server

__all__ = [
    "ChildSettings",
    "Counters",
    "NativeStore",
    "StoreCheck",
    "check_embedded",
    "check_llama_server",
    "child_settings",
    "find_native",
    "read_counters",
]
