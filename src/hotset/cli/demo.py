"""`hotset demo`: the whole path once, with the model that comes along."""

from __future__ import annotations

from typing import Annotated

import typer

from hotset.cli.options import EngineName

__all__ = ["demo"]

_QUESTION = "Why is the sky blue? Answer in two or three sentences."


def demo(
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = _QUESTION,
    engine: EngineName = "embedded",
) -> None:
    """Plan, start, ask and stop, with the small model that comes along (SmolLM2-135M)."""
    from hotset.cli.chat import Conversation
    from hotset.cli.experts import ExpertWatch
    from hotset.cli.launching import DEMO_NAME, describe_plan, launch, prepare
    from hotset.cli.run import answer_once
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import settings_of
    from hotset.core.loaded import BufferKind
    from hotset.core.plan import Wishes
    from hotset.core.units import format_bytes

    ready = prepare(DEMO_NAME, Wishes(), engine)
    for line in describe_plan(ready):
        note(line)
    with LoadingLine() as loading:
        running = launch(ready, settings_of(ready), loading.show)
    with running:
        loaded, planned = running.loaded, ready.plan.footprint
        cache = loaded.bytes_of(BufferKind.KV) + loaded.bytes_of(BufferKind.RECURRENT)
        note(f"ready in {loaded.start_s:.1f} s with {loaded.build} on {', '.join(loaded.devices)}")
        note(
            f"KV and state {format_bytes(cache)}, planned {format_bytes(planned.cache_bytes)}"
            f" · compute {format_bytes(loaded.bytes_of(BufferKind.COMPUTE))},"
            f" planned {format_bytes(planned.compute_bytes)}"
        )
        print(f"> {prompt}")
        talk = Conversation(running, "", {"max_tokens": 160, "seed": 1}, is_shown=True)
        answer_once(talk, prompt, ready, running, ExpertWatch(None), as_json=False)
    note(f"stopped · next: hotset run {DEMO_NAME}, or hotset run YOUR-MODEL.gguf")
