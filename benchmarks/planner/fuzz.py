"""Random machines and models: no crash, no budget broken, and more memory never hurts."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import replace
from random import Random

from hotset.core.errors import HotsetError
from hotset.core.machine import Backend, Disk, DiskKind, Gpu, GpuUser, Link, Machine
from hotset.core.memory import cache_bytes
from hotset.core.modelspec import ModelSpec, Role
from hotset.core.parts import split_model
from hotset.core.placement import Placement, Projector, ProjectorPlace
from hotset.core.plan import Plan, Wishes, make_plan
from hotset.core.plan.common import cache_settings
from hotset.core.plan.search import usable_devices
from hotset.core.units import GIB, MIB
from hotset.gguf.synth.fullscale import MIXES, REAL_MODELS, fullscale_spec

__all__ = [
    "check_plan",
    "more_memory",
    "print_report",
    "random_machine",
    "random_model",
    "random_wishes",
    "with_other_trifles",
]

# A hair of rounding between sums of floats in another order. Several devices always hold as many
# blocks as fit, which may cost a little where launching a block takes longer than computing it.
_SAME = 1.000001
_NEARLY_THE_SAME = 1.05


def random_model(random: Random) -> ModelSpec:
    """A published model with a random mix, or a part of one, dense or not."""
    spec = fullscale_spec(random.choice(sorted(REAL_MODELS)), mix=random.choice(sorted(MIXES)))
    if random.random() < 0.2:  # as long a context as nobody has trained, or none stated
        spec = replace(spec, context_tokens=random.choice([0, 4096, 1 << 20]))
    if random.random() < 0.2:  # the routed experts as a dense network
        spec = _as_dense(spec)
    return spec


def _as_dense(spec: ModelSpec) -> ModelSpec:
    def dense(sizes: Mapping[Role, int]) -> dict[Role, int]:
        experts = sizes.get(Role.ROUTED_EXPERTS, 0)
        kept: dict[Role, int] = {
            role: n for role, n in sizes.items() if role is not Role.ROUTED_EXPERTS
        }
        return kept | {Role.DENSE_FFN: sizes.get(Role.DENSE_FFN, 0) + experts}

    layers = tuple(
        replace(layer, bytes_by_role=dense(layer.bytes_by_role)) for layer in spec.layers
    )
    return replace(spec, experts=None, layers=layers, bytes_by_role=dense(spec.bytes_by_role))


def random_machine(random: Random) -> Machine:
    """Up to four cards, or an integrated one; RAM from half a GiB to a server's."""
    ram = int(2 ** random.uniform(29, 38.5))
    devices = [_random_gpu(random, index, ram) for index in range(random.choice([0, 1, 1, 2, 3]))]
    if random.random() < 0.15:
        size = random.randint(ram // 16, ram)
        devices.append(
            Gpu(
                "integrated",
                size,
                random.randint(0, size),
                is_integrated=True,
                shares_ram=True,
                backend=Backend.VULKAN,
                engine_name=f"Vulkan{len(devices)}",
            )
        )
    rate = int(10 ** random.uniform(8, 10.2))
    cores = random.choice([1, 2, 4, 6, 8, 16, 64])
    return Machine(
        ram_total_bytes=ram,
        ram_available_bytes=int(ram * random.choice([random.random(), 0.7, 0.9])),
        num_cores=cores,
        num_threads=2 * cores,
        devices=tuple(devices),
        disk=random.choice([None, Disk(DiskKind.NVME, rate, rate), Disk(DiskKind.ROTATING, rate)]),
        ram_bandwidth_bytes_s=random.choice([None, int(random.uniform(10, 400) * 1e9)]),
        num_performance_cores=random.choice([None, max(1, cores // 2)]),
    )


def _random_gpu(random: Random, index: int, ram: int) -> Gpu:
    total = min(int(2 ** random.uniform(28, 37)), 4 * ram)
    return Gpu(
        name=f"card {index}",
        total_bytes=total,
        free_bytes=random.randint(0, total),
        bandwidth_bytes_s=random.choice([None, int(random.uniform(50, 3000) * 1e9)]),
        link=random.choice([None, Link(random.randint(1, 5), random.choice([1, 4, 8, 16]))]),
        backend=random.choice([None, *Backend]),
        engine_name=f"CUDA{index}",
    )


def random_wishes(random: Random) -> Wishes:
    """Mostly nothing asked for; sometimes something that cannot be."""
    return Wishes(
        context_tokens=random.choice([None, None, None, random.randint(1, 1 << 18)]),
        kv_type=random.choice([None, None, "f16", "q8_0", "q4_0"]),
        slots=random.choice([1, 1, 1, 4]),
        ubatch_tokens=random.choice([None, None, 64, 512, 4096]),
        is_serving=random.random() < 0.3,
        ram_bytes=random.choice([None] * 5 + [random.randint(0, 64 * GIB)]),
        reserve_bytes=random.choice([None, None, 0, 2 * GIB]),
        cpu_moe_layers=random.choice([None] * 6 + [0, 10, 200]),
        has_vision=random.random() < 0.8,
        can_store=random.random() < 0.5,
        has_moe_cache=random.random() < 0.5,
    )


def random_projector(random: Random) -> Projector | None:
    if random.random() < 0.6:
        return None
    return Projector(random.randint(MIB, 2 * GIB), random.randint(MIB, GIB))


def check_plan(
    spec: ModelSpec, machine: Machine, wishes: Wishes, projector: Projector | None, plan: Plan
) -> None:
    """Assert what every plan promises.

    Raises:
        AssertionError: it breaks one of its promises.
    """
    footprint, placement = plan.footprint, plan.placement
    ram = machine.ram_available_bytes
    if wishes.ram_bytes is not None:
        ram = min(ram, wishes.ram_bytes)
    assert footprint.fixed_bytes <= ram, "RAM budget"
    assert plan.is_larger_than_ram or footprint.total_bytes <= ram, "RAM budget with weights"
    for taken in footprint.devices:
        assert not taken.total_bytes or taken.total_bytes <= taken.budget_bytes, "device budget"

    assert wishes.kv_type in (None, plan.kv_type), "KV type is law"
    assert plan.kv_type in ("f16", "q8_0") or wishes.kv_type, "nothing lower unasked"
    assert wishes.context_tokens is None or (
        0 <= plan.context_tokens - wishes.context_tokens < 256
    ), "context is law"
    assert wishes.ubatch_tokens in (None, plan.ubatch_tokens), "ubatch is law"
    assert plan.slots == wishes.slots, "slots are law"
    if placement.projector is not ProjectorPlace.NONE:
        assert projector is not None, "vision only with a projector"
        assert wishes.has_vision, "no vision where it was turned off"

    parts = split_model(spec)
    offloaded = {unit for units in placement.ranges(parts.n_units) for unit in units}
    assert set(placement.host_moe_units) <= offloaded & set(parts.moe_units), "hosted units"
    if wishes.cpu_moe_layers is not None and placement.n_offloaded:
        asked = {unit for unit in parts.moe_units if unit < wishes.cpu_moe_layers}
        assert set(placement.host_moe_units) == asked, "experts in RAM are law"
    _check_sums(spec, plan, wishes, placement)


def _check_sums(spec: ModelSpec, plan: Plan, wishes: Wishes, placement: Placement) -> None:
    """No byte is lost and none is counted twice."""
    parts, footprint = split_model(spec), plan.footprint
    on_devices = sum(taken.trunk_bytes + taken.expert_bytes for taken in footprint.devices)
    copies = parts.output_copy_bytes if placement.n_offloaded else 0
    in_ram = footprint.weights_bytes
    if footprint.expert_cache_bytes:  # the store's experts are on the disk
        first = parts.n_units - placement.n_offloaded
        in_ram += sum(parts.expert_bytes[:first])
        in_ram += sum(parts.expert_bytes[unit] for unit in placement.host_moe_units)
    assert on_devices + in_ram == spec.trunk_bytes + copies, "weights"
    settings = cache_settings(wishes, plan.kv_type, plan.context_tokens, plan.ubatch_tokens)
    caches = footprint.cache_bytes + sum(taken.cache_bytes for taken in footprint.devices)
    assert caches == cache_bytes(spec, settings).total, "caches"


def with_other_trifles(machine: Machine) -> Machine:
    """The same machine, but for what no plan may depend on."""
    devices = tuple(
        replace(gpu, vendor="nvidia", bus_id="0000:01:00.0", used_by=(GpuUser("desktop"),))
        for gpu in machine.devices
    )
    return replace(
        machine,
        devices=devices,
        cpu_name="a processor",
        cpu_features=frozenset({"avx2"}),
        swap_total_bytes=GIB,
        swap_free_bytes=GIB,
        num_threads=machine.num_threads + 1,
    )


def more_memory(random: Random, machine: Machine) -> Machine:
    """The machine with more RAM, or with a larger card."""
    extra = random.choice([64 * MIB, GIB, 8 * GIB, 64 * GIB])
    if machine.devices and random.random() < 0.5:
        index = random.randrange(len(machine.devices))
        gpu = machine.devices[index]
        if not gpu.shares_ram:
            larger = replace(
                gpu, total_bytes=gpu.total_bytes + extra, free_bytes=gpu.free_bytes + extra
            )
            devices = (*machine.devices[:index], larger, *machine.devices[index + 1 :])
            return replace(machine, devices=devices)
    return replace(
        machine,
        ram_total_bytes=machine.ram_total_bytes + extra,
        ram_available_bytes=machine.ram_available_bytes + extra,
    )


def check_one(seed: int) -> str:
    """One random case; returns what became of it.

    Raises:
        AssertionError: a promise is broken.
    """
    random = Random(seed)
    spec, machine = random_model(random), random_machine(random)
    wishes, projector = random_wishes(random), random_projector(random)
    try:
        plan = make_plan(spec, machine, wishes, projector)
    except HotsetError as problem:
        return type(problem).__name__
    check_plan(spec, machine, wishes, projector, plan)
    assert make_plan(spec, machine, wishes, projector) == plan, "the same again"
    assert make_plan(spec, with_other_trifles(machine), wishes, projector) == plan, "trifles"
    _check_growth(random, spec, machine, wishes)
    return "on cards" if plan.has_devices else "alone"


def _check_growth(random: Random, spec: ModelSpec, machine: Machine, wishes: Wishes) -> None:
    """More memory: never a shorter context, and never slower with the same.

    Only with cards: without one the weights keep their room, and a context that displaced them
    anyway may be longer than one that has to make room for them.
    """
    if not machine.devices:
        return
    fixed = replace(wishes, kv_type=wishes.kv_type or "q8_0", has_vision=False, ram_bytes=None)
    larger = more_memory(random, machine)
    try:
        before = make_plan(spec, machine, fixed)
    except HotsetError:
        return
    after = make_plan(spec, larger, fixed)
    if not (before.has_devices and after.has_devices):
        return
    assert after.context_tokens >= before.context_tokens, "more memory, shorter context"
    if after.context_tokens == before.context_tokens:
        slower = after.speed.cost_s / before.speed.cost_s
        limit = _SAME if len(usable_devices(machine)) == 1 else _NEARLY_THE_SAME
        assert slower <= limit, f"more memory, {slower:.3f} times as slow"


def print_report(examples: int, first_seed: int = 0) -> int:
    """Check so many cases; prints what became of them. Returns how many broke a promise."""
    found: Counter[str] = Counter()
    broken = 0
    for seed in range(first_seed, first_seed + examples):
        try:
            found[check_one(seed)] += 1
        except Exception as error:  # everything is a finding
            broken += 1
            print(f"seed {seed}: {type(error).__name__}: {error}")
    print(", ".join(f"{what} {n}" for what, n in sorted(found.items())), f"· broken {broken}")
    return broken
