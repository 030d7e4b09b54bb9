"""`hotset serve`: a model behind OpenAI- and Anthropic-compatible endpoints."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from hotset.cli.options import Ctx, EngineName, Kv, Ram, Template, Threads, Trace
from hotset.core.errors import ConfigProblem
from hotset.core.settings import LOOPBACK

if TYPE_CHECKING:
    from hotset.core.plan import Wishes
    from hotset.core.settings import Secret
    from hotset.gateway.config import KeySource
    from hotset.gateway.settings import GatewaySettings

__all__ = ["serve"]

_DEFAULT_PORT = 9292
_DEFAULT_TTL = "30m"


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
        if ttl is not None:
            raise ConfigProblem("--ttl is for several models; one that is served alone stays")
        settings = _settings(host, port, [key] if key else [], takes_any_name=True)
        _serve_one(models[0], wishes, engine, settings, chat_template, trace)
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
    from hotset.cli.gateway import Service, run_gateway
    from hotset.cli.machine_options import cache_folder
    from hotset.cli.reloading import ConfigWatch
    from hotset.cli.screen import note
    from hotset.cli.tokenizers import TokenizerEngines
    from hotset.engine.ports import check_port
    from hotset.gateway.config import load_config, parse_duration

    keys = [key] if key else []
    default, file = None, None
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
    settings = _settings(host, port, keys)
    check_port(settings.listen_host, settings.listen_port)
    note(f"hotset {__version__}")
    kept = Conversations(cache_folder(os.environ) / "conversations")
    try:
        kept.open()
    except OSError as error:
        note(f"{kept.folder}: {error.strerror}; conversations end when their model leaves")
    else:
        fleet = replace(fleet, conversations=kept)
    for line in describe_fleet(fleet):
        note(line)
    offers = [member.offer for member in fleet.members.values()]
    counting = TokenizerEngines(lambda id_: fleet.members[id_].path, fleet.engine)
    watch = ConfigWatch(config, file, fleet, wishes) if config and file else None
    run_gateway(Service(offers, fleet, settings, counting.start, default=default, watch=watch))


def _settings(
    host: str | None, port: int | None, keys: list[Secret], *, takes_any_name: bool = False
) -> GatewaySettings:
    """Checked, with hotset's own address where none is given."""
    from hotset.gateway.settings import GatewaySettings, validate_gateway_settings

    settings = GatewaySettings(
        listen_host=LOOPBACK if host is None else host,
        listen_port=_DEFAULT_PORT if port is None else port,
        api_keys=tuple(keys),
        takes_any_name=takes_any_name,
    )
    validate_gateway_settings(settings)
    return settings


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
    settings: GatewaySettings,
    chat_template: Path | None,
    trace: Path | None,
) -> None:
    """The gateway with one model, which is loaded at once."""
    from contextlib import closing

    from hotset.cli.alone import Alone
    from hotset.cli.gateway import Service, run_gateway
    from hotset.cli.plan_lines import describe_plan
    from hotset.cli.screen import note
    from hotset.cli.tokenizers import TokenizerEngines
    from hotset.engine.ports import check_port

    alone = Alone(model, wishes, engine, chat_template=chat_template, trace=trace)
    with closing(alone):
        check_port(settings.listen_host, settings.listen_port)
        for line in describe_plan(alone.ready):
            note(line)
        template = alone.settings.chat_template
        path = alone.ready.path
        counting = TokenizerEngines(lambda _: path, engine, chat_template=template)
        run_gateway(Service([alone.offer()], alone, settings, counting.start, alone=alone))
