"""Options that describe a machine, and the machine that a command works with."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from hotset.core.machine import Machine
    from hotset.core.machine_text import MachineWords
    from hotset.engine.base import Engine
    from hotset.probe.measured import Measured

__all__ = [
    "Cores",
    "DiskRate",
    "GpuBandwidth",
    "GpuUsed",
    "Gpus",
    "MachineFile",
    "MachineRam",
    "MachineThreads",
    "Pcie",
    "RamBandwidth",
    "RamUsed",
    "cache_folder",
    "chosen_machine",
    "kept_measurements",
    "measured_file",
]

Gpus = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu",
        metavar="SIZE[,NAME][,shared]",
        help="A graphics card, such as '16GiB,RX 9070 XT', instead of this machine's; once per"
        " card. 'none': without any. shared: it uses the machine's RAM.",
    ),
]
GpuUsed = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-used", metavar="SIZE", help="Its memory that others use; once per card, in order."
    ),
]
GpuBandwidth = Annotated[
    list[str] | None,
    typer.Option(
        "--gpu-bw",
        metavar="RATE",
        help="Its memory's bandwidth, such as 640GB/s; once per card, in order."
        " [default: the published one, if the name is known]",
    ),
]
Pcie = Annotated[
    list[str] | None,
    typer.Option(
        "--pcie", metavar="GENxLANES", help="Its slot, such as 4x16; once per card, in order."
    ),
]
MachineRam = Annotated[
    str | None, typer.Option("--ram", metavar="SIZE", help="RAM of the machine, such as 32GiB.")
]
RamUsed = Annotated[
    str | None, typer.Option("--ram-used", metavar="SIZE", help="RAM that others use.")
]
RamBandwidth = Annotated[
    str | None,
    typer.Option("--ram-bw", metavar="RATE", help="Bandwidth of the RAM, such as 60GB/s."),
]
DiskRate = Annotated[
    str | None,
    typer.Option("--disk", metavar="RATE", help="How fast the disk reads, such as 3GB/s."),
]
Cores = Annotated[int | None, typer.Option("--cores", help="Physical cores.")]
MachineThreads = Annotated[
    int | None, typer.Option("--machine-threads", help="Logical processors.")
]
MachineFile = Annotated[
    Path | None,
    typer.Option(
        "--machine",
        metavar="FILE",
        readable=False,  # typer would refuse it as a wrong value; it is ours to say why
        help="The machine from a file, as `hotset machine save` writes it.",
    ),
]


def cache_folder(environ: Mapping[str, str]) -> Path:
    """Where everything is kept that can be made again: in the user's cache directory (XDG Base
    Directory Specification: a relative path in the variable is to be ignored)."""
    named = environ.get("XDG_CACHE_HOME", "")
    folder = Path(named) if named.startswith("/") else Path(os.path.expanduser("~")) / ".cache"
    return folder / "hotset"


def measured_file(environ: Mapping[str, str]) -> Path:
    """Where measured facts are kept."""
    return cache_folder(environ) / "machine.json"


def kept_measurements() -> Measured:
    """What was measured before; a note says so if the file is damaged."""
    from hotset.cli.screen import note
    from hotset.probe.measured import load_measured

    measured, complaint = load_measured(measured_file(os.environ))
    if complaint:
        note(complaint)
    return measured


def chosen_machine(
    words: MachineWords,
    file: Path | None = None,
    *,
    model: Path | None = None,
    engine: Engine | None = None,
    with_users: bool = False,
) -> Machine:
    """The machine that is meant: this one, or that of a file, with what the options change.

    Args:
        words: what the options say.
        file: a machine's file; then this machine is not looked at.
        model: for the disk behind it.
        engine: asked for its devices, unless the options or a file name the cards. Without one
            the cards are those that drivers know of, and none has a backend.

    Raises:
        ConfigProblem: an option or the file says what cannot be meant.
        EngineProblem: the engine does not answer.
    """
    from hotset.core.machine_text import described_machine
    from hotset.probe.described import read_machine
    from hotset.probe.this_machine import this_machine

    if file is not None:
        return described_machine(words, read_machine(file))
    listed = engine.describe(os.environ).devices if engine and not words.gpu else None
    here = this_machine(
        measured=kept_measurements(), model=model, listed=listed, with_users=with_users
    )
    return described_machine(words, here)
