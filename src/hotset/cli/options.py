"""Options that several commands share."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from hotset.core.units import parse_tokens

__all__ = ["Ctx", "EngineName", "Json", "Kv", "ModelName", "Ram", "Template", "Threads", "Trace"]

ModelName = Annotated[
    str,
    typer.Argument(
        metavar="MODEL",
        help="A GGUF file, any file of a shard set, a folder with one chat model,"
        " or 'smollm2' or 'smollm2-moe' for the demo's.",
    ),
]
Ctx = Annotated[
    int | None,
    typer.Option(
        "--ctx",
        parser=lambda text: parse_tokens(text, what="--ctx"),
        metavar="TOKENS",
        help="Context, such as 32768 or 32k. [default: all of it that fits]",
    ),
]
Kv = Annotated[
    str | None,
    typer.Option("--kv", help="KV cache type. [default: f16, or q8_0 if only that fits]"),
]
Threads = Annotated[
    int | None,
    typer.Option("--threads", help="Compute threads. [default: the physical cores]"),
]
Ram = Annotated[
    str | None,
    typer.Option(
        "--ram", metavar="SIZE", help="RAM to use, such as 8GiB. [default: what is available]"
    ),
]
EngineName = Annotated[
    str,
    typer.Option(
        "--engine", help="embedded, llama-server (the first on the PATH), or a program's path."
    ),
]
Template = Annotated[
    Path | None,
    typer.Option(
        "--chat-template",
        readable=False,  # typer would refuse it as a wrong value; it is a file problem
        help="A Jinja file to use instead of the model's template.",
    ),
]
Trace = Annotated[
    Path | None,
    typer.Option(
        "--trace",
        readable=False,  # typer would refuse it as a wrong value; it is ours to say why
        help="A new file for the routing: which experts were chosen. See `hotset trace show`.",
    ),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON, for scripts.")]
