"""`hotset demo`: the whole path once, with the models that come along."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import EngineName
from hotset.core.errors import EngineProblem

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable

__all__ = ["demo"]

_QUESTION = "Why is the sky blue? Answer in two or three sentences."
# Of the experts' bytes: few enough that there is something to see, enough for most to be there.
_EXPERT_SHARE = 0.8


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = _QUESTION,
    engine: EngineName = "embedded",
    dense: Annotated[
        bool, typer.Option("--dense", help="Ask the dense model, as it comes, without experts.")
    ] = False,
) -> None:
    """Plan, start, ask and stop, with a small Mixture-of-Experts model.

    It is made of SmolLM2-135M on this machine, once, in about a minute. Its experts stay on the
    disk, and the hot ones in a memory smaller than all of them.
    """
    from hotset.cli.chat import Conversation
    from hotset.cli.demo_models import DEMO_MOE_NAME, DEMO_NAME
    from hotset.cli.experts import ExpertWatch, watched_store
    from hotset.cli.launching import launch
    from hotset.cli.plan_lines import describe_plan
    from hotset.cli.run import answer_once
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import settings_of
    from hotset.core.loaded import BufferKind
    from hotset.core.units import format_bytes

    ready = _prepare_dense(engine) if dense else _prepare(engine)
    for line in describe_plan(ready):
        note(line)
    without = nullcontext((None, ExpertWatch(None)))
    with watched_store(ready) if ready.plugin else without as (store, experts):
        with LoadingLine() as loading:
            running = launch(ready, settings_of(ready, store=store), loading.show)
        with running:
            experts.adopt()
            loaded, planned = running.loaded, ready.plan.footprint
            cache = loaded.bytes_of(BufferKind.KV) + loaded.bytes_of(BufferKind.RECURRENT)
            note(
                f"ready in {loaded.start_s:.1f} s with {loaded.build}"
                f" on {', '.join(loaded.devices)}"
            )
            note(
                f"KV and state {format_bytes(cache)}, planned {format_bytes(planned.cache_bytes)}"
                f" · compute {format_bytes(loaded.bytes_of(BufferKind.COMPUTE))},"
                f" planned {format_bytes(planned.compute_bytes)}"
            )
            print(f"> {prompt}")
            talk = Conversation(running, "", {"max_tokens": 160, "seed": 1}, is_shown=True)
            answer_once(talk, prompt, running, experts, as_json=False)
            if counted := experts.total():
                total = ready.spec.experts.n_bytes if ready.spec.experts else 0
                note(f"{counted}, of {format_bytes(total)}")
    name = DEMO_MOE_NAME if ready.spec.experts else DEMO_NAME
    note(f"stopped · next: hotset run {name}, or hotset run YOUR-MODEL.gguf")


def _prepare_dense(engine: str) -> Launchable:
    from hotset.cli.demo_models import DEMO_NAME
    from hotset.cli.launching import prepare
    from hotset.core.plan import Wishes

    return prepare(DEMO_NAME, Wishes(), engine)


def _prepare(engine: str) -> Launchable:
    """The model with experts, in the store; without what cannot be had, and why."""
    from hotset.cli.demo_models import DEMO_MOE_NAME, demo_model
    from hotset.cli.launching import prepare, through_store
    from hotset.cli.screen import note
    from hotset.cli.subjects import resolve_model
    from hotset.core.plan import Wishes

    demo_model()  # without it there is nothing to fall back on
    try:
        resolve_model(DEMO_MOE_NAME)
    except Exception as error:  # whatever it is, the dense model still answers
        note(f"note: the model with experts cannot be made ({error}); the dense one answers")
        return _prepare_dense(engine)
    ready = prepare(DEMO_MOE_NAME, Wishes(), engine)
    expert_bytes = ready.spec.experts.n_bytes if ready.spec.experts else 0
    try:
        return through_store(ready, int(_EXPERT_SHARE * expert_bytes))
    except EngineProblem as problem:
        note(f"note: without the expert store: {problem.message}")
        return ready
