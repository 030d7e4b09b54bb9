"""Whether a driver has quietly moved parts of a model off a card: looked at after the first answer.

Only then has everything been in use once. Nothing here ever stops a command.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from hotset.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.loaded import Loaded
    from hotset.core.spill import Spill

__all__ = ["SpillWatch"]

_ROOT = Path("/")
# llama.cpp's names of pinned memory: CUDA_Host, ROCm_Host, Vulkan_Host, SYCL_Host.
_PINNED = "_Host"


class SpillWatch:
    """The cards of one start, before it and after its first answer. Make it just before the start.

    Args:
        root: where /proc, /sys and /usr are looked for.
    """

    def __init__(self, ready: Launchable, root: Path | None = None) -> None:
        from hotset.probe.cardmemory import card_memories

        self._ready = ready
        self._root = root or _ROOT
        self._addresses = _addresses(ready)
        self._before = card_memories(self._root) if self._addresses else {}
        self._started: tuple[int, Loaded] | None = None

    def adopt(self, pid: int, loaded: Loaded) -> None:
        """The engine is up: `pid` leads its process group, `loaded` is its own account."""
        self._started = (pid, loaded)

    def look(self) -> str:
        """A line for people if something lies in RAM that belongs on a card; else "".

        What would happen again is kept for the next plan. Looks once; later calls return "".
        """
        started, self._started = self._started, None
        if started is None or not self._before:
            return ""
        found = self._spills(*started)
        if not found:
            return ""
        kept = [spill for spill in found if spill.lasting_bytes > 0 and self._keep(spill)]
        return _line(found, kept)

    def _spills(self, pid: int, loaded: Loaded) -> list[Spill]:
        from hotset.core.spill import spill_of
        from hotset.probe.cardmemory import card_memories
        from hotset.probe.drm import held_by_group

        after, held = card_memories(self._root), held_by_group(pid, self._root)
        pinned = sum(b.n_bytes for b in loaded.buffers if b.device.endswith(_PINNED))
        spills = (
            spill_of(
                device,
                allocated_bytes=loaded.bytes_on(device),
                pinned_bytes=pinned,
                before=self._before[bus_id],
                after=after[bus_id],
                held=held.get(bus_id),
            )
            for device, bus_id in self._addresses.items()
            if bus_id in self._before and bus_id in after
        )
        return [spill for spill in spills if spill]

    def _keep(self, spill: Spill) -> bool:
        from hotset.cli.pacing import starts_file
        from hotset.core.plan.pace import model_key
        from hotset.probe.starts import StartKey, keep_spill

        ready = self._ready
        key = StartKey(ready.engine.identity, model_key(ready.spec), spill.device)
        return not keep_spill(starts_file(), key, spill.lasting_bytes)


def _addresses(ready: Launchable) -> dict[str, str]:
    """PCI address by the engine's name, of cards in use that have memory of their own."""
    if ready.basis is None:
        return {}
    used = {taken.device for taken in ready.plan.footprint.devices if taken.total_bytes}
    return {
        gpu.engine_name: gpu.bus_id
        for gpu in ready.basis.machine.devices
        if gpu.engine_name in used and gpu.bus_id and not gpu.shares_ram
    }


def _line(found: list[Spill], kept: list[Spill]) -> str:
    parts = []
    for spill in found:
        n_bytes = format_bytes(spill.n_bytes // MIB * MIB)
        others = spill.n_bytes - spill.lasting_bytes
        what = f"{n_bytes} of what belongs on {spill.device} lie in RAM: its driver moved them"
        if spill.is_inferred:
            what = (
                f"{spill.device} is full and holds {n_bytes} less than the engine took: its driver"
                " seems to have moved them to RAM"
            )
        if others:
            what += f", as other programs took {format_bytes(others // MIB * MIB)} since the start"
        parts.append(what)
    less = ", ".join(f"{format_bytes(s.lasting_bytes // MIB * MIB)} of {s.device}" for s in kept)
    then = (
        f"the next start leaves {less} alone"
        if less
        else "the next start plans with what is free then"
    )
    return f"{'; '.join(parts)}. Answers are slower than they need be; {then}"
