"""How long a token takes: the bytes that it reads of every tier, over what that tier delivers.

Decode is reading: each token reads the trunk once and the experts that it is routed to. Layers run
one after another, so times of devices and of RAM add up. Besides, each block costs its launches,
and each block whose experts are elsewhere a round trip. Prompts are computed in batches: experts in
RAM are copied to the card once per batch, and the rest is arithmetic.

The constants in `Rates` are fitted to published runs of other people (`python -m
benchmarks.planner speed` prints how well); everything else is the machine's own figures.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from hotset.core.hits import HitCurve
from hotset.core.machine import Gpu, Machine
from hotset.core.modelspec import ModelSpec
from hotset.core.parts import CacheUnits, Parts
from hotset.core.placement import Placement

__all__ = [
    "FITTED",
    "MEASURED",
    "NOMINAL_DEPTH_TOKENS",
    "Estimate",
    "HostExperts",
    "HostTier",
    "Rates",
    "SpeedModel",
    "Term",
    "decode_terms",
    "estimate",
    "prefill_terms",
    "speed_model",
    "total_s",
]

NOMINAL_DEPTH_TOKENS = 4096
"""Tokens in the context for which speeds are stated."""

MEASURED = "measured"
"""The source of a rate that was measured on this machine."""

# Assumed where nothing was measured or described; a plan says so by a wider range.
_ASSUMED_RAM_BYTES_S = 40_000_000_000  # two channels of DDR4-3200, four fifths of their 51 GB/s
_ASSUMED_VRAM_BYTES_S = 300_000_000_000
_ASSUMED_LINK_BYTES_S = 12_000_000_000  # PCIe 3.0 with 16 lanes, or 4.0 with 8
_ASSUMED_DISK_BYTES_S = 1_000_000_000
_LINK_SHARE = 0.8  # of what the wires carry, from pinned memory
_COPY_SHARE = 0.5  # of what RAM delivers: 18 GB/s where reads give 44.5 GB/s, 20 to 25 at most
_PAGEABLE_SHARE = 0.35  # from mapped files: 6 to 8 GB/s where pinned memory gives 20 to 25
_SLOW_TYPES = ("IQ1", "IQ2", "IQ3")  # bound by decoding on a CPU, not by reading
# What an engine built for AVX-512 gets through of these types, over one built for AVX2. Measured
# without repacking on one machine: Q4_K 1.21, Q5_K 1.30, IQ4_XS 1.19; 0.91 to 1.09 for Q4_0, Q6_K,
# Q8_0, MXFP4, IQ3_XXS and IQ2_XXS, whose kernels gain nothing by it.
_WIDE_TYPES = ("Q4_K", "Q5_K", "IQ4_XS")
_WIDE_FACTOR = 1.2
_WIDE = "avx512f"
# Tokens that are computed in the time in which one token's weights are read.
_DEVICE_REUSE = 10.0
_CPU_REUSE = 4.5
_SMALL_READ_SHARE = 0.1  # page faults of 4 KiB against reads of whole experts


@dataclass(frozen=True, slots=True)
class Rates:
    """Constants of the model.

    Attributes:
        vram_share: of a device's bandwidth, reached by decode.
        unit_s: per block on a device: launching its kernels.
        ram_share: of the RAM's measured bandwidth, reached by the CPU's products.
        core_bytes_s: of weights that one core gets through.
        slow_core_bytes_s: the same for types that are slow to decode (IQ1 to IQ3).
        crossing_s: per block whose experts the CPU computes while the rest is on a device.
        cache_unit_s: per block whose experts come through the engine's own cache: it waits for the
            router's choice on the host.
    """

    vram_share: float
    unit_s: float
    ram_share: float
    core_bytes_s: float
    slow_core_bytes_s: float
    crossing_s: float
    cache_unit_s: float


FITTED = Rates(
    vram_share=0.50,
    unit_s=126e-6,
    ram_share=0.95,
    core_bytes_s=3.8e9,
    slow_core_bytes_s=1.5e9,
    crossing_s=31e-6,
    cache_unit_s=250e-6,
)
"""The first three and `crossing_s` are fitted. A core's rates are what published runs with many
memory channels or slow types reached (4 and 1.5 GB/s). The wait of the engine's cache lies
between the 1.1 ms that one implementation measured and the some microseconds of one within a graph;
nobody has published the engine's own."""


