"""What goes into a plan, and what comes out of it."""

from __future__ import annotations

from dataclasses import dataclass, field

from hotset.core.placement import DeviceBytes, Placement
from hotset.core.speed import Estimate, HostExperts, Term
from hotset.core.units import MIB

__all__ = ["ENGINE_BYTES", "Footprint", "Plan", "Speed", "Wishes"]

# An engine process before it has loaded anything: 105 MiB of program, 60 MiB of libraries and
# heap, measured with xllamacpp 2026.10.
ENGINE_BYTES = 170 * MIB


@dataclass(frozen=True, slots=True, kw_only=True)
class Wishes:
    """What the user asked for. None means: the best that fits. What is given is law.

    Attributes:
        context_tokens: per slot.
        kv_type: for K and V.
        slots: requests at the same time.
        ubatch_tokens: physical prefill batch.
        threads: compute threads.
        is_serving: prompts of several conversations come and go, so that a prompt cache pays.
        ram_bytes: RAM for everything together.
        reserve_bytes: memory that is left alone on each device.
        cpu_moe_layers: blocks whose routed experts stay in RAM, counted from the first.
        has_vision: False leaves the projector out.
        can_store: the engine takes the expert store.
        has_moe_cache: the engine has an expert cache of its own (`--moe-cache-mib`).
    """

    context_tokens: int | None = None
    kv_type: str | None = None
    slots: int = 1
    ubatch_tokens: int | None = None
    threads: int | None = None
    is_serving: bool = False
    ram_bytes: int | None = None
    reserve_bytes: int | None = None
    cpu_moe_layers: int | None = None
    has_vision: bool = True
    can_store: bool = False
    has_moe_cache: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Footprint:
    """Bytes of one start, by class: RAM, then every device.

    `weights_bytes` are mapped: they can be dropped and read again. Where the load mode is "none"
    they are read into memory instead. MTP blocks are not counted, the engine skips them. With the
    expert store they are only what is no expert, and `expert_cache_bytes` is the store's. What
    devices take that share RAM is counted with the devices, and in `shared_bytes` once more.
    `store_compute_bytes` are a part of `compute_bytes`: what the store's device takes for a batch.
    """

    weights_bytes: int
    expert_cache_bytes: int = 0
    cache_bytes: int
    compute_bytes: int
    store_compute_bytes: int = 0
    prompt_cache_bytes: int
    projector_bytes: int = 0
    shared_bytes: int = 0
    engine_bytes: int = ENGINE_BYTES
    devices: tuple[DeviceBytes, ...] = ()

    @property
    def fixed_bytes(self) -> int:
        """What must be in RAM all the time."""
        fixed = self.cache_bytes + self.compute_bytes + self.prompt_cache_bytes
        fixed += self.projector_bytes + self.shared_bytes
        return fixed + self.expert_cache_bytes + self.engine_bytes

    @property
    def total_bytes(self) -> int:
        """All of RAM."""
        return self.fixed_bytes + self.weights_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Speed:
    """Predictions, in tokens per second, and the sums that they come from.

    Attributes:
        cost_s: what placements are compared by, smaller is better: seconds of a token written a
            quarter into the context, and a part of those of one read.
        decode_terms: make the time of one token written.
        prefill_terms: make the time of one batch of a prompt.
        assumed: figures of the machine that nobody has measured.
        num_answers: of this model on this machine, by which the rates are corrected.
        num_models: that have run here and correct them, where this one has not.
    """

    decode: Estimate
    prefill: Estimate
    cost_s: float
    decode_terms: tuple[Term, ...] = ()
    prefill_terms: tuple[Term, ...] = ()
    assumed: tuple[str, ...] = ()
    num_answers: int = 0
    num_models: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The decision: what to start with, what it takes, and why.

    Attributes:
        placement: what is on which device; empty where no device is used.
        host: what holds the experts that no device has.
        load_mode: "mmap", or "none": the weights in RAM are read into memory that a card can copy
            from at full speed.
        is_larger_than_ram: the weights do not fit beside the fixed part; parts of the file are
            read again and again.
        is_repacked: whether the engine may keep weights in a layout that computes faster. It is a
            copy in memory that cannot be dropped, so only where the weights fit (llama.cpp makes
            10.9 GiB of it for an 18.4 GiB Qwen3-30B-A3B in Q4_K).
        reasons: one line for each thing that was given up.
    """

    context_tokens: int
    kv_type: str
    slots: int
    ubatch_tokens: int
    threads: int
    prompt_cache_mib: int
    checkpoints: int
    footprint: Footprint
    is_larger_than_ram: bool
    is_repacked: bool
    reasons: tuple[str, ...]
    speed: Speed
    placement: Placement = field(default_factory=Placement)
    host: HostExperts = field(default_factory=HostExperts)
    load_mode: str = "mmap"

    @property
    def has_devices(self) -> bool:
        return self.placement.n_offloaded > 0
