"""`hotset serve`: a model behind OpenAI- and Anthropic-compatible endpoints."""

from __future__ import annotations

import math
import os
import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import Ctx, EngineName, Kv, Ram, Template, Threads, Trace
from hotset.core.errors import ConfigProblem
from hotset.core.settings import LOOPBACK

if TYPE_CHECKING:
    from hotset.cli.experts import ExpertWatch
    from hotset.core.plan import Wishes
    from hotset.core.settings import Secret
    from hotset.engine.running import Running
    from hotset.gateway.config import KeySource

__all__ = ["serve"]

_DEFAULT_PORT = 9292
_DEFAULT_TTL = "30m"
_LOOK_S = 0.5
_EXPERTS_EVERY_S = 10.0


def serve(
    models: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="MODEL...",
            help="A GGUF file, or 'smollm2' for the demo's; or folders and several files, whose"
            " models are loaded as they are asked for.",
        ),
    ] = None,
    config: Annotated[
        Path | None,
        typer.Option(
            "--config",
            readable=False,  # typer would refuse it as a wrong value; it is ours to say why
            help="A configuration file that names the models.",
        ),
    ] = None,
    host: Annotated[
        str | None,
        typer.Option(
            "--host",
            help="Address to listen on; another than loopback needs a key. [default: 127.0.0.1]",
        ),
    ] = None,
    port: Annotated[
        int | None,
        typer.Option("--port", help=f"Port; 0 takes a free one. [default: {_DEFAULT_PORT}]"),
    ] = None,
    api_key_file: Annotated[
        Path | None,
        typer.Option(
            "--api-key-file",
            readable=False,  # typer would refuse it as a wrong value; it is a file problem
            help="A file with the key that clients must send. [default: HOTSET_API_KEY, or no key]",
        ),
    ] = None,
    ttl: Annotated[
        str | None,
        typer.Option(
            "--ttl",
            help="Of several models, each leaves when nobody has used it for so long: 90s, 30m, 1h,"
            f" never. [default: {_DEFAULT_TTL}]",
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
    """Serve models to OpenAI and Anthropic clients until Ctrl-C.

    One file is loaded at once. Of a folder, or of several, each is loaded when it is asked for, and
    leaves when others need its place. The first Ctrl-C lets running answers finish, the second ends
    them.
    """
    from hotset.cli.settings import key_from
    from hotset.cli.wishing import wishes_from

    key = key_from(api_key_file)
    wishes = wishes_from(ctx, kv, slots, threads, ram, is_serving=True)
    if config or len(models or ()) > 1 or (models and os.path.isdir(_expanded(models[0]))):
        for name, value in (("--chat-template", chat_template), ("--trace", trace)):
            if value is not None:
                raise ConfigProblem(f"{name} is for one model; serve its file alone")
        _serve_many(models or [], config, wishes, engine, ttl, host, port, key)
    elif models:
        where = (host or LOOPBACK, _DEFAULT_PORT if port is None else port)
        if ttl is not None:
            raise ConfigProblem("--ttl is for several models; one that is served alone stays")
        _serve_one(models[0], wishes, engine, where, key, chat_template, trace)
    else:
        raise ConfigProblem("nothing to serve: name a GGUF file, a folder, or give --config")


def _expanded(text: str) -> Path:
    from hotset.cli.subjects import expanded

    return expanded(text)


def _serve_many(
    models: list[str],
    config: Path | None,
    wishes: Wishes,
    engine: str,
    ttl: str | None,
    host: str | None,
    port: int | None,
    key: Secret | None,
) -> None:
    """The gateway: every model behind one address."""
    from hotset import __version__
    from hotset.cli.conversations import Conversations
    from hotset.cli.fleet import describe_fleet, fleet_of_config, fleet_of_folders
    from hotset.cli.gateway import run_gateway
    from hotset.cli.screen import note
    from hotset.engine.ports import check_port
    from hotset.gateway.config import load_config, parse_duration
    from hotset.gateway.settings import GatewaySettings, validate_gateway_settings

    keys = [key] if key else []
    default = None
    if config:
        if models or ttl is not None:
            what = f"MODEL '{models[0]}'" if models else "--ttl"
            raise ConfigProblem(f"{what} with --config: the file names the models and their times")
        file = load_config(config)
        keys += [_configured_key(source) for source in file.api_keys]
        wishes = replace(wishes, ram_bytes=wishes.ram_bytes or file.ram)
        fleet = fleet_of_config(file, wishes)
        default, host, port = file.default, host or file.host, file.port if port is None else port
    else:
        try:
            ttl_s = parse_duration(ttl or _DEFAULT_TTL)
        except ValueError as error:
            raise ConfigProblem(f"--ttl: '{ttl}' {error}") from None
        fleet = fleet_of_folders(models, wishes, engine, ttl_s=ttl_s)
    settings = GatewaySettings(
        listen_host=host or LOOPBACK,
        listen_port=_DEFAULT_PORT if port is None else port,
        api_keys=tuple(keys),
    )
    validate_gateway_settings(settings)
    check_port(settings.listen_host, settings.listen_port)
    kept = Conversations(_cache_folder() / "conversations")
    fleet = replace(fleet, conversations=kept if kept.open() else None)
    note(f"hotset {__version__}")
    for line in describe_fleet(fleet):
        note(line)
    run_gateway(fleet, settings, default)


def _cache_folder() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return Path(home or Path.home() / ".cache") / "hotset"


def _configured_key(source: KeySource) -> Secret:
    """A key from where the configuration file says."""
    from hotset.cli.settings import key_from
    from hotset.core.settings import Secret

    if source.file:
        found = key_from(source.file)
        if found:
            return found
    text = os.environ.get(source.env or "", "").strip()
    if not text:
        raise ConfigProblem(f"api_keys: the environment has no {source.env}, or it is empty")
    return Secret(text)


def _serve_one(
    model: str,
    wishes: Wishes,
    engine: str,
    where: tuple[str, int],
    key: Secret | None,
    chat_template: Path | None,
    trace: Path | None,
) -> None:
    """One model, loaded at once; its engine answers clients itself."""
    from hotset.cli.experts import watched_store
    from hotset.cli.launching import launch, prepare
    from hotset.cli.plan_lines import describe_plan
    from hotset.cli.screen import LoadingLine, note
    from hotset.cli.settings import settings_of
    from hotset.core.settings import validate_settings
    from hotset.engine.ports import check_port

    host, port = where
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
