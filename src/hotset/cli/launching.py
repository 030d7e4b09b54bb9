"""What `run`, `serve` and `demo` share: from a model's name to a running engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem, EngineProblem

if TYPE_CHECKING:
    from hotset.cli.subjects import FileStamp, Subject
    from hotset.core.machine import Machine
    from hotset.core.modelspec import ModelSpec
    from hotset.core.placement import Projector
    from hotset.core.plan import Plan, Wishes
    from hotset.core.settings import Settings
    from hotset.engine.base import Engine
    from hotset.engine.running import Running
    from hotset.engine.watch import Progress
    from hotset.gguf.ranges import ByteRange
    from hotset.store.probe import StoreCheck

__all__ = ["Basis", "Launchable", "launch", "make_ready", "prepare", "through_store"]


@dataclass(frozen=True, slots=True)
class Basis:
    """What a plan was made from, to make another."""

    machine: Machine
    wishes: Wishes
    projector: Projector | None


@dataclass(frozen=True, slots=True)
class Launchable:
    """A model with its plan, ready to be started.

    Attributes:
        files: the model's file, or its shards in order.
        plugin: of the expert store, if the plan uses it.
        needed: for each of `files`, what of it is no expert (see `hotset.gguf.ranges`).
        projector: the file that goes with the model, if there is one.
        basis: what the plan was made from; None for one that was changed by hand and so cannot be
            made again.
        stamps: of every file that will be opened, as they were when they were read.
    """

    files: tuple[Path, ...]
    spec: ModelSpec
    plan: Plan
    engine: Engine
    is_embedding: bool
    plugin: Path | None = None
    needed: tuple[tuple[ByteRange, ...], ...] = ()
    projector: Path | None = None
    basis: Basis | None = None
    stamps: tuple[FileStamp, ...] = ()

    @property
    def path(self) -> Path:
        """What an engine is given."""
        return self.files[0]


def prepare(
    model: str,
    wishes: Wishes,
    engine: str,
    *,
    may_embed: bool = False,
    has_vision: bool = False,
    granted: Mapping[str, int] | None = None,
) -> Launchable:
    """Read the file, measure the machine, decide.

    Args:
        may_embed: an embedding model will do, too.
        has_vision: pictures may come; a projector beside the model is taken.
        granted: no more bytes than these of the cards named; None for all that is free.

    Raises:
        FileProblem: the file cannot be used.
        MachineProblem: the wishes do not fit.
        EngineProblem: no such engine.
    """
    from hotset.cli.machines import engine_called, machine_now
    from hotset.cli.pacing import with_experience
    from hotset.cli.subjects import read_subject

    subject = read_subject(model, may_embed=may_embed, has_vision=has_vision)
    chosen = engine_called(engine)
    machine, info = machine_now(chosen, subject.files[0])
    machine = with_experience(machine, subject.spec, chosen)
    wishes = replace(wishes, has_moe_cache=info is not None and info.has_moe_cache)
    if granted is not None and machine.devices:
        from hotset.cli.cards import granted_only

        machine, wishes = granted_only(machine, wishes, granted)
    return make_ready(subject, machine, wishes, chosen)


def make_ready(
    subject: Subject, machine: Machine, wishes: Wishes, engine: Engine, *, asks: bool = True
) -> Launchable:
    """The plan for a machine, with the expert store where that helps and the engine takes it.

    Args:
        asks: try whether the engine takes the store; else the wishes' word is taken.
    """
    from hotset.core.plan import make_plan

    plan = make_plan(subject.spec, machine, wishes, subject.projector)
    ready = Launchable(
        subject.files,
        subject.spec,
        plan,
        engine,
        is_embedding=subject.is_embedding,
        needed=subject.needed,
        projector=subject.projector_path if _has_projector(plan) else None,
        basis=Basis(machine, wishes, subject.projector),
        stamps=subject.stamps,
    )
    if not (asks and plan.is_larger_than_ram and subject.spec.experts):
        return ready
    return _with_store(ready, machine, replace(wishes, can_store=True), subject.projector)


def _has_projector(plan: Plan) -> bool:
    from hotset.core.placement import ProjectorPlace

    return plan.placement.projector is not ProjectorPlace.NONE


def _with_store(
    ready: Launchable, machine: Machine, wishes: Wishes, projector: Projector | None
) -> Launchable:
    """The same model with its experts in the store, if the engine takes it; else a plan that says
    why not."""
    from hotset.core.plan import make_plan

    store = _check_store(ready.engine)
    if store.plugin:
        plan = make_plan(ready.spec, machine, wishes, projector)
        basis = Basis(machine, wishes, projector)
        return replace(ready, plan=plan, plugin=store.plugin, basis=basis)
    reason = f"without the expert store, which would help here: {store.reason}"
    return replace(ready, plan=replace(ready.plan, reasons=(*ready.plan.reasons, reason)))


def through_store(ready: Launchable, expert_bytes: int) -> Launchable:
    """The same model with its experts in the store although they would fit, for who wants to watch.

    Args:
        expert_bytes: memory for experts; 0: they are computed where they are mapped, and the store
            sees their routing only.

    Raises:
        ConfigProblem: the model has no experts.
        EngineProblem: the engine does not take the store.
    """
    from hotset.core.plan.stored import stored_plan

    if not ready.spec.experts:
        raise ConfigProblem(
            f"{ready.path.name}: this model has no experts; choose a Mixture-of-Experts model"
        )
    store = _check_store(ready.engine)
    if store.plugin is None:
        raise EngineProblem(f"engine {store.engine}: {store.reason}")
    if ready.basis is None:
        raise EngineProblem(f"{ready.path.name}: its plan was changed by hand; make it anew")
    plan = stored_plan(ready.spec, ready.basis.machine, ready.plan, expert_bytes)
    # Without memory for experts the store only looks on: no plan says how fast that is.
    basis = ready.basis if expert_bytes else None
    return replace(ready, plan=plan, plugin=store.plugin, basis=basis)


def _check_store(engine: Engine) -> StoreCheck:
    """Does the store load in this engine, and if not, why? Starts it once or twice to try."""
    from hotset.engine.base import scrubbed
    from hotset.engine.llama_server import LlamaServerEngine
    from hotset.store.probe import check_embedded, check_llama_server

    environ = scrubbed(os.environ)
    if isinstance(engine, LlamaServerEngine):
        return check_llama_server(engine.program, environ)
    return check_embedded(environ)


def launch(
    ready: Launchable,
    settings: Settings,
    on_progress: Callable[[Progress], None],
    *,
    on_line: Callable[[str], None] | None = None,
    on_pid: Callable[[int], None] | None = None,
    cancel: threading.Event | None = None,
    is_open: bool = False,
    tells_spills: bool = False,
) -> Running:
    """Start the engine, and once more with a smaller plan where memory did not suffice.

    What the start shows is compared with the plan and kept for the next one. See
    `hotset.engine.start.start` for the other arguments and what it raises.

    Args:
        tells_spills: after the first answer look by itself for what the driver has moved off a
            card, and say so; else `Running.after_answer` is there to be called.

    Raises:
        FileProblem: besides, for a file that has gone or changed since the plan was made.
    """
    from hotset.cli.pacing import PaceKeeper
    from hotset.cli.proving import first_look, prove
    from hotset.cli.replanning import replanned, retold
    from hotset.cli.spilling import SpillWatch
    from hotset.cli.subjects import check_unchanged
    from hotset.core.errors import HotsetError
    from hotset.engine.shortage import MemoryShort
    from hotset.engine.start import start

    def begin(ready: Launchable, settings: Settings) -> Running:
        keeper, spills = PaceKeeper(ready), SpillWatch(ready)

        def hear(line: str) -> None:
            keeper.hear(line)
            if on_line:
                on_line(line)
            if tells_spills and keeper.num_answers and (said := spills.look()):
                _say(f"{said} (`hotset unload {settings.alias}` has it start anew)", on_line)

        check_unchanged(ready.stamps)
        try:
            running = start(
                ready.engine,
                replace(settings, tells_memory_first=first_look(ready) is not None),
                os.environ,
                on_progress=on_progress,
                on_line=hear,
                on_pid=on_pid,
                cancel=cancel,
                weights_bytes=ready.spec.n_bytes,
                is_open=is_open,
                refuses=first_look(ready),
            )
            spills.adopt(running.pid, running.loaded)
            running.after_answer = spills.look
            return running
        except HotsetError:
            check_unchanged(ready.stamps)  # then this is why
            raise

    remarks: tuple[str, ...] = ()
    try:
        running = begin(ready, settings)
    except MemoryShort as short:
        ready, why = replanned(ready, short)
        _say(why, on_line)
        remarks = (why,)
        running = begin(ready, retold(settings, ready))
    try:
        return prove(ready, running, remarks, lambda text: _say(text, on_line))
    except BaseException:
        running.stop(grace_s=0)
        raise


def _say(text: str, on_line: Callable[[str], None] | None) -> None:
    """A line for the user, and for the engine's log where somebody keeps one."""
    from hotset.cli.screen import note

    note(text)
    if on_line:
        on_line(f"hotset: {text}")
