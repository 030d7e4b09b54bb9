"""Gives a synthetic model a pattern in its routing: which experts are hot, and how hot.

Two changes make the pattern. All token embeddings share a component (they *lean*), which passes
through the residual stream because it is what everything else is added to. And each row of a
router has a weight along that component, the popularity of its expert, drawn anew for every layer.
A router's logit is then popularity plus what the token itself says, and the ratio of the two
spreads decides how much the routing is concentrated.

The embeddings are also larger than what the layers add. Otherwise attention, which gives all
tokens of a context nearly the same, makes routing local by itself (an LRU hit rate of 0.6 instead
of 0.4 at 40 % of the experts in the engine).
"""

from __future__ import annotations

from dataclasses import replace
from enum import StrEnum

from hotset.core.errors import ConfigProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.synth.recipe import Fill, ModelPlan, TensorPlan

__all__ = ["LEAN", "Locality", "with_locality"]

LEAN = 0.25
"""The shared component, as a share of the spread of the embeddings around it."""

_EMBEDDING_GAIN = 6.0


class Locality(StrEnum):
    """How concentrated the routing is, by the hit rate of an LRU cache of 40 % of the experts:
    0.4, 0.75 and 0.9."""

    UNIFORM = "uniform"
    MEDIUM = "medium"
    STRONG = "strong"


# Spread of the popularity over the spread of what the token says, tuned by measuring the routing in
# the engine (benchmarks/README.md).
_POPULARITY = {Locality.UNIFORM: 0.0, Locality.MEDIUM: 0.82, Locality.STRONG: 1.24}


def with_locality(plan: ModelPlan, locality: Locality) -> ModelPlan:
    """The same model with routing of that locality. Its token embeddings become Q8_0.

    Raises:
        ConfigProblem: the model has no routers, or no token embedding of its own (it shares the
            output matrix, where a lean would favour the same tokens always).
    """
    if not any(tensor.fill is Fill.ROUTER for tensor in plan.tensors):
        raise ConfigProblem(f"locality '{locality}': this family has no routers; leave it out")
    if not any(_is_embedding(tensor) for tensor in plan.tensors):
        raise ConfigProblem(
            f"locality '{locality}': this model's embedding is its output matrix too; "
            "leave it out or choose another family"
        )
    return ModelPlan(plan.metadata, tuple(_shaped(tensor, locality) for tensor in plan.tensors))


def _shaped(tensor: TensorPlan, locality: Locality) -> TensorPlan:
    if _is_embedding(tensor):
        large = replace(tensor, gain=_EMBEDDING_GAIN)
        if locality is Locality.UNIFORM:
            return large
        return replace(large, type=tensor_type_named("Q8_0"), fill=Fill.LEANING)
    if tensor.fill is Fill.ROUTER:
        return replace(tensor, popularity=_POPULARITY[locality])
    return tensor


def _is_embedding(tensor: TensorPlan) -> bool:
    return tensor.name == "token_embd.weight" and tensor.fill is Fill.EMBEDDING
