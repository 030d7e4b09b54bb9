"""One greedy completion over HTTP."""

from __future__ import annotations

from typing import Any

import httpx


def ask(address: str, prompt: str, num_tokens: int) -> dict[str, Any]:
    """The tokens, and for each the logarithms of the three likeliest probabilities."""
    response = httpx.post(
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
    response.raise_for_status()
    body = response.json()
    return {
        "tokens": body["tokens"],
        "logprobs": [
            [choice["logprob"] for choice in token["top_logprobs"]]
            for token in body["completion_probabilities"]
        ],
    }
