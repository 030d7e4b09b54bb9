"""`hotset ps`, `load`, `unload`, `logs`, `why`: asking a gateway that runs."""

from __future__ import annotations

import json
import os
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from hotset.cli.options import Json
from hotset.core.errors import ClientProblem, EngineProblem, MachineProblem

if TYPE_CHECKING:
    import httpx

__all__ = ["load", "logs", "ps", "unload", "why"]

_DEFAULT_URL = "http://127.0.0.1:9292"
_CARDS = 5  # the column of `ps` that is left out where nobody has a card

Url = Annotated[
    str | None,
    typer.Option("--url", help=f"The gateway. [default: HOTSET_URL, or {_DEFAULT_URL}]"),
]
KeyFile = Annotated[
    Path | None,
    typer.Option(
        "--api-key-file",
        readable=False,  # typer would refuse it as a wrong value; it is a file problem
        help="A file with its API key. [default: HOTSET_API_KEY, or no key]",
    ),
]
Served = Annotated[str, typer.Argument(metavar="MODEL", help="A model's id or alias.")]


def ps(url: Url = None, api_key_file: KeyFile = None, as_json: Json = False) -> None:
    """Show the models of a running gateway, and what they do."""
    answer = _ask("GET", "/api/models", url, api_key_file)
    if as_json:
        print(json.dumps(answer, indent=2))
        return
    head = ("MODEL", "STATE", "SINCE", "REQUESTS", "RAM", "CARDS", "EXPERT HITS", "LEAVES")
    rows = [head, *(_row(model) for model in answer["models"])]
    if not any(row[_CARDS] for row in rows[1:]):
        rows = [row[:_CARDS] + row[_CARDS + 1 :] for row in rows]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    for row in rows:
        cells = (text.ljust(width) for text, width in zip(row, widths, strict=True))
        print("  ".join(cells).rstrip())


def load(model: Served, url: Url = None, api_key_file: KeyFile = None) -> None:
    """Load MODEL now, and return once it is ready. A start that failed is tried again."""
    row = _ask("POST", "/api/load", url, api_key_file, {"model": model, "wait": True})["model"]
    print(f"{row['id']}: {row['state']} ({row['why']})")


def unload(
    model: Served,
    force: Annotated[bool, typer.Option("--force", help="Cut running answers off.")] = False,
    url: Url = None,
    api_key_file: KeyFile = None,
) -> None:
    """Unload MODEL once its running answers are done."""
    rows = _ask("POST", "/api/unload", url, api_key_file, {"model": model, "force": force})
    for row in rows["models"]:
        print(f"{row['id']}: {row['state']} ({row['why']})")


def why(model: Served, url: Url = None, api_key_file: KeyFile = None) -> None:
    """Say why MODEL is, or is not, loaded, and what would leave for it."""
    for line in _ask("GET", "/api/why", url, api_key_file, query={"model": model})["lines"]:
        print(line)


def logs(
    model: Served,
    follow: Annotated[bool, typer.Option("--follow", "-f", help="Go on as lines come.")] = False,
    url: Url = None,
    api_key_file: KeyFile = None,
) -> None:
    """Print what the engine of MODEL has printed last."""
    import httpx

    from hotset.cli.screen import harmless

    query = {"model": model} | ({"follow": "1"} if follow else {})
    with _client(url, api_key_file) as client:
        try:
            with client.stream("GET", "/api/logs", params=query) as answer:
                if answer.status_code >= 400:
                    answer.read()
                    raise _problem(answer)
                for line in answer.iter_lines():
                    print(harmless(line), flush=follow)
        except httpx.HTTPError as error:
            raise _unreachable(client, error) from error


def _row(model: dict[str, Any]) -> tuple[str, ...]:
    from hotset.core.units import format_bytes

    is_in = model["state"] in ("loading", "ready", "draining")
    age = _age(time.time() - model["since_s"]) if model["since_s"] else ""
    queued = f" +{model['num_queued']}" if model["num_queued"] else ""
    leaves = model["leaves_in_s"]
    asked = model["num_expert_requests"]
    memory = model["memory_bytes"]
    on_cards = sum(n_bytes for device, n_bytes in memory.items() if device != "RAM")
    return (
        model["id"],
        model["state"],
        age,
        f"{model['num_busy']} of {model['slots']}{queued}" if is_in or queued else "",
        format_bytes(memory.get("RAM", 0)) if is_in else "",
        format_bytes(on_cards) if is_in and on_cards else "",
        f"{model['num_expert_hits'] / asked:.0%}" if asked else "",
        f"in {_age(leaves)} idle" if leaves is not None else "",
    )


def _age(seconds: float) -> str:
    from hotset.gateway.explain import age

    return age(max(0.0, seconds))


def _client(url: str | None, api_key_file: Path | None) -> httpx.Client:
    import httpx

    from hotset.cli.settings import key_from

    key = key_from(api_key_file)
    headers = {"Authorization": f"Bearer {key.reveal()}"} if key else {}
    base = url or os.environ.get("HOTSET_URL") or _DEFAULT_URL
    # A model may take minutes to load, or to finish its answers.
    timeout = httpx.Timeout(10.0, read=None)
    return httpx.Client(base_url=base, headers=headers, timeout=timeout, trust_env=False)


def _ask(
    method: str,
    path: str,
    url: str | None,
    api_key_file: Path | None,
    body: dict[str, Any] | None = None,
    query: dict[str, str] | None = None,
) -> dict[str, Any]:
    import httpx

    with _client(url, api_key_file) as client:
        try:
            answer = client.request(method, path, json=body, params=query)
        except (httpx.HTTPError, httpx.InvalidURL) as error:
            raise _unreachable(client, error) from error
        if answer.status_code >= 400:
            raise _problem(answer)
        try:
            parsed: dict[str, Any] = answer.json()
        except ValueError as error:
            raise EngineProblem(f"{client.base_url}: does not answer like a gateway") from error
        return parsed


def _unreachable(client: httpx.Client, error: Exception) -> MachineProblem:
    return MachineProblem(
        f"no gateway answers at {client.base_url} ({error}); start one with `hotset serve FOLDER`,"
        " or say where it is with --url"
    )


def _problem(answer: httpx.Response) -> ClientProblem | EngineProblem:
    """The gateway's own words about what went wrong."""
    try:
        message = str(answer.json()["error"]["message"])
    except (ValueError, KeyError, TypeError):
        message = f"{answer.url} answered with status {answer.status_code}"
    if 400 <= answer.status_code <= 499:
        return ClientProblem(message, answer.status_code)
    return EngineProblem(message)
