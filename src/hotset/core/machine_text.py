"""A machine in words: `--gpu 16GiB --gpu-used 1.5GiB --ram 32GiB --pcie 4x16 --disk 3GB/s`.

Every value needs its unit, since a forgotten one is the likeliest slip: nobody means 32 bytes of
RAM. What is not given is taken from a base machine; without one, from the defaults named below.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from fractions import Fraction

from hotset.core.errors import ConfigProblem
from hotset.core.gpus import known_gpu, vendor_of
from hotset.core.machine import Backend, Disk, Gpu, Link, Machine
from hotset.core.units import GIB, format_bytes, parse_bytes

__all__ = [
    "MachineWords",
    "described_machine",
    "numbered",
    "read_count",
    "read_link",
    "read_rate",
    "read_size",
    "usual_backend",
]

# The RAM that a system with a desktop uses by itself, where nothing is said: an eighth, 4 GiB at
# most.
_USED_SHARE = 8
_USED_MOST_BYTES = 4 * GIB
# Of a machine of which nothing is known. Most desktop processors of recent years have 6 to 8.
_NUM_CORES = 8

# Larger than any computer: a slip of the unit.
_MOST_BYTES = 1 << 50
_MOST_BYTES_S = 10**15
_MOST_CORES = 4096

_RATE = re.compile(r"\s*(\d{1,18}(?:\.\d{1,18})?)\s*([kmgt])(i?)b\s*/\s*s(?:ec)?\s*", re.IGNORECASE)
_POWER = {"k": 1, "m": 2, "g": 3, "t": 4}
_LINK = re.compile(r"\s*(?:pcie)?\s*(?:gen)?\s*(\d)(?:\.0)?\s*x\s*(\d{1,2})\s*", re.IGNORECASE)
_LANES = frozenset({1, 2, 4, 8, 16})

_USUAL_BACKEND = {"nvidia": Backend.CUDA, "apple": Backend.METAL}
_DEVICE_NAMES = {
    Backend.CUDA: "CUDA",
    Backend.ROCM: "ROCm",
    Backend.VULKAN: "Vulkan",
    Backend.METAL: "MTL",
    Backend.SYCL: "SYCL",
}


@dataclass(frozen=True, slots=True)
class MachineWords:
    """What was said of a machine, as it was written; None and empty for what was not.

    The n-th of `gpu_used`, `pcie` and `gpu_bandwidth` belongs to the n-th card.

    Attributes:
        gpu: each ``16GiB``, ``16GiB,RX 9070 XT`` or ``8GiB,Radeon 780M,shared``; or ``none`` alone.
        gpu_used: each the memory that others hold on the card.
        pcie: each ``4x16``: generation and lanes.
        gpu_bandwidth: each the bandwidth of the card's own memory, ``640GB/s``.
        ram, ram_used: sizes.
        ram_bandwidth, disk: rates; `disk` is that of large reads.
        cores, threads: physical cores and logical processors.
    """

    gpu: tuple[str, ...] = ()
    gpu_used: tuple[str, ...] = ()
    pcie: tuple[str, ...] = ()
    gpu_bandwidth: tuple[str, ...] = ()
    ram: str | None = None
    ram_used: str | None = None
    ram_bandwidth: str | None = None
    disk: str | None = None
    cores: int | None = None
    threads: int | None = None


def described_machine(words: MachineWords, base: Machine | None = None) -> Machine:
    """The machine that is meant.

    Args:
        base: whatever is not said is as it is there: this machine, or one from a file.

    Raises:
        ConfigProblem: a value that cannot be meant, by its option; or no RAM without a base.
    """
    if base is None:
        base = _blank(words)
    machine = _with_ram(words, base)
    machine = _with_cores(words, machine)
    if words.cores is not None:  # another processor: nobody has said what it can do
        machine = replace(machine, cpu_features=frozenset())
    if words.ram_bandwidth is not None:
        rate = read_rate(words.ram_bandwidth, "--ram-bw")
        machine = replace(machine, ram_bandwidth_bytes_s=rate)
    if words.disk is not None:
        kind = machine.disk.kind if machine.disk else Disk().kind
        machine = replace(machine, disk=Disk(kind, read_rate(words.disk, "--disk")))
    return replace(machine, devices=_devices(words, machine))


def _blank(words: MachineWords) -> Machine:
    if words.ram is None:
        raise ConfigProblem("--ram: how much RAM the machine has is missing; give it, like 32GiB")
    total = read_size(words.ram, "--ram")
    used = min(total // _USED_SHARE, _USED_MOST_BYTES)
    return Machine(total, total - used, _NUM_CORES, _NUM_CORES)


def _with_ram(words: MachineWords, base: Machine) -> Machine:
    total, used = base.ram_total_bytes, base.ram_total_bytes - base.ram_available_bytes
    if words.ram is not None:
        total = read_size(words.ram, "--ram")
        used = min(used, total)
    if words.ram_used is not None:
        used = read_size(words.ram_used, "--ram-used", may_be_zero=True)
        _check_used(used, total, "--ram-used", "RAM")
    lockable = base.lockable_bytes
    if lockable is not None:
        # Without a limit it stays without one.
        lockable = total if lockable >= base.ram_total_bytes else min(lockable, total)
    return replace(
        base, ram_total_bytes=total, ram_available_bytes=total - used, lockable_bytes=lockable
    )


def _with_cores(words: MachineWords, base: Machine) -> Machine:
    if words.cores is None and words.threads is None:
        return base
    cores = base.num_cores if words.cores is None else read_count(words.cores, "--cores")
    if words.threads is None:
        # As many threads to a core as on the base.
        threads = cores * base.num_threads // base.num_cores
        return replace(base, num_cores=cores, num_threads=threads, num_performance_cores=None)
    threads = read_count(words.threads, "--threads")
    if words.cores is None:
        cores = min(cores, threads)
    if threads < cores:
        raise ConfigProblem(
            f"--threads: {threads} for {cores} cores; every core runs one thread or more"
        )
    return replace(base, num_cores=cores, num_threads=threads, num_performance_cores=None)


def _devices(words: MachineWords, machine: Machine) -> tuple[Gpu, ...]:
    if words.gpu == ("none",):
        devices: list[Gpu] = []
    elif words.gpu:
        devices = [_card(text, machine.ram_total_bytes) for text in words.gpu]
    else:
        devices = [_within_ram(gpu, machine.ram_total_bytes) for gpu in machine.devices]
    for option, texts in (
        ("--gpu-used", words.gpu_used),
        ("--pcie", words.pcie),
        ("--gpu-bw", words.gpu_bandwidth),
    ):
        if len(texts) > len(devices):
            there = {0: "is none", 1: "is one"}.get(len(devices), f"are {len(devices)}")
            raise ConfigProblem(f"{option}: given {len(texts)} times, once per card; there {there}")
    for n, text in enumerate(words.gpu_used):
        used = read_size(text, "--gpu-used", may_be_zero=True)
        total = devices[n].total_bytes
        _check_used(used, total, "--gpu-used", "memory")
        devices[n] = replace(devices[n], free_bytes=total - used, used_by=())
    for n, text in enumerate(words.pcie):
        devices[n] = replace(devices[n], link=read_link(text, "--pcie"))
    for n, text in enumerate(words.gpu_bandwidth):
        devices[n] = replace(devices[n], bandwidth_bytes_s=read_rate(text, "--gpu-bw"))
    return numbered(devices)


def _card(text: str, ram_bytes: int) -> Gpu:
    if text == "none":
        raise ConfigProblem("--gpu: 'none' beside other cards; give it alone, or leave it out")
    size, *words = (word.strip() for word in text.split(","))
    total = read_size(size, "--gpu")
    is_said_shared = words[-1:] == ["shared"]
    names = words[:-1] if is_said_shared else words
    if len(names) > 1:
        raise ConfigProblem(
            f"--gpu: '{names[-1]}' is no property of a card; after size and name there can only be"
            " 'shared', for one that uses the machine's RAM"
        )
    name = names[0] if names else ""
    known = known_gpu(name, total)
    shares_ram = is_said_shared or (known is not None and known.is_integrated)
    if shares_ram and total > ram_bytes:
        raise ConfigProblem(
            f"--gpu: {format_bytes(total)} shared with {format_bytes(ram_bytes)} of RAM; it can be"
            " no more than that"
        )
    vendor = vendor_of(name)
    return Gpu(
        name=name or "graphics card",
        total_bytes=total,
        free_bytes=total,
        vendor=vendor,
        is_integrated=shares_ram,
        shares_ram=shares_ram,
        bandwidth_bytes_s=known.bandwidth_bytes_s if known else None,
        backend=usual_backend(vendor),
    )


def usual_backend(vendor: str) -> Backend:
    """The backend by which llama.cpp is most often used on a maker's cards; Vulkan runs on all."""
    return _USUAL_BACKEND.get(vendor, Backend.VULKAN)


