"""One greedy completion over HTTP."""

from __future__ import annotations

from dataclasses import dataclass

import httpx


@dataclass(frozen=True, slots=True)
class Answer:
    """The tokens, and for each the logarithms of the three greatest probabilities."""

    tokens: list[int]
    logprobs: list[list[float]]


def post(address: str, prompt: str, num_tokens: int) -> httpx.Response:
    return httpx.post(
        f"{address}/completion",
        json={
            "prompt": prompt,
            "n_predict": num_tokens,
            "temperature": 0,
            "n_probs": 3,
            "cache_prompt": False,
            "return_tokens": True,
        },
        timeout=120,
    )


def ask(address: str, prompt: str, num_tokens: int) -> Answer:
    body = post(address, prompt, num_tokens).raise_for_status().json()
    return Answer(
        body["tokens"],
        [
            [choice["logprob"] for choice in token["top_logprobs"]]
            for token in body["completion_probabilities"]
        ],
    )
