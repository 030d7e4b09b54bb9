"""What every run does, and what is measured of it.

Prompts are random tokens. Each phase has prompts and seeds of its own, and each round others, so
that nothing is measured on a path that was warmed up; all variants of a round get the same.
"""

from __future__ import annotations

import random
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

from benchmarks.store.engine import SLOTS, Decoded, Running

from hotset.store import Counters

__all__ = ["Effort", "Measured", "decode_only", "measure"]

_SHORT_TOKENS = 32
_PROBE_TOKENS = 3
_LEAST_TOKENS = 6
_FILLING_TOKENS = 512
_MOST_FILLING = 6
_FULL = 0.99
# Tokens that a byte-level vocabulary spells as single bytes, many of them not printable.
_FIRST_TOKEN = 300
_NUM_SPECIAL = 3


@dataclass(frozen=True, slots=True)
class Effort:
    """How much is measured.

    Attributes:
        tokens: most tokens of a decode phase; seconds: about how long a slow one may take.
        prefills: prompt lengths.
    """

    tokens: int = 96
    seconds: float = 15.0
    prefills: tuple[int, ...] = (512, 2048)


@dataclass(frozen=True, slots=True)
class Measured:
    """One run. Rates are tokens per second; what was not measured is None.

    Attributes:
        start_s, resident_bytes: see `engine.Running`.
        hit_rate: of the experts asked for while decoding; arena_bytes: memory reserved for them.
        read_bytes: per decoded token, of experts (the store) or of anything (stock).
        decode_tokens: how many the rate stands on.
        prefill: rate by prompt length.
        anonymous_bytes: of the process at the end, without any file's pages.
        peak_bytes: of the whole process with its page cache.
    """

    start_s: float
    resident_bytes: int
    decode: float
    decode_tokens: int
    read_bytes: float
    hit_rate: float | None = None
    arena_bytes: int | None = None
    parallel: float | None = None
    prefill: dict[int, float] | None = None
    anonymous_bytes: int = 0
    peak_bytes: int = 0


def prompt_of(n_tokens: int, n_vocab: int, seed: str) -> list[int]:
    """Random tokens that are neither bytes nor control tokens."""
    rng = random.Random(seed)
    return [rng.randrange(_FIRST_TOKEN, n_vocab - _NUM_SPECIAL) for _ in range(n_tokens)]


def measure(engine: Running, effort: Effort, n_vocab: int, seed: str) -> Measured:
    """The whole workload: warm-up, decode, two requests at once, prefill."""

    def prompt(n_tokens: int, phase: str) -> list[int]:
        return prompt_of(n_tokens, n_vocab, f"{seed}/{phase}")

    n_tokens = _warm_up(engine, effort, n_vocab, seed)
    before, read_before, decoded, read, counters = _decode(
        engine, prompt(_SHORT_TOKENS, "decode"), n_tokens, seed
    )
    parallel = _parallel(
        engine, [prompt(_SHORT_TOKENS, f"parallel {slot}") for slot in range(SLOTS)],
        max(_LEAST_TOKENS, n_tokens // SLOTS), seed,
    )  # fmt: skip
    prefill = {n: n / engine.prefill(prompt(n, f"prefill {n}")) for n in effort.prefills}
    return Measured(
        engine.start_s,
        engine.resident_bytes,
        decoded.n_tokens / decoded.seconds,
        decoded.n_tokens,
        _read_per_token(before, counters, read - read_before, decoded.n_tokens),
        hit_rate=_hit_rate(before, counters),
        arena_bytes=counters.budget_bytes if counters else None,
        parallel=parallel,
        prefill=prefill,
        anonymous_bytes=engine.group.anonymous_bytes(),
        peak_bytes=engine.group.peak_bytes(),
    )


def decode_only(engine: Running, effort: Effort, n_vocab: int, seed: str) -> Measured:
    """The same decode phase alone, for the sibling with fewer experts."""
    n_tokens = _warm_up(engine, effort, n_vocab, seed)
    prompt = prompt_of(_SHORT_TOKENS, n_vocab, f"{seed}/decode")
    _, read_before, decoded, read, _ = _decode(engine, prompt, n_tokens, seed)
    return Measured(
        engine.start_s, engine.resident_bytes, decoded.n_tokens / decoded.seconds,
        decoded.n_tokens, (read - read_before) / decoded.n_tokens,
        anonymous_bytes=engine.group.anonymous_bytes(),
        peak_bytes=engine.group.peak_bytes(),
    )  # fmt: skip


def _warm_up(engine: Running, effort: Effort, n_vocab: int, seed: str) -> int:
    """Fill the caches as a user's first request would; returns how many tokens a decode phase
    can have in its time."""
    prompt = prompt_of(max(effort.prefills), n_vocab, f"{seed}/warm-up")[
        : max(effort.prefills) // 4
    ]
    engine.prefill(prompt)
    probe = engine.decode(prompt, _PROBE_TOKENS, seed=1)
    wanted = round(effort.seconds * probe.n_tokens / probe.seconds)
    n_tokens = min(effort.tokens, max(_LEAST_TOKENS, wanted))
    short = prompt_of(_SHORT_TOKENS, n_vocab, f"{seed}/warm-up, short")
    engine.prefill(short)
    engine.decode(short, n_tokens, seed=2)
    if engine.holds_all:
        _fill(engine, n_vocab, seed)
    return n_tokens


def _fill(engine: Running, n_vocab: int, seed: str) -> None:
    """Prompts until they miss nearly nothing: the stock engine has read everything, too."""
    for number in range(_MOST_FILLING):
        before = engine.counters()
        engine.prefill(prompt_of(_FILLING_TOKENS, n_vocab, f"{seed}/filling {number}"))
        hits = _hit_rate(before, engine.counters())
        if hits is None or hits > _FULL:
            break


def _decode(
    engine: Running, prompt: Sequence[int], n_tokens: int, seed: str
) -> tuple[Counters | None, int, Decoded, int, Counters | None]:
    engine.prefill(prompt)
    before, read_before = engine.counters(), engine.read_bytes()
    decoded = engine.decode(prompt, n_tokens, seed=_number(seed))
    return before, read_before, decoded, engine.read_bytes(), engine.counters()


def _parallel(engine: Running, prompts: Sequence[Sequence[int]], n_tokens: int, seed: str) -> float:
    for slot, prompt in enumerate(prompts):
        engine.prefill(prompt, slot=slot)

    def decode(slot: int) -> Decoded:
        return engine.decode(prompts[slot], n_tokens, slot=slot, seed=_number(seed) + slot)

    begun = time.monotonic()
    with ThreadPoolExecutor(len(prompts)) as pool:
        decoded = list(pool.map(decode, range(len(prompts))))
    return sum(one.n_tokens for one in decoded) / (time.monotonic() - begun)


def _number(seed: str) -> int:
    return random.Random(seed).randrange(1 << 31)


def _hit_rate(before: Counters | None, after: Counters | None) -> float | None:
    if before is None or after is None or after.num_requests == before.num_requests:
        return None
    return (after.num_hits - before.num_hits) / (after.num_requests - before.num_requests)


def _read_per_token(
    before: Counters | None, after: Counters | None, process_bytes: int, n_tokens: int
) -> float:
    if before is None or after is None:
        return process_bytes / n_tokens
    return (after.read_bytes - before.read_bytes) / n_tokens
