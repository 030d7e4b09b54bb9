"""The physical limit of decoding: what no store could beat on this machine.

    time per token = sum over layers of max(read the missed bytes, compute the routed experts)
                     + everything that is not an expert

- *Disk rate*: direct reads of one expert matrix each from six threads, measured in the same round.
- *Experts and the rest*: the stock engine with everything in RAM decodes with the model and with a
  sibling that has the same weights and uses fewer experts. Two times and two numbers of experts
  give a line: its slope is the time of one expert (in all layers), its value at no experts the
  rest, the fixed costs of a layer's products included.
- *Missed bytes* are those that the store read, per token. They are averages over tokens and
  layers, and a maximum of averages is never more than the average of the maxima. So the limit
  stated here is at least as fast as the true one, and the share reached is understated if at all.
"""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Costs", "costs_of", "limit_s"]


@dataclass(frozen=True, slots=True)
class Costs:
    """Of one token on this machine: routed experts of all layers, and all else, in seconds."""

    experts_s: float
    rest_s: float


def costs_of(token_s: float, n_used: int, few_token_s: float, n_few: int) -> Costs:
    """Costs from the times per token with `n_used` and with `n_few` experts.

    Noise can make the smaller model seem the slower one; then experts cost nothing and the limit
    is that of the disk alone.
    """
    experts_s = max(0.0, (token_s - few_token_s) * n_used / (n_used - n_few))
    experts_s = min(experts_s, token_s)
    return Costs(experts_s, token_s - experts_s)


def limit_s(costs: Costs, n_layers: int, missed_bytes: float, disk_bytes_per_s: float) -> float:
    """Seconds per token that are the least when `missed_bytes` per token must be read."""
    read_s = missed_bytes / n_layers / disk_bytes_per_s
    return n_layers * max(read_s, costs.experts_s / n_layers) + costs.rest_s
