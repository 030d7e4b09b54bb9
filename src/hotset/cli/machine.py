"""`hotset machine`: the machine that plans are made for, as text, JSON, or a file to edit."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.machine_options import (
    Cores,
    DiskRate,
    GpuBandwidth,
    Gpus,
    GpuUsed,
    MachineFile,
    MachineRam,
    MachineThreads,
    Pcie,
    RamBandwidth,
    RamUsed,
    chosen_machine,
)
from hotset.cli.options import Json
from hotset.core.errors import ConfigProblem, FileProblem, MachineProblem

if TYPE_CHECKING:
    from hotset.core.machine import Disk, Gpu, Machine
    from hotset.engine.base import Engine

__all__ = ["machine"]

machine = typer.Typer(name="machine", rich_markup_mode=None)

_ModelPath = Annotated[
    Path | None,
    typer.Option(
        "--model",
        readable=False,  # typer would refuse it as a wrong value; it is a file problem
        help="A model's file or folder, for the disk behind it. [default: this folder]",
    ),
]

_EngineName = Annotated[
    str | None,
    typer.Option(
        "--engine",
        help="Which engine's devices count: embedded, llama-server, or a program's path."
        " [default: a llama-server on the PATH, else embedded]",
    ),
]


@machine.callback(invoke_without_command=True)
def commands(context: typer.Context) -> None:
    """The machine that plans are made for: show it, or save it to a file."""
    if context.invoked_subcommand is None:
        typer.echo(context.get_help())


@machine.command()
def show(
    model: _ModelPath = None,
    engine: _EngineName = None,
    file: MachineFile = None,
    gpu: Gpus = None,
    gpu_used: GpuUsed = None,
    gpu_bw: GpuBandwidth = None,
    pcie: Pcie = None,
    ram: MachineRam = None,
    ram_used: RamUsed = None,
    ram_bw: RamBandwidth = None,
    disk: DiskRate = None,
    cores: Cores = None,
    threads: MachineThreads = None,
    as_json: Json = False,
) -> None:
    """Show this machine, or the one that a file or the options describe.

    With --json in bytes, and bytes per second; null is not known.
    """
    from hotset.cli.screen import harmless
    from hotset.core.machine_text import MachineWords

    words = MachineWords(
        gpu=tuple(gpu or ()),
        gpu_used=tuple(gpu_used or ()),
        pcie=tuple(pcie or ()),
        gpu_bandwidth=tuple(gpu_bw or ()),
        ram=ram,
        ram_used=ram_used,
        ram_bandwidth=ram_bw,
        disk=disk,
        cores=cores,
        threads=threads,
    )
    chosen = chosen_machine(
        words, file, model=_existing(model), engine=_engine(engine), with_users=True
    )
    if as_json:
        print(json.dumps(asdict(chosen), indent=1, default=sorted))
        return
    unused = () if file or gpu else _unused(chosen)
    for line in (*_lines(chosen), *unused):
        print(harmless(line))


@machine.command()
def save(
    file: Annotated[
        Path,
        typer.Argument(metavar="FILE", readable=False, help="A new file; '-' for the output."),
    ],
    model: _ModelPath = None,
    engine: _EngineName = None,
) -> None:
    """Write this machine to a YAML file, for `--machine FILE`. It says nothing of who uses it."""
    from hotset.core.machine_file import machine_yaml
    from hotset.core.machine_text import MachineWords

    chosen = chosen_machine(MachineWords(), model=_existing(model), engine=_engine(engine))
    text = machine_yaml(chosen)
    if str(file) == "-":
        print(text, end="")
        return
    try:
        new = file.open("x", encoding="utf-8")
    except FileExistsError:
        raise ConfigProblem(f"{file}: there is such a file already; name a new one") from None
    except OSError as error:
        raise MachineProblem(f"{file}: cannot be written ({error.strerror})") from error
    try:
        with new:
            new.write(text)
    except OSError as error:
        file.unlink(missing_ok=True)  # what is left of it would be in the way of the next try
        raise MachineProblem(f"{file}: cannot be written ({error.strerror})") from error


def _existing(model: Path | None) -> Path:
    if model is not None and not model.exists():
        raise FileProblem(f"{model}: there is no such file or folder")
    return model or Path()


def _engine(name: str | None) -> Engine:
    from hotset.engine import engine_named
    from hotset.engine.llama_server import find_llama_server

    path = os.environ.get("PATH", os.defpath)
    if name is None:
        name = "llama-server" if find_llama_server(path) else "embedded"
    return engine_named(name, path)


def _unused(chosen: Machine) -> Iterator[str]:
    """Cards that are there, and that the engine did not list."""
    from hotset.probe.graphics import graphics

    here = graphics(chosen.ram_total_bytes, chosen.ram_available_bytes)
    used = {gpu.bus_id for gpu in chosen.devices}
    for gpu in here.gpus:
        if gpu.bus_id not in used:
            yield f"{gpu_line(gpu)} · not listed by the engine, so it is not used"
    yield from here.notes


def _lines(chosen: Machine) -> Iterator[str]:
    from hotset.core.units import format_bytes, format_rate

    fast = chosen.num_performance_cores
    kinds = f" ({fast} of them fast)" if fast else ""
    name = chosen.cpu_name or "processor"
    yield f"{name} · {chosen.num_cores} cores{kinds}, {chosen.num_threads} threads"
    ram = f"RAM {format_bytes(chosen.ram_total_bytes)}"
    ram += f" ({format_bytes(chosen.ram_available_bytes)} available)"
    if chosen.ram_bandwidth_bytes_s:
        ram += f" · {format_rate(chosen.ram_bandwidth_bytes_s)}"
    if chosen.swap_total_bytes:
        ram += f" · swap {format_bytes(chosen.swap_total_bytes)}"
    yield ram
    for gpu in chosen.devices:
        yield gpu_line(gpu)
    if not chosen.devices:
        yield "no graphics card that the engine can use"
    if chosen.disk:
        yield f"disk: {disk_words(chosen.disk)}"


def gpu_line(gpu: Gpu) -> str:
    """A device in one line: memory, who has how much, bandwidth, slot, engine."""
    from hotset.core.units import format_bytes, format_rate

    text = f"{gpu.name} · {format_bytes(gpu.total_bytes)}"
    if gpu.used_bytes:
        holders = ", ".join(
            user.name if user.used_bytes is None else f"{user.name} {format_bytes(user.used_bytes)}"
            for user in gpu.used_by[:3]
        )
        text += f" ({format_bytes(gpu.used_bytes)} in use{f': {holders}' if holders else ''})"
    parts = [text]
    if gpu.shares_ram:
        parts.append("shares the RAM")
    if gpu.bandwidth_bytes_s:
        parts.append(format_rate(gpu.bandwidth_bytes_s))
    if gpu.link:
        parts.append(f"PCIe {gpu.link.pcie_generation}.0 x{gpu.link.lanes}")
    if gpu.copy_bytes_s:
        parts.append(f"copies at {format_rate(gpu.copy_bytes_s)}")
    if gpu.engine_name:
        parts.append(f"as {gpu.engine_name}")
    return " · ".join(parts)


def disk_words(disk: Disk) -> str:
    """Kind and figures of a disk."""
    from hotset.core.units import format_rate

    words = str(disk.kind)
    if disk.read_bytes_s:
        words += f", reads {format_rate(disk.read_bytes_s)}"
    if disk.random_read_bytes_s:
        words += f", {format_rate(disk.random_read_bytes_s)} in 512 KiB reads"
    return words