class HostTier(StrEnum):
    """What holds the experts that no device has."""

    RAM = "RAM"
    STORE = "expert store"
    PAGES = "page cache"


@dataclass(frozen=True, slots=True)
class HostExperts:
    """Weights outside of devices: how much RAM there is for those that may be on the disk."""

    tier: HostTier = HostTier.RAM
    ram_bytes: int = 0
    is_pinned: bool = False


@dataclass(frozen=True, slots=True)
class Term:
    """One summand of a time, with what it was computed from.

    Attributes:
        n_bytes: read or copied; 0 for a term that counts events.
        bytes_s: at which rate; 0 for such a term.
        count, each_s: events, and how long one takes; 0 for a term of bytes.
        source: in words, where the rate comes from if that differs from machine to machine.
    """

    what: str
    n_bytes: int = 0
    bytes_s: float = 0.0
    count: int = 0
    each_s: float = 0.0
    source: str = ""

    @property
    def seconds(self) -> float:
        reading = self.n_bytes / self.bytes_s if self.n_bytes else 0.0
        return reading + self.count * self.each_s


@dataclass(frozen=True, slots=True)
class Estimate:
    """A rate per second, with the range that it is expected in."""

    low: float
    likely: float
    high: float


@dataclass(frozen=True, slots=True)
class SpeedModel:
    """The rates of one machine for one model, bytes per second.

    Attributes:
        device_bytes_s: what decode gets of each device's memory.
        host_bytes_s: what the CPU gets through.
        link_bytes_s: from pinned RAM to the first device.
        link_source: where that comes from, in words; `MEASURED` if it was measured.
        disk_bytes_s: reads of whole experts.
        hits: how often a cache of the model's experts does.
        assumed: figures that nobody has measured, by name.
    """

    device_bytes_s: tuple[float, ...]
    host_bytes_s: float
    link_bytes_s: float
    link_source: str
    disk_bytes_s: float
    hits: HitCurve
    rates: Rates
    assumed: tuple[str, ...]


def speed_model(
    spec: ModelSpec, machine: Machine, *, threads: int, rates: Rates = FITTED
) -> SpeedModel:
    """The machine's rates, with assumptions where a figure is not known."""
    assumed = []
    ram = machine.ram_bandwidth_bytes_s
    if ram is None:
        assumed.append("RAM bandwidth")
        ram = _ASSUMED_RAM_BYTES_S
    devices = []
    for gpu in machine.devices:
        own = ram if gpu.shares_ram and gpu.bandwidth_bytes_s is None else gpu.bandwidth_bytes_s
        if own is None:
            assumed.append(f"memory bandwidth of {gpu.name}")
            own = _ASSUMED_VRAM_BYTES_S
        devices.append(own * rates.vram_share)
    disk = machine.disk
    disk_bytes_s = disk and (disk.random_read_bytes_s or disk.read_bytes_s)
    link_bytes_s, link_source = _link(machine.devices, ram)
    per_core = _core_bytes_s(spec, rates, is_wide=_WIDE in machine.cpu_features)
    return SpeedModel(
        device_bytes_s=tuple(devices),
        host_bytes_s=min(ram * rates.ram_share, threads * per_core),
        link_bytes_s=link_bytes_s,
        link_source=link_source,
        disk_bytes_s=disk_bytes_s or _ASSUMED_DISK_BYTES_S,
        hits=spec.hits,
        rates=rates,
        assumed=tuple(assumed),
    )


