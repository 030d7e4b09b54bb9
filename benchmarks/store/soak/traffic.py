"""What a soak asks: short and long prompts, two at once, streams that are given up."""

from __future__ import annotations

import random
import time
from collections import Counter
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field

import httpx
from benchmarks.store.engine import Running
from benchmarks.store.workload import prompt_of

from hotset.core.errors import EngineProblem

__all__ = ["Traffic", "reference_tokens"]

_REFERENCE_PROMPT_TOKENS = 96
_REFERENCE_TOKENS = 48
_SHORT = (16, 64)
_LONG = (512, 2048)
_SHORT_ANSWER = (8, 48)
_LONG_ANSWER = (4, 16)
_IDLE_S = 120.0
# The server ends a connection after so many requests, perhaps just as the next one is sent.
_ONCE = {"Connection": "close"}


def reference_tokens(engine: Running, n_vocab: int) -> list[int]:
    """The greedy answer to a prompt that never changes, computed from its first token on.

    Raises:
        EngineProblem: there is none.
    """
    order = {
        "prompt": prompt_of(_REFERENCE_PROMPT_TOKENS, n_vocab, "soak/reference"),
        "n_predict": _REFERENCE_TOKENS, "temperature": 0, "cache_prompt": False,
        "ignore_eos": True, "return_tokens": True,
    }  # fmt: skip
    try:
        answer = (
            engine.client.post("/completion", json=order, headers=_ONCE).raise_for_status().json()
        )
    except httpx.HTTPError as error:
        raise EngineProblem(f"engine: no answer to the fixed prompt ({error})") from error
    tokens: list[int] = answer["tokens"]
    return tokens


@dataclass(slots=True)
class Traffic:
    """One episode after the other, drawn from a seed.

    Attributes:
        num_requests: by kind, those that were given up included.
        errors: one line each.
    """

    engine: Running
    n_vocab: int
    seed: str
    num_requests: Counter[str] = field(default_factory=Counter)
    errors: list[str] = field(default_factory=list)
    _num_episodes: int = 0

    def episode(self) -> None:
        """One episode, to its end: when it returns, the engine computes nothing any more.

        Raises:
            EngineProblem: the engine does not come to rest, or is gone.
        """
        self._num_episodes += 1
        rng = random.Random(f"{self.seed}/{self._num_episodes}")
        kinds: Mapping[str, Callable[[random.Random], None]] = {
            "short": self._short, "long": self._long, "two at once": self._two_at_once,
            "given up": self._give_up,
        }  # fmt: skip
        kinds[rng.choice(list(kinds))](rng)
        self._await_idle()

    def _short(self, rng: random.Random) -> None:
        self._ask("short", rng, _SHORT, _SHORT_ANSWER)

    def _long(self, rng: random.Random) -> None:
        self._ask("long", rng, _LONG, _LONG_ANSWER)

    def _two_at_once(self, rng: random.Random) -> None:
        one, other = random.Random(rng.random()), random.Random(rng.random())
        lengths = rng.choice([(_SHORT, _SHORT), (_SHORT, _LONG), (_LONG, _LONG)])
        with ThreadPoolExecutor(2) as pool:
            for draw, length in zip((one, other), lengths, strict=True):
                pool.submit(self._ask, "two at once", draw, length, _SHORT_ANSWER)

    def _give_up(self, rng: random.Random) -> None:
        """Close the connection after some pieces, or while the prompt is still being read."""
        order = self._order(rng, rng.choice([_SHORT, _LONG]), _SHORT_ANSWER)
        num_pieces = rng.choice([0, 1, 5])
        patience_s = rng.uniform(0.05, 0.5)
        timeout = self.engine.client.timeout if num_pieces else httpx.Timeout(patience_s)
        self.num_requests["given up"] += 1
        try:
            with self.engine.client.stream(
                "POST", "/completion", json=order, headers=_ONCE, timeout=timeout
            ) as response:
                pieces = response.iter_lines()
                for _ in range(2 * num_pieces):  # each piece is followed by an empty line
                    next(pieces, "")
        except httpx.ReadTimeout:
            return  # given up before the first piece, as intended
        except httpx.HTTPError as error:
            self.errors.append(f"given up: {error!r}")

    def _ask(
        self, kind: str, rng: random.Random, prompt: tuple[int, int], answer: tuple[int, int]
    ) -> None:
        self.num_requests[kind] += 1
        try:
            order = self._order(rng, prompt, answer)
            reply = self.engine.client.post("/completion", json=order, headers=_ONCE)
        except httpx.HTTPError as error:
            self.errors.append(f"{kind}: {error!r}")
            return
        if reply.status_code != httpx.codes.OK:
            self.errors.append(f"{kind}: status {reply.status_code}: {reply.text[:200]}")

    def _order(
        self, rng: random.Random, prompt: tuple[int, int], answer: tuple[int, int]
    ) -> dict[str, object]:
        return {
            "prompt": prompt_of(rng.randint(*prompt), self.n_vocab, str(rng.random())),
            "n_predict": rng.randint(*answer), "temperature": 1.0, "top_k": 0,
            "seed": rng.randrange(1 << 31), "ignore_eos": True, "stream": True,
        }  # fmt: skip

    def _await_idle(self) -> None:
        deadline = time.monotonic() + _IDLE_S
        while time.monotonic() < deadline:
            try:
                slots = self.engine.client.get("/slots", headers=_ONCE).raise_for_status().json()
            except httpx.HTTPError as error:
                raise EngineProblem(f"engine: no answer ({error}); was it killed?") from error
            if not any(slot["is_processing"] for slot in slots):
                return
            time.sleep(0.05)
        raise EngineProblem(f"engine: still computing {_IDLE_S:.0f} s after its last request")
