"""Where a process has its buffers, on made-up systems: on the card, or in RAM behind it."""

from __future__ import annotations

from pathlib import Path

from hotset.core.spill import CardMemory, Held
from hotset.core.units import GIB, MIB
from hotset.probe.cardmemory import card_memories
from hotset.probe.drm import held_by_group, users
from nvmlkit import FakeCard, FakeNvml
from sysfskit import (
    AMD,
    CARD_BUS_ID,
    INTEL,
    Slot,
    add_card,
    add_metrics,
    add_user,
    amd_files,
    write,
)

ENGINE = 4242
AMDGPU = {
    "drm-driver": "amdgpu",
    "drm-client-id": "7",
    "drm-pdev": CARD_BUS_ID,
    "drm-memory-vram": "9437184 KiB",
    "drm-resident-vram": "9437184 KiB",
    "drm-memory-gtt": "1048576 KiB",
    "drm-memory-cpu": "1024 KiB",
    "amd-evicted-vram": "524288 KiB",
}


def add_process(root: Path, pid: int, group: int, name: str = "llama-server") -> None:
    write(root, {f"proc/{pid}/stat": f"{pid} ({name}) S 1 {group} {group} 0 -1 4194304"})


def test_an_engine_is_its_process_group_and_a_client_counts_once(tmp_path: Path) -> None:
    for pid in (ENGINE, ENGINE + 1):  # a shell script, and the server that inherited its files
        add_process(tmp_path, pid, ENGINE)
        add_user(tmp_path, pid, "llama-server", AMDGPU)
        add_user(tmp_path, pid, "llama-server", AMDGPU, fd=6)
    add_process(tmp_path, 99, 99, name="odd) name 1 4242")
    add_user(tmp_path, 99, "desktop", AMDGPU | {"drm-client-id": "3"})
    held = held_by_group(ENGINE, tmp_path)
    assert held == {CARD_BUS_ID: Held(9 * GIB, 1025 * MIB, 512 * MIB)}
    assert held_by_group(99, tmp_path) == held
    assert held_by_group(98, tmp_path) == {}


def test_each_makers_names_for_its_memory_are_known(tmp_path: Path) -> None:
    add_process(tmp_path, ENGINE, ENGINE)
    xe = {"drm-pdev": "0000:0b:00.0", "drm-client-id": "1"}
    xe |= {"drm-total-vram0": "8 GiB", "drm-resident-vram0": "6 GiB", "drm-resident-gtt": "1 GiB"}
    i915 = {"drm-pdev": "0000:0c:00.0", "drm-client-id": "1"}
    i915 |= {"drm-resident-local0": "5 GiB", "drm-resident-system0": "2 GiB"}
    silent = {"drm-pdev": "0000:0d:00.0", "drm-client-id": "1", "drm-engine-render": "5 ns"}
    for fd, words in enumerate((xe, i915, silent), start=5):
        add_user(tmp_path, ENGINE, "llama-server", words, fd=fd)
    assert held_by_group(ENGINE, tmp_path) == {
        "0000:0b:00.0": Held(6 * GIB, 1 * GIB),
        "0000:0c:00.0": Held(5 * GIB, 2 * GIB),
    }


def test_who_holds_only_ram_is_no_user_of_the_card(tmp_path: Path) -> None:
    add_user(tmp_path, 7, "video", AMDGPU | {"drm-resident-vram": "0 KiB"})
    assert users(tmp_path) == {}


def test_nvidias_driver_is_only_asked_where_windows_manages_its_memory(tmp_path: Path) -> None:
    nvml = FakeNvml([FakeCard(), FakeCard(bus_id="00000000:02:00.0", total=None)])
    write(tmp_path, {"proc/meminfo": "MemTotal:  33554432 kB\nMemAvailable:  25165824 kB"})
    assert card_memories(tmp_path, nvml) == {}
    (tmp_path / "usr/lib/wsl/lib").mkdir(parents=True)
    assert card_memories(tmp_path, nvml) == {"0000:01:00.0": CardMemory(1 * GIB, 11 * GIB)}


def test_only_cards_with_memory_of_their_own_can_spill(tmp_path: Path) -> None:
    write(tmp_path, {"proc/meminfo": "MemTotal:  33554432 kB\nMemAvailable:  25165824 kB"})
    card = add_card(
        tmp_path, 0, AMD, "amdgpu", amd_files(16 * GIB, 2 * GIB, gtt_used_bytes=3 * GIB)
    )
    add_metrics(card, 1)
    slot = [Slot("0000:0c:00.0")]
    add_metrics(add_card(tmp_path, 1, AMD, "amdgpu", amd_files(GIB, 0, "0x1681"), slot), 2)
    arc = [Slot("0000:0d:00.0")]
    folder = add_card(tmp_path, 2, INTEL, "xe", {"device": "0xe20b", "revision": "0x0"}, arc)
    write(folder, {"tile0/physical_vram_size_bytes": hex(12 * GIB)})
    assert card_memories(tmp_path) == {
        CARD_BUS_ID: CardMemory(2 * GIB, 14 * GIB, 3 * GIB),
        "0000:0d:00.0": CardMemory(0, 12 * GIB),
    }