def _core_bytes_s(spec: ModelSpec, rates: Rates, *, is_wide: bool) -> float:
    """What one core gets through of a model's mix of types.

    Args:
        is_wide: the engine computes with AVX-512.
    """
    total = sum(spec.bytes_by_type.values())
    if not total:
        return rates.core_bytes_s
    seconds = 0.0
    for name, n_bytes in spec.bytes_by_type.items():
        each = rates.slow_core_bytes_s if name.startswith(_SLOW_TYPES) else rates.core_bytes_s
        each *= _WIDE_FACTOR if is_wide and name.startswith(_WIDE_TYPES) else 1.0
        seconds += n_bytes / each
    return total / seconds


def _link(devices: tuple[Gpu, ...], ram_bytes_s: int) -> tuple[float, str]:
    """From pinned RAM to the first device, and where that comes from; a device that shares RAM
    copies within it."""
    first = devices[0] if devices else None
    if first is not None and first.copy_bytes_s:
        return first.copy_bytes_s, MEASURED
    within = ram_bytes_s * _COPY_SHARE, "half of what RAM delivers"
    if first is None or first.shares_ram:
        return within
    if first.link is None:
        wires, of_what = _ASSUMED_LINK_BYTES_S, "PCIe 3.0 x16, assumed"
    else:
        wires = first.link.limit_bytes_s
        of_what = f"PCIe {first.link.pcie_generation}.0 x{first.link.lanes}"
    return min((wires * _LINK_SHARE, f"{_LINK_SHARE:.0%} of {of_what}"), within)


def decode_terms(
    model: SpeedModel,
    parts: Parts,
    caches: CacheUnits,
    placement: Placement,
    host: HostExperts,
) -> tuple[Term, ...]:
    """The time of one token, term by term."""
    rates = model.rates
    terms = []
    hosted = frozenset(placement.host_moe_units)
    is_cached = placement.moe_cache_bytes > 0
    for index, units in enumerate(placement.ranges(parts.n_units)):
        if not units:
            continue
        own = [unit for unit in units if unit not in hosted or is_cached]
        n_bytes = sum(parts.trunk_bytes[unit] + caches.token_bytes[unit] for unit in units)
        n_bytes += sum(parts.token_expert_bytes[unit] for unit in own)
        n_bytes += parts.output_copy_bytes if parts.output_unit in units else 0
        name = f"device {index}"
        terms.append(Term(f"{name}: reads", n_bytes, model.device_bytes_s[index]))
        terms.append(Term(f"{name}: launches", count=len(units), each_s=rates.unit_s))
    first = parts.n_units - placement.n_offloaded
    trunk = sum(parts.trunk_bytes[unit] + caches.token_bytes[unit] for unit in range(first))
    if parts.output_unit < first:
        trunk += parts.output_copy_bytes
    routed = [*range(first), *(placement.host_moe_units if not is_cached else ())]
    experts = sum(parts.token_expert_bytes[unit] for unit in routed)
    if trunk + experts:
        terms.append(Term("RAM: reads", trunk + experts, model.host_bytes_s))
    if hosted and not is_cached:
        terms.append(Term("round trips", count=len(hosted), each_s=rates.crossing_s))
    if is_cached:
        terms += _cache_terms(model, parts, placement, host)
    return (*terms, *_disk_terms(model, parts, placement, host, first))


def _cache_terms(
    model: SpeedModel, parts: Parts, placement: Placement, host: HostExperts
) -> list[Term]:
    """The engine's own cache: a wait for each block, and an upload for each miss."""
    units = placement.host_moe_units
    held = sum(parts.expert_bytes[unit] for unit in units)
    hits = model.hits.rate(placement.moe_cache_bytes / held)
    missed = sum(parts.token_expert_bytes[unit] for unit in units) * (1 - hits)
    rate = model.link_bytes_s * (1 if host.is_pinned else _PAGEABLE_SHARE)
    return [
        Term("expert cache: waits", count=len(units), each_s=model.rates.cache_unit_s),
        Term("expert cache: uploads of misses", int(missed), rate, source=model.link_source),
    ]