def _within_ram(gpu: Gpu, ram_bytes: int) -> Gpu:
    """A device of the base in a machine that may have less RAM than the base."""
    if not gpu.shares_ram or gpu.total_bytes <= ram_bytes:
        return gpu
    return replace(gpu, total_bytes=ram_bytes, free_bytes=min(gpu.free_bytes, ram_bytes))


def numbered(devices: Sequence[Gpu]) -> tuple[Gpu, ...]:
    """Devices that have a backend and no name in an engine get the one that llama.cpp would give:
    "CUDA0", "Vulkan1", counted for each backend from 0."""
    taken = {gpu.engine_name for gpu in devices}
    done = []
    for gpu in devices:
        if gpu.backend and not gpu.engine_name:
            prefix = _DEVICE_NAMES[gpu.backend]
            name = next(f"{prefix}{n}" for n in range(len(devices)) if f"{prefix}{n}" not in taken)
            taken.add(name)
            done.append(replace(gpu, engine_name=name))
        else:
            done.append(gpu)
    return tuple(done)


def read_size(text: str, what: str, *, may_be_zero: bool = False) -> int:
    """Bytes out of ``16GiB``. Raises ConfigProblem, naming `what`, for what is no size."""
    _refuse_negative(text, what)
    if re.fullmatch(r"\s*[\d.]+\s*", text) and not (may_be_zero and text.strip() == "0"):
        raise ConfigProblem(f"{what}: '{text}' has no unit; write it like {text.strip()}GiB")
    n_bytes = parse_bytes(text, what=what)
    _check_range(n_bytes, _MOST_BYTES, text, what, may_be_zero=may_be_zero)
    return n_bytes


