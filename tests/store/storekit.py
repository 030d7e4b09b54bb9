"""Answers over HTTP, and how an engine is told to use the store."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import httpx

from hotset.core.settings import ExpertStore
from hotset.engine.running import Running
from hotset.store import NativeStore, child_settings
from hotset.store.page import CountersPage


class Token(NamedTuple):
    """A token, and the five likeliest in its place with the logarithms of their probabilities."""

    id: int
    likeliest: list[tuple[int, float]]


def answer(running: Running, prompt: str) -> list[Token]:
    """Ten tokens, greedily."""
    body = {
        "prompt": prompt,
        "n_predict": 10,
        "temperature": 0,
        "n_probs": 5,
        "cache_prompt": False,
        "ignore_eos": True,
    }
    done = httpx.post(
        f"{running.url}/completion", json=body, headers=running.headers(), timeout=120
    ).json()
    return [
        Token(token["id"], [(top["id"], top["logprob"]) for top in token["top_logprobs"]])
        for token in done["completion_probabilities"]
    ]


def expert_store(
    native: NativeStore, page: CountersPage, files: tuple[Path, ...], ram: int, api: int = 3
) -> ExpertStore:
    """How an engine of that interface is told to keep the experts of `files` in `ram` bytes."""
    plugin = native.plugins[api]
    child = child_settings(native, plugin, files, ram_bytes=ram, counters=page.path)
    return ExpertStore(
        plugin=plugin,
        ram_bytes=ram,
        counters=page.path,
        environment=child.environment,
        server_environment=child.plugin_environment,
        server_arguments=tuple(child.arguments),
    )
