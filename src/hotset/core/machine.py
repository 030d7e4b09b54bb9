"""What a plan needs to know of the machine.

Everything here is a value: probes fill it in, or a description does (`core/machine_text.py`).
None always means "not known", never "none" and never zero. Bandwidths are in bytes per second.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum

from hotset.core.experience import Experience

__all__ = ["Backend", "Disk", "DiskKind", "Gpu", "GpuUser", "Link", "Machine"]


class Backend(StrEnum):
    """Through which of llama.cpp's backends an engine uses a device."""

    CUDA = "cuda"
    ROCM = "rocm"
    VULKAN = "vulkan"
    METAL = "metal"
    SYCL = "sycl"


class DiskKind(StrEnum):
    """What a file lies on. `VIRTUAL`: a virtual machine's disk, with anything behind it."""

    NVME = "nvme"
    SSD = "ssd"
    ROTATING = "rotating"
    VIRTUAL = "virtual"
    NETWORK = "network"
    WINDOWS = "windows"  # a Windows drive, seen from WSL
    MEMORY = "memory"
    UNKNOWN = "unknown"


# Bytes per second, lane and direction. Generations 1 and 2 (2.5 and 5 GT/s) send 8 bits as 10,
# generations 3 to 5 (8, 16, 32 GT/s) 128 bits as 130 (PCI Express Base Specification 1.0, 2.0,
# 3.0, 4.0, 5.0); generation 6 (64 GT/s) carries 236 bytes of transaction data in flits of 256
# (Base Specification 6.0).
_LANE_BYTES_S = {
    1: 2_500_000_000 * 8 // 10 // 8,
    2: 5_000_000_000 * 8 // 10 // 8,
    3: 8_000_000_000 * 128 // 130 // 8,
    4: 16_000_000_000 * 128 // 130 // 8,
    5: 32_000_000_000 * 128 // 130 // 8,
    6: 64_000_000_000 * 236 // 256 // 8,
}


@dataclass(frozen=True, slots=True)
class Link:
    """How a card is plugged in: what card and slot can do together, not what they idle at.

    Attributes:
        pcie_generation: 1 to 6.
        lanes: 1 to 16.
    """

    pcie_generation: int
    lanes: int

    @property
    def limit_bytes_s(self) -> int:
        """What the wires carry in one direction, before packet headers.

        A transfer reaches some 80 to 90 % of it. Raises KeyError for a generation not in 1 to 6.
        """
        return _LANE_BYTES_S[self.pcie_generation] * self.lanes


@dataclass(frozen=True, slots=True)
class GpuUser:
    """A process that holds memory of a device, or a kind of use such as "desktop".

    `used_bytes` and `pid` are None where the driver does not say.
    """

    name: str
    used_bytes: int | None = None
    pid: int | None = None


@dataclass(frozen=True, slots=True)
class Gpu:
    """A device that an engine can place parts of a model on.

    Attributes:
        name: the product, such as "AMD Radeon RX 9070 XT".
        total_bytes: memory that the engine can use on it. For a device that shares RAM this is
            part of the machine's RAM, not beside it.
        free_bytes: what is free of it now; never more than `total_bytes`.
        vendor: "nvidia", "amd", "intel", "apple" or "" where not known.
        is_integrated: part of the processor.
        shares_ram: its memory is the machine's RAM: what it takes is gone there.
        bandwidth_bytes_s: of its own memory; for one that shares RAM None means that of the RAM.
        link: None for an integrated device, and where not known.
        copy_bytes_s: large copies from pinned RAM to the device, as measured; None if they were
            not.
        backend: None where no engine has it.
        engine_name: the engine's own name for it ("CUDA0", "Vulkan1"); "" where no engine has it.
        bus_id: PCI address "0000:03:00.0"; "" where not known.
        used_by: who holds what is not free, as far as the driver says, largest first.
    """

    name: str
    total_bytes: int
    free_bytes: int
    vendor: str = ""
    is_integrated: bool = False
    shares_ram: bool = False
    bandwidth_bytes_s: int | None = None
    link: Link | None = None
    copy_bytes_s: int | None = None
    backend: Backend | None = None
    engine_name: str = ""
    bus_id: str = ""
    used_by: tuple[GpuUser, ...] = ()

    @property
    def used_bytes(self) -> int:
        """What others hold now."""
        return self.total_bytes - self.free_bytes


@dataclass(frozen=True, slots=True)
class Disk:
    """Where the model file lies.

    Attributes:
        kind: what it is.
        read_bytes_s: large reads in sequence, past the page cache.
        random_read_bytes_s: reads of 512 KiB at random places, several at once, past the page
            cache: what an expert store sees.
    """

    kind: DiskKind = DiskKind.UNKNOWN
    read_bytes_s: int | None = None
    random_read_bytes_s: int | None = None


@dataclass(frozen=True, slots=True)
class Machine:
    """One computer, or the part of it that a container may use.

    Attributes:
        ram_total_bytes: physical memory, or the cgroup's limit where that is lower.
        ram_available_bytes: what can be taken now without swapping: free memory and the page
            cache that gives way, below the cgroup's limit.
        num_cores: physical processor cores that this process may use.
        num_threads: logical processors that this process may use.
        devices: graphics devices, in the engine's order where an engine has been asked.
        disk: behind the model file; None where no file was named or nothing is known.
        ram_bandwidth_bytes_s: reads from RAM with all cores.
        num_performance_cores: the fast ones among `num_cores`, where there are two kinds.
        swap_total_bytes, swap_free_bytes: swap space.
        lockable_bytes: how much one process may lock in RAM; all of the RAM without a limit.
        cpu_name: as the system gives it; "" where not known.
        cpu_features: instruction sets that matter to llama.cpp, in lower case ("avx2").
        experience: with the model and the engine that a plan is made for; empty for a machine that
            was only described.
    """

    ram_total_bytes: int
    ram_available_bytes: int
    num_cores: int
    num_threads: int
    devices: tuple[Gpu, ...] = ()
    disk: Disk | None = None
    ram_bandwidth_bytes_s: int | None = None
    num_performance_cores: int | None = None
    swap_total_bytes: int | None = None
    swap_free_bytes: int | None = None
    lockable_bytes: int | None = None
    cpu_name: str = ""
    cpu_features: frozenset[str] = frozenset()
    experience: Experience = field(default_factory=Experience, hash=False)
