"""A model cut into the units that llama.cpp places: its blocks, and the output matrix behind them.

Unit i is block i of the file, MTP blocks included; the last unit is the output. `--n-gpu-layers N`
puts the last N units on devices, `--tensor-split` deals them out in order (llama_model_base::
load_tensors in src/llama-model.cpp). A unit's caches and states go where the unit goes. The token
embedding and every other table that is only looked up stay in RAM.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate

from hotset.core.memory import CacheSettings, cell_bytes, layer_cache_bytes
from hotset.core.modelspec import CacheKind, ModelSpec, Role

__all__ = ["CacheUnits", "Parts", "Staging", "cache_units", "split_model", "sums"]

_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class Staging:
    """Room on a device for copies of weights that stay in RAM, one after the other.

    Attributes:
        largest_bytes: of routed experts (see `Experts.largest_tensor_bytes`), or, in a dense
            model, at most half a block.
        second_bytes: of those before it, whose gap does not hold it.
    """

    largest_bytes: int = 0
    second_bytes: int = 0

    @property
    def total_bytes(self) -> int:
        return self.largest_bytes + self.second_bytes


@dataclass(frozen=True, slots=True)
class Parts:
    """Bytes by unit.

    Attributes:
        trunk_bytes: everything but routed experts; 0 for an MTP block, which the engine skips.
        expert_bytes: routed experts.
        token_expert_bytes: what one token reads of them.
        output_copy_bytes: extra bytes of the output unit on a device, where the token embedding
            serves as output, too: the engine then holds it twice.
        ram_bytes: what never leaves RAM.
        staging: what an engine copies to a device for a large batch, if weights stay in RAM.
    """

    trunk_bytes: tuple[int, ...]
    expert_bytes: tuple[int, ...]
    token_expert_bytes: tuple[int, ...]
    output_copy_bytes: int
    ram_bytes: int
    staging: Staging

    @property
    def n_units(self) -> int:
        return len(self.trunk_bytes)

    @property
    def output_unit(self) -> int:
        return self.n_units - 1

    @property
    def moe_units(self) -> tuple[int, ...]:
        """Units with routed experts, ascending."""
        return tuple(unit for unit, n in enumerate(self.expert_bytes) if n)


@dataclass(frozen=True, slots=True)
class CacheUnits:
    """Caches and states by unit, for one way to keep them.

    Attributes:
        n_bytes: allocated.
        token_bytes: what one token reads of them, with so many tokens before it.
    """

    n_bytes: tuple[int, ...]
    token_bytes: tuple[int, ...]


def split_model(spec: ModelSpec) -> Parts:
    """Cut `spec` into units. Sums to `spec.trunk_bytes`."""
    share_of = spec.experts
    trunk, experts = [], []
    for layer in spec.layers:
        routed = layer.bytes_by_role.get(Role.ROUTED_EXPERTS, 0)
        experts.append(routed)
        trunk.append(layer.n_bytes - routed - layer.bytes_by_role.get(Role.MTP, 0))
    output = spec.bytes_by_role.get(Role.OUTPUT, 0)
    per_token = [n * share_of.used // share_of.count if share_of else 0 for n in experts]
    return Parts(
        trunk_bytes=(*trunk, output),
        expert_bytes=(*experts, 0),
        token_expert_bytes=(*per_token, 0),
        output_copy_bytes=spec.tied_output_bytes,
        ram_bytes=spec.trunk_bytes - sum(trunk) - sum(experts) - output,
        staging=(
            Staging(share_of.largest_tensor_bytes, share_of.second_tensor_bytes)
            if share_of
            else Staging(max(trunk) // 2)
        ),
    )


def cache_units(spec: ModelSpec, settings: CacheSettings, depth_tokens: int) -> CacheUnits:
    """Caches by unit, and what a token reads of them after `depth_tokens` others.

    A window block reads its window, a recurrent block reads and writes its state.
    """
    reads = []
    for layer in spec.layers:
        depth = depth_tokens
        if layer.cache is CacheKind.WINDOW:
            depth = min(depth, spec.window_tokens)
        state = (layer.state_r_elements + layer.state_s_elements) * _F32_BYTES
        reads.append(depth * cell_bytes(spec, layer, settings) + 2 * state)
    return CacheUnits((*layer_cache_bytes(spec, settings), 0), (*reads, 0))


def sums(values: tuple[int, ...]) -> tuple[int, ...]:
    """Sums of the first 0, 1, ... n values."""
    return tuple(accumulate(values, initial=0))