def read_rate(text: str, what: str) -> int:
    """Bytes per second out of ``60GB/s``. Raises ConfigProblem, naming `what`, for what is none."""
    _refuse_negative(text, what)
    match = _RATE.fullmatch(text)
    if match is None:
        raise ConfigProblem(f"{what}: '{text}' is no rate; write it like 60GB/s or 500MB/s")
    number, prefix, binary = match.groups()
    base = 1024 if binary else 1000
    rate = int(Fraction(number) * base ** _POWER[prefix.lower()])
    _check_range(rate, _MOST_BYTES_S, text, what)
    return rate


def read_link(text: str, what: str) -> Link:
    """A slot out of ``4x16``, ``4.0x16``. Raises ConfigProblem, naming `what`, for what is none."""
    match = _LINK.fullmatch(text)
    if match is None:
        raise ConfigProblem(
            f"{what}: '{text}' is no slot; write generation and lanes, like 4x16 for PCIe 4.0 x16"
        )
    generation, lanes = int(match[1]), int(match[2])
    if not 1 <= generation <= 6:
        raise ConfigProblem(f"{what}: '{text}': there is no PCIe {generation}.0; 1 to 6 are known")
    if lanes not in _LANES:
        raise ConfigProblem(f"{what}: '{text}': a slot has 1, 2, 4, 8 or 16 lanes, not {lanes}")
    return Link(generation, lanes)


def read_count(number: int, what: str) -> int:
    """A number of cores or threads. Raises ConfigProblem for less than 1 and for absurdly many."""
    if not 1 <= number <= _MOST_CORES:
        raise ConfigProblem(f"{what}: {number} is out of range; 1 to {_MOST_CORES} are possible")
    return number


def _refuse_negative(text: str, what: str) -> None:
    if text.lstrip().startswith(("-", "\N{MINUS SIGN}")):
        raise ConfigProblem(f"{what}: '{text}' is negative; write it like 16GiB or 60GB/s")


def _check_range(
    number: int, most: int, text: str, what: str, *, may_be_zero: bool = False
) -> None:
    if number == 0 and not may_be_zero:
        raise ConfigProblem(f"{what}: '{text}' is nothing; leave it out if it is not known")
    if number > most:
        raise ConfigProblem(f"{what}: '{text}' is more than any computer has; is the unit right?")


def _check_used(used: int, total: int, what: str, kind: str) -> None:
    if used > total:
        raise ConfigProblem(
            f"{what}: {format_bytes(used)} cannot be in use of {format_bytes(total)} of {kind}"
        )