def _disk_terms(
    model: SpeedModel, parts: Parts, placement: Placement, host: HostExperts, first: int
) -> list[Term]:
    """What a token reads from the disk, where RAM does not hold everything.

    The store reads whole experts and reads ahead while others are computed: half of the reading
    hides behind the CPU's work. The page cache reads small pieces, and nothing hides.
    """
    if host.tier is HostTier.RAM:
        return []
    routed = [*range(first), *placement.host_moe_units]
    held = sum(parts.expert_bytes[unit] for unit in routed)
    per_token = sum(parts.token_expert_bytes[unit] for unit in routed)
    if host.tier is HostTier.STORE:
        missed = per_token * (1 - model.hits.rate(host.ram_bytes / held))
        exposed = missed / model.disk_bytes_s - per_token / model.host_bytes_s / 2
        shown = max(exposed, missed / model.disk_bytes_s / 2)
        return [Term("disk: reads of misses", int(missed), missed / shown)] if missed else []
    # Blocks that are read in turn push each other out: without experts nothing is ever there.
    trunk = parts.ram_bytes + sum(parts.trunk_bytes[:first])
    share = max(0, host.ram_bytes - trunk) / held if held else 0.0
    missed = per_token * (1 - model.hits.rate(share))
    if host.ram_bytes < trunk:
        missed += sum(parts.trunk_bytes[:first])
    return [Term("disk: page faults", int(missed), model.disk_bytes_s * _SMALL_READ_SHARE)]


def prefill_terms(
    model: SpeedModel,
    parts: Parts,
    placement: Placement,
    host: HostExperts,
    ubatch_tokens: int,
) -> tuple[Term, ...]:
    """The time of one batch of `ubatch_tokens` prompt tokens, term by term."""
    first = parts.n_units - placement.n_offloaded
    per_token = [
        trunk + routed
        for trunk, routed in zip(parts.trunk_bytes, parts.token_expert_bytes, strict=True)
    ]
    on_disk = host.tier is not HostTier.RAM
    routed = [*range(first), *placement.host_moe_units]
    held = sum(parts.expert_bytes[unit] for unit in routed)
    used = sum(parts.token_expert_bytes[unit] for unit in routed)
    touched = int(held * (1 - (1 - used / held) ** ubatch_tokens)) if held else 0
    terms = []
    if not placement.n_offloaded:
        rate = model.host_bytes_s * _CPU_REUSE
        terms.append(Term("CPU: arithmetic", sum(per_token) * ubatch_tokens, rate))
    else:
        for index, units in enumerate(placement.ranges(parts.n_units)):
            n_bytes = sum(per_token[unit] for unit in units) * ubatch_tokens
            if index == 0:  # the engine computes large batches of what is in RAM there
                n_bytes += sum(per_token[:first]) * ubatch_tokens
            if n_bytes:
                rate = model.device_bytes_s[index] * _DEVICE_REUSE
                terms.append(Term(f"device {index}: arithmetic", n_bytes, rate))
        copied = touched + sum(parts.trunk_bytes[:first])
        if copied:
            rate = model.link_bytes_s * (1 if host.is_pinned else _PAGEABLE_SHARE)
            term = Term("copies to the device", copied, rate, source=model.link_source)
            terms.append(term)
    if on_disk:
        missing = int(touched * max(0.0, 1 - host.ram_bytes / held)) if held else 0
        terms.append(Term("disk: reads", missing, model.disk_bytes_s))
    return tuple(terms)


def total_s(terms: tuple[Term, ...]) -> float:
    return sum(term.seconds for term in terms)


# Half of the published runs that the constants were not fitted to lie within this factor of the
# model; each assumption widens the range.
_FACTOR = 1.3
_ASSUMED_FACTOR = 1.25
_TIER_FACTOR = 1.3


def estimate(
    model: SpeedModel, per_second: float, placement: Placement, host: HostExperts
) -> Estimate:
    """`per_second` with its range: wider for assumed figures and for guessed hit rates."""
    factor = _FACTOR * _ASSUMED_FACTOR ** len(model.assumed)
    if placement.moe_cache_bytes or host.tier is not HostTier.RAM:
        factor *= _TIER_FACTOR
    return Estimate(per_second / factor, per_second, per_second * factor)
