"""What an engine's child process needs so that it starts with the expert store."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType

from hotset.core.errors import ConfigProblem
from hotset.store.locate import NativeStore

__all__ = ["BUFFER_TYPE", "EXPERT_TENSORS", "RAM_BYTES", "ChildSettings", "child_settings"]

BUFFER_TYPE = "HOTSET"
RAM_BYTES = "HOTSET_RAM_BYTES"
# Expert matrices, split or fused; not their biases, which the engine adds itself.
EXPERT_TENSORS = r"\.ffn_(gate|up|down|gate_up)_exps\.weight"
# Linux takes no longer string into a new process, its name and its end included
# (MAX_ARG_STRLEN in include/uapi/linux/binfmts.h: 32 pages, of 4 KiB at least).
_LONGEST_VARIABLE = 32 * 4096 - 64


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
    read_first: Sequence[Sequence[tuple[int, int]]] = (),
    counters: Path | None = None,
    trace: Path | None = None,
) -> ChildSettings:
    """Settings for a child that runs `models` (all shards) with `plugin`.

    `read_first` has for each of `models` the ranges (first byte, byte behind the last) that are no
    experts. They are read when the engine maps the file, and nothing around them. Without them the
    kernel reads around each page that the engine touches, experts too, and keeps that.

    `ram_bytes` is the memory for experts; with 0 they are computed where they are mapped, and the
    page cache is their only cache. `counters` is where the child shares its counters, `trace` where
    it writes down the routing (see `hotset.store.trace`).

    The tensor override does two things: a llama-server with built-in backends loads the plugin
    only when an argument makes it look for devices, and a GPU engine would otherwise keep the
    experts for itself.

    Raises:
        ConfigProblem: a path holds a character that separates paths in these settings, or the
            paths are too long together.
    """
    _refuse(native.preload, " :", "the dynamic loader separates libraries by it")
    for model in models:
        _refuse(model, ":", "the expert store separates model files by it")
    listed = ":".join(map(str, models))
    if len(os.fsencode(listed)) > _LONGEST_VARIABLE:
        raise ConfigProblem(
            f"path {models[0]}: the paths of its {len(models)} files are too long together for the"
            " expert store; move the model to a shorter path"
        )
    environment = {
        "LD_PRELOAD": str(native.preload),
        "HOTSET_NO_PREFETCH": listed,
        "HOTSET_READ_FIRST": _as_text(read_first),
        RAM_BYTES: str(ram_bytes),
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


def _as_text(ranges_by_file: Sequence[Sequence[tuple[int, int]]]) -> str:
    """`begin-end,begin-end:begin-end`, cut off before a range that would make it too long: what is
    not read first is read when it is needed. No real model comes near."""
    text = ":".join(
        ",".join(f"{begin}-{end}" for begin, end in ranges) for ranges in ranges_by_file
    )
    if len(text) <= _LONGEST_VARIABLE:
        return text
    return text[: max(text.rfind(mark, 0, _LONGEST_VARIABLE) for mark in ",:")]


def _refuse(path: Path, characters: str, reason: str) -> None:
    for character in characters:
        if character in str(path):
            raise ConfigProblem(
                f"path {path}: holds {character!r}, and {reason}; move it to a path without"
            )
