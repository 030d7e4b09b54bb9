"""Cache policies: which unit leaves when another needs its place.

The store's policies (native/store/policy.h) in plain Python, to the last bit, and what they are
measured against. A policy is a ranking (when a unit was used last, or how often, the recent uses
counting more) within a scope (all layers together, or each layer within its share of the slots).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

__all__ = ["DEFAULT", "HALF_LIFE_TOKENS", "POLICIES", "PROMPT_TOKENS", "Policy", "PolicyRule"]

HALF_LIFE_TOKENS = 64.0
"""As in native/store/heat.h."""

PROMPT_TOKENS = 16
"""Batches of more tokens do not count as uses: HOTSET_MOST_DECODED_TOKENS in native/store/store.h.
"""

_CLOCK_START = 1.0


@dataclass(frozen=True, slots=True)
class PolicyRule:
    """What makes a policy.

    Attributes:
        is_per_layer: every layer has an equal share of the slots and gives up its own unit first.
        half_life_tokens: a use counts half after so many tokens; None: the last use alone counts.
        threshold: a unit takes another's place only if its uses are more than so many times the
            other's. For memories beside which it can be used where it lies.
    """

    is_per_layer: bool
    half_life_tokens: float | None
    threshold: float = 0.0


DEFAULT = "quota"

POLICIES = {
    "quota": PolicyRule(is_per_layer=True, half_life_tokens=HALF_LIFE_TOKENS),
    "decayed": PolicyRule(is_per_layer=False, half_life_tokens=HALF_LIFE_TOKENS),
    "lru": PolicyRule(is_per_layer=False, half_life_tokens=None),
    "layer-lru": PolicyRule(is_per_layer=True, half_life_tokens=None),
    "lfu": PolicyRule(is_per_layer=False, half_life_tokens=math.inf),
    "layer-lfu": PolicyRule(is_per_layer=True, half_life_tokens=math.inf),
}
"""By name. `quota` is what the store does."""


class Policy:
    """The books of one memory: what is in it, and who leaves first.

    Args:
        layer_sizes: units of each layer; layer i's are numbered after those of the layers before.
        num_slots: units that the memory holds.
    """

    def __init__(self, rule: PolicyRule, layer_sizes: Sequence[int], num_slots: int) -> None:
        self._rule = rule
        self._quota = num_slots // len(layer_sizes)
        ends = np.cumsum(layer_sizes)
        self._ranges = [
            (int(end) - size, int(end)) for end, size in zip(ends, layer_sizes, strict=True)
        ]
        num_units = int(ends[-1])
        self._layer_sizes = layer_sizes
        self._layer_of = np.repeat(np.arange(len(layer_sizes)), layer_sizes).tolist()
        self._clocks = [_CLOCK_START] * len(layer_sizes)
        self._clock_of = np.full(num_units, _CLOCK_START)  # of the unit's layer
        self._worth = [0.0] * num_units  # kept when the unit leaves
        self._inside = np.full(num_units, np.inf)  # the same of units in memory; infinite: not
        self._num_inside = [0] * len(layer_sizes)
        self._passing: list[int] = []  # asked for by prompts only, in the order they came
        self._held: NDArray[np.intp] = np.empty(0, dtype=np.intp)
        self._layer, self._now, self._is_prompt, self._num_uses = 0, 0.0, False, 0

    def begin(self, layer: int, num_tokens: int, held: Sequence[int]) -> None:
        """A batch asks for units of `layer`; those in `held` may not leave meanwhile."""
        self._layer = layer
        self._held = np.array(held, dtype=np.intp)
        half_life = self._rule.half_life_tokens
        self._is_prompt = half_life is not None and num_tokens > PROMPT_TOKENS
        if half_life is not None and not self._is_prompt:
            self._clocks[layer] += num_tokens / half_life
            begin, end = self._ranges[layer]
            self._clock_of[begin:end] = self._clocks[layer]
        self._now = self._clocks[layer]

    def used(self, unit: int) -> None:
        """The unit was asked for, whether it is in memory or not."""
        if self._is_prompt:
            return
        if self._rule.half_life_tokens is None:
            self._num_uses += 1
            worth = float(self._num_uses)
        else:
            # log2 of the sum of 2^time over all uses, as in native/store/heat.h.
            old, now = self._worth[unit], self._now
            worth = max(old, now) + math.log2(1 + math.exp2(-abs(old - now)))
        self._worth[unit] = worth
        if self._inside[unit] != np.inf:
            self._inside[unit] = worth
        if self._passing and unit in self._passing:
            self._passing.remove(unit)

    def enters(self, unit: int) -> None:
        """The unit is in memory from now on."""
        self._inside[unit] = self._worth[unit]
        self._num_inside[self._layer_of[unit]] += 1
        if self._is_prompt and self._rule.is_per_layer:
            self._passing.append(unit)

    def leaves(self, unit: int) -> None:
        """The unit is in memory no longer."""
        self._inside[unit] = np.inf
        self._num_inside[self._layer_of[unit]] -= 1
        if self._passing and unit in self._passing:
            self._passing.remove(unit)

    def evict(self) -> int:
        """The unit to evict first; it is in memory no longer.

        Raises:
            LookupError: every unit in memory is held.
        """
        victim = self._victim()
        self.leaves(victim)
        return victim

    def admits(self, unit: int) -> bool:
        """Is the unit, which has been asked for, worth the place of the one that would leave?"""
        if not self._rule.threshold:
            return True
        try:
            victim = self._victim()
        except LookupError:
            return False
        lead = self._warmth(unit) - self._warmth(victim)
        return lead > math.log2(self._rule.threshold)

    def _warmth(self, unit: int) -> float:
        return self._worth[unit] - self._clocks[self._layer_of[unit]]

    def _victim(self) -> int:
        if not self._rule.is_per_layer:
            return self._coldest_of_all(0)
        held = set(self._held.tolist()) if self._passing else ()
        for unit in reversed(self._passing):
            if unit not in held:
                return unit
        if self._num_inside[self._layer] >= self._quota:
            begin, end = self._ranges[self._layer]
            values = self._inside[begin:end] - self._now
            values[self._held - begin] = np.inf
            at = int(values.argmin())
            if values[at] != np.inf:
                return begin + at
        try:
            return self._coldest_of_all(self._quota + 1)
        except LookupError:
            return self._coldest_of_all(0)

    def _coldest_of_all(self, least_inside: int) -> int:
        """Among the layers that have at least so many units in memory."""
        # Clocks of layers differ where batches skip layers: heat counts against its own.
        values = self._inside - self._clock_of
        values[self._held] = np.inf
        if least_inside:
            few = np.array([n < least_inside for n in self._num_inside])
            values[np.repeat(few, self._layer_sizes)] = np.inf
        at = int(values.argmin())
        if values[at] == np.inf:
            raise LookupError
        return at
