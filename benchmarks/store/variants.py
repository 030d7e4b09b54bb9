"""What is compared: the stock engine in three ways, and the store at several budgets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from hotset.core.units import MIB

__all__ = [
    "FEW", "IN_RAM", "REPACKED", "Cell", "Variant", "cell_of_limit", "cell_of_share", "in_turn",
]  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """One way to run the engine.

    Attributes:
        label: for people; key: unique, for the results.
        limit_bytes: of the memory group; None to measure only.
        store_bytes: HOTSET_RAM_BYTES; None without the store.
    """

    key: str
    label: str
    load_mode: str = "MMAP"
    is_repacked: bool = False
    limit_bytes: int | None = None
    store_bytes: int | None = None


IN_RAM = Variant("ram", "stock, in RAM, same layout", load_mode="NONE")
REPACKED = Variant("repacked", "stock, in RAM, repacked", load_mode="NONE", is_repacked=True)
FEW = Variant("few", "stock, in RAM, fewer experts", load_mode="NONE")


@dataclass(frozen=True, slots=True)
class Cell:
    """One memory limit, under which stock mmap and the store are compared.

    Attributes:
        name: "2500 MiB" or "40 %".
        store_bytes: memory for experts; limit_bytes: for the whole process and its page cache.
    """

    name: str
    store_bytes: int
    limit_bytes: int

    @property
    def mmap(self) -> Variant:
        return Variant(f"mmap {self.name}", f"stock, mmap, {self.name}", "MMAP",
                       limit_bytes=self.limit_bytes)  # fmt: skip

    @property
    def store(self) -> Variant:
        return Variant(f"hotset {self.name}", f"hotset, {self.name}", "MMAP",
                       limit_bytes=self.limit_bytes, store_bytes=self.store_bytes)  # fmt: skip


def cell_of_share(percent: int, expert_bytes: int, other_bytes: int, reserve_bytes: int) -> Cell:
    """A budget of that share of the expert bytes; the process gets what it needs beside it."""
    store_bytes = expert_bytes * percent // 100
    return Cell(f"{percent} %", store_bytes, store_bytes + other_bytes + reserve_bytes)


def cell_of_limit(limit_mib: int, other_bytes: int, reserve_bytes: int) -> Cell:
    """A limit for the whole process; experts get what the process leaves of it."""
    limit_bytes = limit_mib * MIB
    return Cell(f"{limit_mib} MiB", limit_bytes - other_bytes - reserve_bytes, limit_bytes)


def in_turn(cells: Sequence[Cell], *, with_repacked: bool) -> list[Variant]:
    """One round: everything once, what is compared next to each other."""
    stock = [IN_RAM, FEW, REPACKED] if with_repacked else [IN_RAM, FEW]
    return stock + [variant for cell in cells for variant in (cell.mmap, cell.store)]
