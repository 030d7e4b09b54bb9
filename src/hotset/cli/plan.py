"""`hotset plan`: where every part of a model goes, how fast it will be, and why."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset.cli.machine_options import (
    Cores,
    DiskRate,
    GpuBandwidth,
    Gpus,
    GpuUsed,
    MachineFile,
    MachineRam,
    Pcie,
    RamBandwidth,
    RamUsed,
)
from hotset.cli.options import Ctx, Json, Kv, Threads
from hotset.core.errors import ConfigProblem

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.cli.subjects import Subject
    from hotset.core.machine import Machine
    from hotset.core.machine_text import MachineWords
    from hotset.core.plan import Wishes
    from hotset.engine.base import Engine

__all__ = ["plan"]

_ARGV_NAMES = ("llama-server",)


def plan(
    models: Annotated[
        list[str],
        typer.Argument(
            metavar="MODEL...",
            help="GGUF files, any file of a shard set, folders with one chat model, or 'smollm2'.",
        ),
    ],
    ctx: Ctx = None,
    kv: Kv = None,
    slots: Annotated[
        int, typer.Option("--slots", help="Requests at the same time, each with its own context.")
    ] = 1,
    ubatch: Annotated[
        int | None, typer.Option("--ubatch", help="Prompt tokens computed at once.")
    ] = None,
    cpu_moe: Annotated[
        int | None,
        typer.Option("--cpu-moe", help="Blocks whose experts stay in RAM, counted from the first."),
    ] = None,
    no_vision: Annotated[
        bool, typer.Option("--no-vision", help="Leave the projector out.")
    ] = False,
    reserve: Annotated[
        str | None,
        typer.Option(
            "--reserve",
            metavar="SIZE",
            help="Memory of each card that is left alone. [default: 1 GiB beside a desktop]",
        ),
    ] = None,
    threads: Threads = None,
    engine: Annotated[
        str | None,
        typer.Option(
            "--engine",
            help="embedded, llama-server, or a program's path. [default: a llama-server on the"
            " PATH, else embedded]",
        ),
    ] = None,
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
    argv: Annotated[
        str | None,
        typer.Option("--argv", metavar="ENGINE", help="Print a command line: llama-server."),
    ] = None,
    is_explained: Annotated[
        bool, typer.Option("--explain", help="Print every term of the sums.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Plan how MODEL would run: what goes where, which context, how fast, and why.

    Nothing is started. Without options for a machine it is this one, as it is now.
    """
    from hotset.core.machine_text import MachineWords

    if argv is not None and argv not in _ARGV_NAMES:
        raise ConfigProblem(f"--argv is '{argv}'; choose one of {', '.join(_ARGV_NAMES)}")
    if (argv is not None) + as_json + is_explained > 1:
        raise ConfigProblem("--argv, --json and --explain each print in their own way; choose one")
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
    )
    wishes = _wishes(ctx, kv, slots, threads, ubatch, cpu_moe, reserve, has_vision=not no_vision)
    found, plans = [], []
    for model in models:
        ready, subject, machine, given = _planned(model, words, file, engine, wishes)
        if reserve is not None and not machine.devices:
            raise ConfigProblem(f"--reserve is {reserve}, but there is no card; leave it out")
        plans.append(ready)
        found.append(_shown(ready, subject, machine, given, argv, is_explained, as_json))
    if as_json:
        print(json.dumps(found if len(found) > 1 else found[0], indent=1))
        return
    if len(plans) > 1 and argv is None and not is_explained:
        from hotset.cli.planscreen import comparison
        from hotset.cli.screen import harmless

        found.append(harmless("\n".join(comparison(plans))))
    print(("\n" if argv else "\n\n").join(found))


def _wishes(
    ctx: int | None,
    kv: str | None,
    slots: int,
    threads: int | None,
    ubatch: int | None,
    cpu_moe: int | None,
    reserve: str | None,
    *,
    has_vision: bool,
) -> Wishes:
    """Options as wishes.

    Raises:
        ConfigProblem: a value out of its range.
    """
    from dataclasses import replace

    from hotset.cli.wishing import wishes_from
    from hotset.core.machine_text import read_size

    for name, value, least in (("--ubatch", ubatch, 1), ("--cpu-moe", cpu_moe, 0)):
        if value is not None and value < least:
            raise ConfigProblem(f"{name} is {value}; it must be at least {least}")
    return replace(
        wishes_from(ctx, kv, slots, threads, None, is_serving=False),
        ubatch_tokens=ubatch,
        cpu_moe_layers=cpu_moe,
        reserve_bytes=None
        if reserve is None
        else read_size(reserve, "--reserve", may_be_zero=True),
        has_vision=has_vision,
    )


def _planned(
    model: str, words: MachineWords, file: Path | None, engine: str | None, wishes: Wishes
) -> tuple[Launchable, Subject, Machine, Wishes]:
    """The plan of one model, on the machine that is meant."""
    from dataclasses import replace

    from hotset.cli.launching import make_ready
    from hotset.cli.machine_options import chosen_machine
    from hotset.cli.machines import machine_now
    from hotset.cli.pacing import with_experience
    from hotset.cli.subjects import read_subject
    from hotset.core.machine_text import MachineWords, described_machine

    subject = read_subject(model, may_embed=True, has_vision=wishes.has_vision)
    chosen = _engine(engine)
    if file is not None or words.gpu:
        machine = chosen_machine(words, file, model=subject.files[0])
        ready = make_ready(subject, machine, replace(wishes, can_store=True), chosen, asks=False)
        return ready, subject, machine, replace(wishes, can_store=True)
    machine, info = machine_now(chosen, subject.files[0])
    if words != MachineWords():
        machine = described_machine(words, machine)
    else:  # what was seen of this machine says nothing of another
        machine = with_experience(machine, subject.spec, chosen)
    wishes = replace(wishes, has_moe_cache=info is not None and info.has_moe_cache)
    ready = make_ready(subject, machine, wishes, chosen)
    return ready, subject, machine, replace(wishes, can_store=ready.plugin is not None)


def _engine(name: str | None) -> Engine:
    import os

    from hotset.cli.machines import engine_called
    from hotset.engine.llama_server import find_llama_server

    if name is None:
        has_server = find_llama_server(os.environ.get("PATH", os.defpath))
        name = "llama-server" if has_server else "embedded"
    return engine_called(name)


def _shown(
    ready: Launchable,
    subject: Subject,
    machine: Machine,
    wishes: Wishes,
    argv: str | None,
    is_explained: bool,
    as_json: bool,
) -> Any:
    """What is printed of one plan: text, or facts for JSON."""
    import sys

    from hotset.cli.planscreen import plan_facts, plan_lines
    from hotset.cli.screen import harmless
    from hotset.core.plan.alternatives import alternatives
    from hotset.core.plan.explain import explain

    if argv is not None:
        from hotset.cli.settings import command_line

        return command_line(ready)
    if is_explained:
        return harmless("\n".join(explain(ready.spec, ready.plan)))
    others = alternatives(ready.spec, machine, wishes, subject.projector, ready.plan)
    if as_json:
        return plan_facts(ready, machine, others)
    lines = plan_lines(ready, subject, machine, wishes, others, has_bars=sys.stdout.isatty())
    return harmless("\n".join(lines))
