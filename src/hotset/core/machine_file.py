"""A machine as a mapping of plain words, for a file that people can read and edit.

`machine_to_mapping` and `machine_from_mapping` are inverse to each other, to the byte. Who uses a
card's memory is left out: it says something about a person, and nothing about the machine.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import StrEnum
from typing import TypeVar

from hotset.core.errors import ConfigProblem
from hotset.core.gpus import known_gpu, vendor_of
from hotset.core.machine import Backend, Disk, DiskKind, Gpu, Link, Machine
from hotset.core.machine_text import (
    numbered,
    read_count,
    read_link,
    read_rate,
    read_size,
    usual_backend,
)
from hotset.core.units import GIB, KIB, MIB, format_bytes

__all__ = ["Where", "dotted", "machine_from_mapping", "machine_to_mapping", "machine_yaml"]

# Of a card that no engine can use; a file that says nothing means the usual one.
_NO_BACKEND = "none"

# From the path of a value, such as ("gpus", 1, "used"), to the words that name its place.
Where = Callable[[Sequence[str | int]], str]
_Choice = TypeVar("_Choice", bound=StrEnum)


def machine_to_mapping(machine: Machine) -> dict[str, object]:
    """The machine in words and numbers, without what is not known."""
    ram = machine.ram_total_bytes
    swap, free = machine.swap_total_bytes, machine.swap_free_bytes
    found: dict[str, object] = {
        "ram": _size(ram),
        "ram_used": _size(ram - machine.ram_available_bytes),
        "ram_bandwidth": _rate(machine.ram_bandwidth_bytes_s),
        "swap": _size(swap),
        "swap_used": None if swap is None or free is None else _size(swap - free),
        "lockable": _size(machine.lockable_bytes),
        "cpu": machine.cpu_name or None,
        "cores": machine.num_cores,
        "threads": machine.num_threads,
        "performance_cores": machine.num_performance_cores,
        "cpu_features": sorted(machine.cpu_features) or None,
        "disk": _known(_disk_words(machine.disk)) if machine.disk else None,
        "gpus": [_known(_gpu_words(gpu)) for gpu in machine.devices] or None,
    }
    return _known(found)


def _disk_words(disk: Disk) -> dict[str, object]:
    return {
        "kind": str(disk.kind),
        "read": _rate(disk.read_bytes_s),
        "random_read": _rate(disk.random_read_bytes_s),
    }


def _gpu_words(gpu: Gpu) -> dict[str, object]:
    return {
        "name": gpu.name,
        "vendor": gpu.vendor,
        "memory": _size(gpu.total_bytes),
        "used": _size(gpu.used_bytes),
        "bandwidth": _rate(gpu.bandwidth_bytes_s),
        "pcie": f"{gpu.link.pcie_generation}x{gpu.link.lanes}" if gpu.link else None,
        "link_bandwidth": _rate(gpu.copy_bytes_s),
        "integrated": gpu.is_integrated,
        "shared": gpu.shares_ram,
        "backend": str(gpu.backend or _NO_BACKEND),
        "device": gpu.engine_name or None,
        "bus": gpu.bus_id or None,
    }


def _known(words: dict[str, object]) -> dict[str, object]:
    return {key: value for key, value in words.items() if value is not None}


def _size(n_bytes: int | None) -> str | None:
    """In the largest unit that says it exactly."""
    if n_bytes is None:
        return None
    for unit, name in ((GIB, "GiB"), (MIB, "MiB"), (KIB, "KiB")):
        if n_bytes % unit == 0:
            return f"{n_bytes // unit}{name}"
    return f"{n_bytes}B"


def _rate(bytes_s: int | None) -> str | None:
    """In GB/s, with as many decimals as it takes."""
    if bytes_s is None:
        return None
    return f"{bytes_s // 10**9}.{bytes_s % 10**9:09d}".rstrip("0").rstrip(".") + "GB/s"


def machine_yaml(machine: Machine) -> str:
    """The mapping as YAML 1.2, one value per line."""
    return "\n".join(_yaml_lines(machine_to_mapping(machine))) + "\n"


def _yaml_lines(words: Mapping[str, object], indent: str = "") -> Iterator[str]:
    for key, value in words.items():
        if isinstance(value, dict):
            yield f"{indent}{key}:"
            yield from _yaml_lines(value, f"{indent}  ")
        elif isinstance(value, list) and isinstance(value[0], dict):
            yield f"{indent}{key}:"
            for item in value:
                first, *others = _yaml_lines(item, f"{indent}    ")
                yield f"{indent}  - {first.lstrip()}"
                yield from others
        else:
            yield f"{indent}{key}: {_yaml_value(value)}"


def _yaml_value(value: object) -> str:
    if isinstance(value, str):
        kept = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
        return f'"{"".join(kept)}"'
    if isinstance(value, list):
        return f"[{', '.join(map(_yaml_value, value))}]"
    return str(value).lower()  # a whole number, true or false


def dotted(path: Sequence[str | int]) -> str:
    """A path as people read it: ``gpus[1].used``."""
    text = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)
    return text.removeprefix(".") or "machine"


def machine_from_mapping(data: object, where: Where = dotted) -> Machine:
    """The machine that a file describes.

    Args:
        data: what a YAML or JSON reader made of the file.
        where: names the place of a value in a message, best with file and line.

    Raises:
        ConfigProblem: an unknown key, a missing one, a value that cannot be meant.
    """
    words = _Words(data, (), where)
    total = words.size("ram", is_needed=True) or 0
    used = words.size("ram_used", may_be_zero=True, most=total) or 0
    swap = words.size("swap", may_be_zero=True)
    swap_used = words.size("swap_used", may_be_zero=True, most=swap)
    cores = words.count("cores") or words.count("threads")
    if cores is None:
        raise ConfigProblem(f"{where(('cores',))}: missing; state the physical cores, like 8")
    threads = words.count("threads") or cores
    fast = words.count("performance_cores")
    for key, number, most in (("threads", cores, threads), ("performance_cores", fast, cores)):
        if number is not None and number > most:
            raise ConfigProblem(f"{words.at(key)}: {number} cores cannot be among {most}")
    disk = words.below("disk")
    machine = Machine(
        ram_total_bytes=total,
        ram_available_bytes=total - used,
        num_cores=cores,
        num_threads=threads,
        devices=numbered([_gpu(gpu, total) for gpu in words.list_below("gpus")]),
        disk=_disk(disk) if disk else None,
        ram_bandwidth_bytes_s=words.rate("ram_bandwidth"),
        num_performance_cores=fast,
        swap_total_bytes=swap,
        swap_free_bytes=None if swap is None or swap_used is None else swap - swap_used,
        lockable_bytes=words.size("lockable", may_be_zero=True),
        cpu_name=words.text("cpu") or "",
        cpu_features=frozenset(words.texts("cpu_features")),
    )
    words.end()
    return machine


def _disk(words: _Words) -> Disk:
    disk = Disk(
        words.choice("kind", DiskKind) or DiskKind.UNKNOWN,
        words.rate("read"),
        words.rate("random_read"),
    )
    words.end()
    return disk


def _gpu(words: _Words, ram_bytes: int) -> Gpu:
    total = words.size("memory", is_needed=True) or 0
    name = words.text("name") or "graphics card"
    used = words.size("used", may_be_zero=True, most=total) or 0
    known = known_gpu(name, total)
    shares_ram = words.flag("shared", default=bool(known and known.is_integrated))
    if shares_ram and total > ram_bytes:
        raise ConfigProblem(
            f"{words.at('memory')}: {format_bytes(total)} shared with {format_bytes(ram_bytes)} of"
            " RAM; it can be no more than that"
        )
    vendor = words.text("vendor")
    vendor = vendor_of(name) if vendor is None else vendor
    bandwidth = words.rate("bandwidth")
    if bandwidth is None and known:
        bandwidth = known.bandwidth_bytes_s
    gpu = Gpu(
        name=name,
        total_bytes=total,
        free_bytes=total - used,
        vendor=vendor,
        is_integrated=words.flag("integrated", default=shares_ram),
        shares_ram=shares_ram,
        bandwidth_bytes_s=bandwidth,
        link=words.link("pcie"),
        copy_bytes_s=words.rate("link_bandwidth"),
        backend=_backend(words, vendor),
        engine_name=words.text("device") or "",
        bus_id=words.text("bus") or "",
    )
    words.end()
    return gpu


def _backend(words: _Words, vendor: str) -> Backend | None:
    if words.has("backend", _NO_BACKEND):
        return None
    return words.choice("backend", Backend) or usual_backend(vendor)


class _Words:
    """One mapping of the file: values by key, checked. What was not asked for is unknown."""

    def __init__(self, data: object, path: tuple[str | int, ...], where: Where) -> None:
        self._path, self._where = path, where
        if not isinstance(data, Mapping):
            raise ConfigProblem(f"{where(path)}: {_shown(data)} is no list of keys and values")
        self._data = {str(key): value for key, value in data.items()}
        self._asked: list[str] = []

    def at(self, key: str) -> str:
        """Where the key's value is, for a message."""
        return self._where((*self._path, key))

    def end(self) -> None:
        """Raise ConfigProblem for the first key that nothing has asked for."""
        for key in self._data:
            if key not in self._asked:
                near = difflib.get_close_matches(key, self._asked, 1)
                known = ", ".join(dict.fromkeys(self._asked))
                hint = f"did you mean '{near[0]}'?" if near else f"known are {known}"
                raise ConfigProblem(f"{self.at(key)}: unknown key ({hint})")

    def has(self, key: str, value: str) -> bool:
        return self._get(key) == value

    def text(self, key: str) -> str | None:
        value = self._get(key)
        if value is not None and not isinstance(value, str):
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is no text; put it in quotes")
        return value

    def texts(self, key: str) -> list[str]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list) or not all(isinstance(item, str) for item in value):
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is no list of words")
        return value

    def size(
        self,
        key: str,
        *,
        is_needed: bool = False,
        may_be_zero: bool = False,
        most: int | None = None,
    ) -> int | None:
        value = self._get(key)
        if value is None:
            if is_needed:
                raise ConfigProblem(f"{self.at(key)}: missing; state it like {key}: 16GiB")
            return None
        n_bytes = read_size(str(value), self.at(key), may_be_zero=may_be_zero)
        if most is not None and n_bytes > most:
            raise ConfigProblem(
                f"{self.at(key)}: {format_bytes(n_bytes)} cannot be in use of {format_bytes(most)}"
            )
        return n_bytes

    def rate(self, key: str) -> int | None:
        value = self._get(key)
        return None if value is None else read_rate(str(value), self.at(key))

    def link(self, key: str) -> Link | None:
        value = self._get(key)
        return None if value is None else read_link(str(value), self.at(key))

    def count(self, key: str) -> int | None:
        value = self._get(key)
        if value is None:
            return None
        if not isinstance(value, int) or isinstance(value, bool):
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is no whole number")
        return read_count(value, self.at(key))

    def flag(self, key: str, *, default: bool) -> bool:
        value = self._get(key)
        if value is None:
            return default
        if not isinstance(value, bool):
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is neither true nor false")
        return value

    def choice(self, key: str, kind: type[_Choice]) -> _Choice | None:
        value = self._get(key)
        if value is None:
            return None
        chosen = next((member for member in kind if member == value), None)
        if chosen is None:
            possible = ", ".join(kind)
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is none of {possible}")
        return chosen

    def below(self, key: str) -> _Words | None:
        value = self._get(key)
        return None if value is None else _Words(value, (*self._path, key), self._where)

    def list_below(self, key: str) -> list[_Words]:
        value = self._get(key)
        if value is None:
            return []
        if not isinstance(value, list):
            raise ConfigProblem(f"{self.at(key)}: {_shown(value)} is no list")
        return [_Words(item, (*self._path, key, n), self._where) for n, item in enumerate(value)]

    def _get(self, key: str) -> object:
        self._asked.append(key)
        return self._data.get(key)


def _shown(value: object) -> str:
    """A value in a message: short, whatever it is."""
    text = str(value)
    return f"'{text[:40]}...'" if len(text) > 43 else f"'{text}'"
