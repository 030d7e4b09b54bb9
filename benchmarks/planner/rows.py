"""Published runs of other people, as models, machines and placements."""

from __future__ import annotations

import csv
from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path

from hotset.core.machine import Backend, Gpu, Link, Machine
from hotset.core.memory import CacheSettings
from hotset.core.modelspec import ModelSpec, Role
from hotset.core.parts import cache_units, split_model
from hotset.core.placement import Placement
from hotset.core.speed import (
    HostExperts,
    HostTier,
    Rates,
    decode_terms,
    prefill_terms,
    speed_model,
    total_s,
)
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import GIB
from hotset.gguf.synth.fullscale import fullscale_spec

__all__ = ["Row", "decode_per_s", "prefill_per_s", "read_rows"]

# Memory bandwidth in GB/s and PCIe generation, from the makers' data sheets.
_CARDS: Mapping[str, tuple[int, int]] = {
    "RTX 5090": (1792, 5),
    "RTX 5080": (960, 5),
    "RTX 5070 Ti": (896, 5),
    "RTX 5060 Ti": (448, 5),
    "RTX 3090": (936, 4),
    "RTX 2080": (448, 3),
    "GTX 1060": (192, 3),
    "T1000": (160, 3),
}
_EIGHT_LANES = frozenset({"RTX 5060 Ti"})
# Runs on processors with AVX-512, by data sheets: Ryzen 9950X and 7700X, Core i9-10900X.
# Their engines were compiled where they ran, or chose their kernels there.
_WIDE_SOURCES = (
    "r/LocalLLaMA 1rei65v",
    "rtx5090-32gb-qwen3.8-flash-next.md",
    "ggml-org/llama.cpp#27742",
    "llmfit#755",
    "user posts (DDR5-5200",
)
# The mixes that the recipes have; what they lack is scaled from the nearest.
_NEAREST_MIX = {"IQ3": "Q2_K"}


@dataclass(frozen=True, slots=True)
class Row:
    """One run.

    Attributes:
        ram_is: "measured", "nominal" (from the modules' speed), "inferred" (from what the
            processor takes), or "" where RAM does not matter.
        host_layers: blocks whose experts are in RAM.
        prefill, decode: tokens per second; None where not stated.
    """

    id: int
    gpu: str
    gpus: int
    ram_gb_s: float
    ram_is: str
    cores: int
    model: str
    mix: str
    file_gib: float
    host_layers: int
    kv: str
    depth: int
    ubatch: int
    prefill: float | None
    decode: float | None
    source: str

    @property
    def kind(self) -> str:
        """The class of hardware use."""
        if self.ram_is == "inferred":
            return "RAM speed inferred"
        if not self.gpus:
            return "no card"
        return "experts in RAM" if self.host_layers > 4 else "all on cards"


def read_rows() -> list[Row]:
    """The rows of `published.csv`, in order."""
    path = Path(__file__).with_name("published.csv")
    with path.open(encoding="utf-8", newline="") as file:
        return [_row(fields) for fields in csv.DictReader(file)]


def _row(fields: Mapping[str, str]) -> Row:
    def number(name: str) -> float | None:
        return float(fields[name]) if fields[name] else None

    return Row(
        id=int(fields["id"]),
        gpu=fields["gpu"],
        gpus=int(fields["gpus"]),
        ram_gb_s=number("ram_gb_s") or 0.0,
        ram_is=fields["ram_is"],
        cores=int(fields["cores"]),
        model=fields["model"],
        mix=fields["mix"],
        file_gib=float(fields["file_gib"]),
        host_layers=int(fields["host_layers"]),
        kv=fields["kv"],
        depth=int(fields["depth"]),
        ubatch=int(fields["ubatch"]),
        prefill=number("prefill"),
        decode=number("decode"),
        source=fields["source"],
    )


@cache
def _spec(model: str, mix: str, file_gib: float) -> ModelSpec:
    """The model with its bytes scaled to the published file's size."""
    spec = fullscale_spec(model, mix=_NEAREST_MIX.get(mix, mix))
    factor = file_gib * GIB / spec.n_bytes

    def scaled(sizes: Mapping[Role, int]) -> dict[Role, int]:
        return {role: round(n * factor) for role, n in sizes.items()}

    layers = tuple(
        replace(layer, bytes_by_role=scaled(layer.bytes_by_role)) for layer in spec.layers
    )
    by_type = {mix: spec.n_bytes} if mix in _NEAREST_MIX else spec.bytes_by_type
    return replace(
        spec, layers=layers, bytes_by_role=scaled(spec.bytes_by_role), bytes_by_type=by_type
    )


def _machine(row: Row, nominal_share: float) -> Machine:
    bandwidth = None
    if row.ram_gb_s:
        share = 1.0 if row.ram_is == "measured" else nominal_share
        bandwidth = int(row.ram_gb_s * 1e9 * share)
    devices: tuple[Gpu, ...] = ()
    if row.gpus:
        gb_s, generation = _CARDS[row.gpu]
        lanes = 8 if row.gpu in _EIGHT_LANES else 16
        gpu = Gpu(
            name=row.gpu,
            total_bytes=0,
            free_bytes=0,
            bandwidth_bytes_s=int(gb_s * 1e9),
            link=Link(generation, lanes),
            backend=Backend.CUDA,
        )
        devices = (gpu,) * row.gpus
    return Machine(
        ram_total_bytes=0,
        ram_available_bytes=0,
        num_cores=row.cores,
        num_threads=row.cores,
        devices=devices,
        ram_bandwidth_bytes_s=bandwidth,
        cpu_features=frozenset({"avx512f"} if row.source.startswith(_WIDE_SOURCES) else ()),
    )


def _placed(row: Row, spec: ModelSpec) -> Placement:
    if not row.gpus:
        return Placement()
    n_units = len(spec.layers) + 1
    units = [n_units // row.gpus] * row.gpus
    units[-1] += n_units - sum(units)
    moe = split_model(spec).moe_units
    return Placement(units=tuple(units), host_moe_units=moe[: row.host_layers])


def _settings(row: Row) -> CacheSettings:
    kv = tensor_type_named(row.kv)
    return CacheSettings(max(row.depth, row.ubatch), 1, kv, kv, row.ubatch)


def decode_per_s(row: Row, rates: Rates, nominal_share: float) -> float:
    """What the model predicts for a run."""
    spec = _spec(row.model, row.mix, row.file_gib)
    model = speed_model(spec, _machine(row, nominal_share), threads=row.cores, rates=rates)
    caches = cache_units(spec, _settings(row), row.depth)
    terms = decode_terms(model, split_model(spec), caches, _placed(row, spec), HostExperts())
    return 1 / total_s(terms)


def prefill_per_s(row: Row, rates: Rates, nominal_share: float) -> float:
    """The same for reading a prompt; copies are from pinned memory."""
    spec = _spec(row.model, row.mix, row.file_gib)
    model = speed_model(spec, _machine(row, nominal_share), threads=row.cores, rates=rates)
    host = HostExperts(HostTier.RAM, is_pinned=True)
    terms = prefill_terms(model, split_model(spec), _placed(row, spec), host, row.ubatch)
    return row.ubatch / total_s(terms)
