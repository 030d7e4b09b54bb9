"""How concentrated the routing of the benchmark's models really is, measured in the engine.

Locality is defined by the hit rate of an LRU cache of 40 % of the expert bytes on prompts that it
has not seen: 0.4 uniform, 0.75 medium, 0.9 strong. For prefill it shows in how many experts of a
layer a short prompt asks for.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median

from benchmarks.store.engine import Running, running
from benchmarks.store.models import BenchModel
from benchmarks.store.variants import Variant
from benchmarks.store.workload import prompt_of

from hotset.core.errors import EngineProblem
from hotset.store import Counters

__all__ = ["Routing", "measure_routing"]

_SHARE_PERCENT = 40
_PROMPTS = 3
_PROMPT_TOKENS = 32
_DECODE_TOKENS = 64
_WARM_UP_TOKENS = 512


@dataclass(frozen=True, slots=True)
class Routing:
    """Medians over fresh prompts.

    Attributes:
        hit_rate: while decoding.
        prompt_experts: distinct experts per layer that a prompt of 32 tokens asks for.
    """

    hit_rate: float
    prompt_experts: float


def measure_routing(model: BenchModel, *, threads: int) -> Routing:
    """Routing of the model, through the counters of a store with 40 % of its experts.

    Raises:
        EngineProblem: the store does not run.
    """
    store_bytes = model.expert_bytes * _SHARE_PERCENT // 100
    variant = Variant("routing", "hotset", store_bytes=store_bytes)
    hit_rates, experts = [], []
    with running(model, variant, threads=threads, readers=None) as engine:
        engine.prefill(prompt_of(_WARM_UP_TOKENS, model.n_vocab, "routing/warm-up"))
        engine.decode(prompt_of(1, model.n_vocab, "routing/warm-up"), _DECODE_TOKENS, seed=99)
        for number in range(_PROMPTS):
            prompt = prompt_of(_PROMPT_TOKENS, model.n_vocab, f"routing/{number}")
            before = _counters(engine)
            engine.prefill(prompt)
            between = _counters(engine)
            engine.decode(prompt, _DECODE_TOKENS, seed=number)
            after = _counters(engine)
            experts.append((between.num_requests - before.num_requests) / model.n_layers)
            asked = after.num_requests - between.num_requests
            hit_rates.append((after.num_hits - between.num_hits) / asked)
    return Routing(median(hit_rates), median(experts))


def _counters(engine: Running) -> Counters:
    counters = engine.counters()
    if counters is None:
        raise EngineProblem("routing: the engine runs without the store, which counts it")
    return counters
