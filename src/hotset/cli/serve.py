"""`hotset serve`: a model behind OpenAI- and Anthropic-compatible endpoints."""

from __future__ import annotations

import math
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import Ctx, EngineName, Kv, ModelName, Ram, Template, Threads, Trace

if TYPE_CHECKING:
    from hotset.cli.experts import ExpertWatch
    from hotset.engine.running import Running

__all__ = ["serve"]

_DEFAULT_PORT = 9292
_LOOK_S = 0.5
_EXPERTS_EVERY_S = 10.0


def serve(
    model: ModelName,
    host: Annotated[
        str, typer.Option("--host", help="Address to listen on; another than loopback needs a key.")
    ] = "127.0.0.1",
    port: Annotated[int, typer.Option("--port", help="Port; 0 takes a free one.")] = _DEFAULT_PORT,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="A file with the key that clients must send. [default: HOTSET_API_KEY, or no key]",
        ),
    ] = None,
    slots: Annotated[
        int, typer.Option("--slots", help="Requests at the same time, each with its own context.")
    ] = 1,
    ctx: Ctx = None,
    kv: Kv = None,
    threads: Threads = None,
    ram: Ram = None,
    engine: EngineName = "embedded",
    chat_template: Template = None,
    trace: Trace = None,
) -> None:
    """Serve MODEL to OpenAI and Anthropic clients until Ctrl-C.

    The first Ctrl-C lets running answers finish, the second ends them.
    """
    from hotset.cli.experts import watched_store
    from hotset.cli.launching import describe_plan, launch, prepare, wishes_from
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import key_from, settings_of
    from hotset.core.settings import validate_settings
    from hotset.engine.ports import check_port

    key = key_from(api_key_file)
    wishes = wishes_from(ctx, kv, slots, threads, ram, is_serving=True)
    ready = prepare(model, wishes, engine, may_embed=True, has_vision=True)
    with watched_store(ready, trace) as (store, experts):
        settings = replace(
            settings_of(ready, chat_template=chat_template, store=store),
            host=host,
            port=port,
            api_key=key,
        )
        validate_settings(settings)
        check_port(host, port)
        for line in describe_plan(ready):
            note(line)
        with LoadingLine() as loading:
            running = launch(ready, settings, loading.show, is_open=True)
        with running:
            experts.adopt()
            note(f"ready in {running.loaded.start_s:.1f} s · model id '{settings.alias}'")
            _serve_until_told(running, experts)


def _serve_until_told(running: Running, experts: ExpertWatch) -> None:
    """Say where, then wait for Ctrl-C, or for the engine's end.

    Raises:
        EngineProblem: the engine ended by itself.
    """
    from hotset.cli.live import LiveLine
    from hotset.cli.meter import ServiceMeter
    from hotset.cli.screen import note

    url = running.url
    try:
        note(f"{url}/v1 (OpenAI) · {url}/v1/messages (Anthropic) · Ctrl-C ends it")
        told_at = time.monotonic()
        with LiveLine(ServiceMeter(experts).line, is_wanted=experts.has_store) as live:
            while not running.wait(_LOOK_S):
                if not live.is_on and time.monotonic() - told_at > _EXPERTS_EVERY_S:
                    told_at = time.monotonic()
                    if line := experts.line():
                        note(line)
    except KeyboardInterrupt:
        try:
            busy = running.num_busy_slots()
            if busy:
                note(f"finishing {busy} answer{'s' if busy > 1 else ''}; Ctrl-C again ends at once")
            running.stop(drain_s=math.inf)
        except KeyboardInterrupt:
            signal.signal(signal.SIGINT, signal.SIG_IGN)
            running.stop(grace_s=0)
        return
    raise running.died()
