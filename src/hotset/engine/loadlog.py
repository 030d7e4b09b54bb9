"""Reading an engine's log: what phase a start is in, what was allocated, why it failed.

The lines are those of llama.cpp at verbosity 4 (`common/log.cpp` gives each a time stamp, a level
and a component). Texts from a model file (its name, its chat template) appear among them, so
nothing that decides over access, such as an address, is ever taken from here.
"""

from __future__ import annotations

import re
import signal
from collections.abc import Iterable

from hotset.core.errors import EngineProblem, FileProblem, HotsetError, MachineProblem
from hotset.core.experience import RAM
from hotset.core.loaded import Buffer, BufferKind, CacheReport, Loaded
from hotset.core.units import MIB, format_bytes
from hotset.engine.shortage import MemoryShort, shortage_in

__all__ = ["failure", "loaded_from", "phase_of"]

_PREFIX = re.compile(r"^\d+\.\d+\.\d+\.\d+ (?P<level>[DIWE]) (?P<text>.*)$")

_BUFFER = re.compile(
    r"^(?P<who>load_tensors|llama_context|llama_kv_cache|llama_memory_recurrent|sched_reserve):"
    r" +(?P<device>\S+) +(?P<what>model|output|KV|RS|compute) buffer size = +(?P<mib>[\d.]+) MiB"
)
_BUFFER_KINDS = {
    "model": BufferKind.MODEL,
    "output": BufferKind.OUTPUT,
    "KV": BufferKind.KV,
    "RS": BufferKind.RECURRENT,
    "compute": BufferKind.COMPUTE,
}
_CACHE = re.compile(
    r"^(?P<who>llama_kv_cache|llama_memory_recurrent): size = +(?P<mib>[\d.]+) MiB"
    r" \( *(?P<cells>\d+) cells, +(?P<layers>\d+) layers,.*\),"
    r" [KR] \((?P<k>\w+)\): +[\d.]+ MiB(?:, [VS] \((?P<v>\w+)\):)?"
)
_SLOTS = re.compile(r"n_slots = (?P<slots>\d+), n_ctx_slot = (?P<context>\d+)")

_PHASES = (
    ("loading model '", "reading the header"),
    ("load_tensors: loading model tensors", "loading the weights"),
    ("constructing llama_context", "setting up the context"),
    ("warming up the model", "warming up"),
    ("initializing, n_slots", "opening the endpoints"),
)

_OUT_OF_MEMORY = re.compile(
    r"failed to allocate|insufficient memory|out of memory|unable to allocate"
    r"|ErrorOutOfDeviceMemory|ErrorOutOfHostMemory|bad_alloc|cannot allocate memory",
    re.IGNORECASE,
)
_UNKNOWN_ARCHITECTURE = re.compile(r"unknown model architecture: '(?P<arch>[^']*)'")
_DAMAGED = re.compile(
    r"(?P<why>missing tensor '[^']*'|tensor '[^']*' has wrong shape[^;]*"
    r"|key not found in model: \S+|wrong number of tensors[^;]*"
    r"|tensor '[^']*' data is not within the file bounds[^;]*"
    r"|unknown pre-tokenizer type: '[^']*'|cannot find tokenizer \S+[^;]*"
    r"|error loading model \w+: .*)"
)
_BIND = re.compile(r"couldn't bind|address already in use|failed to bind", re.IGNORECASE)
_TEMPLATE = re.compile(r"chat template|chat_template", re.IGNORECASE)
_LONGEST_REASON = 300


def _text(line: str) -> tuple[str, str]:
    """Level and message; the component column of server lines is kept."""
    match = _PREFIX.match(line)
    return (match["level"], match["text"]) if match else ("", line)


def phase_of(line: str) -> str | None:
    """The phase of a start that this line begins, if it begins one."""
    _, text = _text(line)
    for mark, phase in _PHASES:
        if mark in text:
            return phase
    return None


