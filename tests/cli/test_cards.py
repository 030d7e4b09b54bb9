"""Graphics cards behind a gateway: models share them by bytes, as they share RAM."""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import pytest

from hotset.cli.cards import Cards, granted_only
from hotset.cli.fleet import fleet_of_folders
from hotset.core.machine import Gpu
from hotset.core.plan import Wishes, make_plan
from hotset.core.units import GIB, MIB
from hotset.gateway.ledger import Model, Phase, Stop
from hotset.gateway.scheduler import Scheduler
from hotset.gguf.synth import write_fullscale
from plankit import card, computer, integrated, real_model
from schedulerkit import World


class Driver:
    """What a driver would say."""

    def __init__(self, **free_gib: float) -> None:
        self.free = {name: int(gib * GIB) for name, gib in free_gib.items()}

    def __call__(self) -> dict[str, int]:
        return dict(self.free)

    def take(self, name: str, gib: float) -> None:
        self.free[name] -= int(gib * GIB)


def gpu(name: str, free_gib: float, bus_id: str = "") -> Gpu:
    return replace(card(16, used_gib=16 - free_gib, name=name), bus_id=bus_id)


def cards(driver: Driver, *devices: Gpu) -> Cards:
    return Cards(devices, 0, driver)


def test_what_an_engine_takes_stays_in_the_room_for_engines_and_what_others_take_does_not() -> None:
    driver = Driver(a=14)
    kept = cards(driver, gpu("CUDA0", 14, "a"))
    assert kept.room() == {"CUDA0": 14 * GIB}
    kept.begin("m", {"CUDA0": 5 * GIB})
    driver.take("a", 4)
    kept.settle("m")
    assert kept.room() == {"CUDA0": 14 * GIB}
    driver.take("a", 3)  # a game
    kept.begin("other", {})
    assert kept.room() == {"CUDA0": 11 * GIB}


def test_a_loading_engine_counts_what_it_has_so_far_and_no_more_than_its_plan() -> None:
    driver = Driver(a=14)
    kept = cards(driver, gpu("CUDA0", 14, "a"))
    kept.begin("m", {"CUDA0": 5 * GIB})
    driver.take("a", 2)
    kept.begin("n", {"CUDA0": 1 * GIB})
    assert kept.room() == {"CUDA0": 14 * GIB}
    driver.take("a", 6)
    kept.settle("n")
    assert kept.room() == {"CUDA0": (6 + 5 + 1) * GIB}


def test_memory_of_an_ended_engine_is_back_when_the_driver_says_so() -> None:
    driver = Driver(a=14)
    kept = cards(driver, gpu("CUDA0", 14, "a"))
    kept.begin("m", {"CUDA0": 9 * GIB})
    driver.take("a", 9)
    kept.settle("m")
    kept.end("m")
    assert kept.room() == {"CUDA0": 5 * GIB}
    driver.take("a", -9)
    kept.end("m")  # looks again
    assert kept.room() == {"CUDA0": 14 * GIB}


def test_a_card_without_a_driver_keeps_what_it_had_and_shared_memory_is_no_card() -> None:
    kept = Cards([gpu("Vulkan1", 14), integrated(8)], None, Driver())
    assert list(kept.room()) == ["Vulkan1"]
    assert 0 < kept.room()["Vulkan1"] < 14 * GIB  # the planner's reserve


def test_a_start_gets_all_of_a_card_that_it_was_granted_and_no_more() -> None:
    machine = computer(card(16, used_gib=1))
    spec = real_model("qwen3.6-35b-a3b", "IQ4_XS")
    plan = make_plan(spec, machine, Wishes())
    (whole,) = plan.footprint.devices
    limited, wishes = granted_only(machine, Wishes(), {"CUDA0": whole.total_bytes})
    again = make_plan(spec, limited, wishes)
    assert again.placement == plan.placement
    assert again.footprint.total_bytes == plan.footprint.total_bytes
    limited, wishes = granted_only(machine, Wishes(), {"CUDA0": 6 * GIB})
    (taken,) = make_plan(spec, limited, wishes).footprint.devices
    assert 5 * GIB < taken.total_bytes <= 6 * GIB


def test_what_is_not_free_any_more_was_granted_in_vain_and_shared_memory_is_left_alone() -> None:
    machine = computer(card(16, used_gib=12), integrated(8))
    limited, _ = granted_only(machine, Wishes(), {"CUDA0": 10 * GIB})
    assert [gpu.free_bytes for gpu in limited.devices] == [4 * GIB, 8 * GIB]
    limited, _ = granted_only(machine, Wishes(reserve_bytes=GIB), {})
    assert limited.devices[0].free_bytes == 3 * GIB


def test_of_two_cards_only_the_one_that_is_too_full_makes_a_model_leave() -> None:
    """Admission goes by the bytes of each device."""
    room = {"RAM": 100, "CUDA0": 10, "CUDA1": 10}
    models = [
        Model("on-first", {"RAM": 10, "CUDA0": 8}),
        Model("on-second", {"RAM": 10, "CUDA1": 8}),
        Model("wanted", {"RAM": 10, "CUDA0": 8}),
    ]
    world = World(models, room)
    for model in models:
        world.ask(model.id)
        world.run(10)
    assert world.orders(Stop) == ["on-first"]
    in_memory = {m.id for m in world.scheduler.models.values() if m.phase is Phase.READY}
    assert in_memory == {"on-second", "wanted"}


_ENGINE = """#!{python} -I
import sys
if "--help" in sys.argv:
    print("--load-mode --moe-cache-mib")
elif "--version" in sys.argv:
    print("version: 1 (made up)")
elif "--list-devices" in sys.argv:
    print("Available devices:")
    print("  CUDA0: NVIDIA GeForce RTX 5080 (16303 MiB, 14900 MiB free)")
"""


@pytest.fixture(name="program")
def _program(tmp_path: Path) -> Path:
    program = tmp_path / "made-up-server"
    program.write_text(_ENGINE.format(python=sys.executable))
    program.chmod(0o755)
    return program


def test_two_models_for_one_card_take_turns_although_the_ram_would_hold_both(
    tmp_path: Path, program: Path
) -> None:
    folder = tmp_path / "models"
    folder.mkdir()
    for name in ("a", "b"):
        write_fullscale("olmoe-1b-7b", folder / f"{name}.gguf", mix="Q8_0")
    fleet = fleet_of_folders([str(folder)], Wishes(context_tokens=4096), str(program), ttl_s=None)
    offers = [member.offer for member in fleet.members.values()]
    room = fleet.room([])
    for offer in offers:
        assert 7 * GIB < offer.need["CUDA0"] <= room["CUDA0"] < 14900 * MIB
        assert 2 * offer.need["CUDA0"] > room["CUDA0"]
    scheduler = Scheduler([offer.model() for offer in offers])
    scheduler.measured({**room, "RAM": 64 * GIB})
    first, second = scheduler.models.values()
    first.held, first.phase = dict(first.need), Phase.READY
    assert not scheduler.has_room(second)
