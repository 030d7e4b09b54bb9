"""What an engine's child process needs so that it starts with the expert store."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hotset.core.errors import ConfigProblem
from hotset.store.locate import NativeStore

__all__ = ["BUFFER_TYPE", "EXPERT_TENSORS", "ChildSettings", "child_settings"]

BUFFER_TYPE = "HOTSET"
# Expert matrices, split or fused; not their biases, which the engine adds itself.
EXPERT_TENSORS = r"\.ffn_(gate|up|down|gate_up)_exps\.weight"


@dataclass(frozen=True, slots=True)
class ChildSettings:
    """`environment` is for every engine; `plugin_environment` and `arguments` are for a
    llama-server. The embedded engine loads the plugin by `load_into_embedded` instead."""

    environment: Mapping[str, str]
    plugin_environment: Mapping[str, str]
    arguments: Sequence[str]


def child_settings(
    native: NativeStore,
    plugin: Path,
    models: Sequence[Path],
    *,
    ram_bytes: int,
    counters: Path | None = None,
    trace: Path | None = None,
) -> ChildSettings:
    """Settings for a child that runs `models` (all shards) with `plugin`.

    `ram_bytes` is the memory for experts; with 0 they are computed where they are mapped, and the
    page cache is their only cache. `counters` is where the child shares its counters, `trace` where
    it writes down the routing (see `hotset.store.trace`).

    The tensor override does two things: a llama-server with built-in backends loads the plugin
    only when an argument makes it look for devices, and a GPU engine would otherwise keep the
    experts for itself.

    Raises:
        ConfigProblem: a path holds a character that separates paths in these settings.
    """
    _refuse(native.preload, " :", "the dynamic loader separates libraries by it")
    for model in models:
        _refuse(model, ":", "the expert store separates model files by it")
    environment = {
        "LD_PRELOAD": str(native.preload),
        "HOTSET_NO_PREFETCH": ":".join(map(str, models)),
        "HOTSET_RAM_BYTES": str(ram_bytes),
    }
    if counters is not None:
        environment["HOTSET_TELEMETRY"] = str(counters)
    if trace is not None:
        environment["HOTSET_TRACE"] = str(trace)
    return ChildSettings(
        MappingProxyType(environment),
        MappingProxyType({"GGML_BACKEND_PATH": str(plugin)}),
        ("--override-tensor", f"{EXPERT_TENSORS}={BUFFER_TYPE}"),
    )


def _refuse(path: Path, characters: str, reason: str) -> None:
    for character in characters:
        if character in str(path):
            raise ConfigProblem(
                f"path {path}: holds {character!r}, and {reason}; move it to a path without"
            )