def loaded_from(lines: Iterable[str], *, build: str, start_s: float) -> Loaded:
    """The engine's account of its memory, from the lines of one start."""
    buffers: list[Buffer] = []
    caches: list[CacheReport] = []
    slots = context_tokens = 0
    for line in lines:
        _, text = _text(line)
        if match := _BUFFER.match(text):
            n_bytes = round(float(match["mib"]) * MIB)
            buffers.append(Buffer(match["device"], _BUFFER_KINDS[match["what"]], n_bytes))
        elif match := _CACHE.match(text):
            is_kv = match["who"] == "llama_kv_cache"
            caches.append(
                CacheReport(
                    kind=BufferKind.KV if is_kv else BufferKind.RECURRENT,
                    cells=int(match["cells"]),
                    layers=int(match["layers"]),
                    type_k=match["k"],
                    type_v=match["v"] or "",
                    n_bytes=round(float(match["mib"]) * MIB),
                )
            )
        elif match := _SLOTS.search(text):
            slots, context_tokens = int(match["slots"]), int(match["context"])
    return Loaded(
        build=build,
        slots=slots,
        context_tokens=context_tokens,
        buffers=tuple(buffers),
        caches=tuple(caches),
        start_s=start_s,
    )


def failure(lines: Iterable[str], *, model: str, engine: str, status: int | None) -> HotsetError:
    """Why a start failed, as the kind of problem that it is, from the engine's last lines.

    Args:
        model: the file's name, for the message.
        engine: the engine's name and build, for the message.
        status: exit status of the process; negative for a signal; None while it lives.
    """
    said = [_text(line) for line in lines]
    errors = [text for level, text in said if level == "E" or not level]
    everything = "; ".join(errors)
    if match := _UNKNOWN_ARCHITECTURE.search(everything):
        return EngineProblem(
            f"{model}: architecture '{match['arch']}' is unknown to the engine {engine};"
            " a newer engine may know it (`hotset doctor` lists those found)"
        )
    if _BIND.search(everything):
        return MachineProblem(f"{model}: the port is in use; choose another with --port")
    if _OUT_OF_MEMORY.search(everything):
        detail = next(text for text in errors if _OUT_OF_MEMORY.search(text))
        device, asked_bytes = shortage_in(text for _, text in said)
        return MemoryShort(
            f"{model}: not enough memory ({_short(detail)});"
            " give a shorter --ctx or --kv q8_0, or close other programs",
            device=device or RAM,
            asked_bytes=asked_bytes,
            what=_asked(device, asked_bytes),
        )
    if match := _DAMAGED.search(everything):
        return FileProblem(
            f"{model}: the engine {engine} cannot load it: {_short(match['why'])};"
            " the file is damaged, or made for another engine version"
        )
    stated = (text for level, text in said if level == "E" or text.startswith("error: "))
    if any(map(_TEMPLATE.search, stated)):
        causes = [text for text in errors if text.startswith("Error: ")]
        return FileProblem(
            f"{model}: its chat template, or the one of --chat-template, does not work in the"
            f" engine {engine}: {_short(causes[-1] if causes else _first_cause(errors))}"
        )
    if status == -signal.SIGKILL:
        return MemoryShort(
            f"{model}: the engine {engine} was killed while loading, most likely by the system for"
            " want of memory; give a shorter --ctx or --kv q8_0, or close other programs",
            what="the engine was killed, most likely by the system for want of memory",
        )
    ended = _ending(status)
    reason = _short(_first_cause(errors)) if errors else "it said nothing"
    return EngineProblem(f"{model}: the engine {engine} {ended} while loading: {reason}")


def _asked(device: str, asked_bytes: int) -> str:
    what = format_bytes(asked_bytes) if asked_bytes else "memory"
    return f"the engine could not get {what} on {device}" if device else f"no {what} for the engine"


def _first_cause(errors: list[str]) -> str:
    """The most specific line: the first that names a cause, else the last one."""
    causes = [text for text in errors if re.search(r"error|fail|abort|assert", text, re.IGNORECASE)]
    return causes[0] if causes else errors[-1]


def _ending(status: int | None) -> str:
    if status is None:
        return "stopped responding"
    if status < 0:
        return f"was killed by signal {-status}"
    return f"ended with status {status}"


def _short(text: str) -> str:
    text = " ".join(text.split())
    return text if len(text) <= _LONGEST_REASON else text[:_LONGEST_REASON] + "..."
