"""What the engine holds of one token while it computes a block, from the shapes of its matrices.

The engine reserves memory for its worst graph (llama_context::graph_reserve in
src/llama-context.cpp), and ggml's allocator (ggml/src/ggml-alloc.c) lets a tensor take the place
of an earlier one that is done with, if it fits there. A block is at its fullest

    in a dense FFN, while gate, up and their product are there: 3 x width;
    in a routed FFN the same for all experts in use together, and beside it what the down product
        gives, one row of the model's width for each expert, unless the gap that gate and up have
        left is large enough for it;
    in attention with what is projected and what comes out.

All of them are beside the residual and other rows of the model's width (`core/compute.py`).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from math import prod

from hotset.core.modelspec import RecurrentWork, Selection, Working

__all__ = ["BlockShapes", "short_name", "working_of"]

_SINGLE_EXPERT = re.compile(r"(ffn_(?:gate|up|down))\.[0-9]+$")
_WEIGHT = ".weight"
_PER_LAYER = "per_layer_model_proj"  # gemma 3n and 4: one product for the inputs of all blocks
_ALTUP = "altup_proj"  # gemma 3n: from the residual to each of those beside it
_PER_LAYER_FORMS = 3  # beside what lasts: looked up, projected, and their sum
_MIXERS = ("ssm_", "time_mix_", "shortconv.")
_SCORES = 2
_LATENT = ("attn_q", "attn_q_b", "attn_k_b", "attn_kv_a_mqa")

BlockShapes = dict[str, tuple[int, ...]]
"""Shapes of one block's matrices by name, without number and ending."""


def short_name(name: str) -> str | None:
    """The name under which `working_of` knows a matrix; None for a bias or a scale."""
    if not name.endswith(_WEIGHT):
        return None
    name = name.removesuffix(_WEIGHT)
    single = _SINGLE_EXPERT.match(name)
    return f"{single[1]}_exps" if single else name


def working_of(
    blocks: Sequence[BlockShapes],
    outside: BlockShapes,
    *,
    n_embd: int,
    n_used: int,
    n_streams: int,
    queries: Mapping[int, int],
    selection: Selection,
) -> Working:
    """The fullest moments of all blocks.

    Args:
        blocks: matrices of each block that runs for a token.
        outside: matrices outside of blocks.
        n_embd: width of the residual stream.
        n_used: experts that a token uses.
        n_streams: residual streams that run beside each other (hyper-connections), mostly 1.
        queries: of blocks with a latent cache, the elements of all heads' queries against it.
        selection: of a sparse-attention indexer.
    """
    attention = [_attention(shapes, n_embd, queries.get(i, 0)) for i, shapes in enumerate(blocks)]
    ffn = [max(_dense_ffn(shapes), _routed_ffn(shapes, n_embd, n_used)) for shapes in blocks]
    if _ALTUP in outside:
        n_streams = prod(outside[_ALTUP][2:]) + 1
    # Those beyond the one residual, and a gap as wide as all of them that mixing leaves.
    streams = (2 * n_streams - 1) * n_embd if n_streams > 1 else 0
    per_layer = _rows(outside, _PER_LAYER)
    return Working(
        attention_elements=max(attention, default=0),
        projected_elements=max((_projected(shapes, n_embd) for shapes in blocks), default=0),
        recurrent=max(map(_recurrent, blocks), key=_held, default=RecurrentWork()),
        ffn_elements=max(ffn, default=0),
        routed_elements=max((_routed_use(s, n_embd, n_used) for s in blocks), default=0),
        unrouted_elements=max(map(_unrouted_ffn, blocks), default=0),
        parted_elements=max((_parted(shapes, n_embd) for shapes in blocks), default=0),
        lasting_elements=streams + per_layer,
        setup_elements=_PER_LAYER_FORMS * per_layer,
        selection=selection,
    )


def _attention(shapes: BlockShapes, n_embd: int, n_latent: int) -> int:
    mixed = shapes.get("attn_output", (0,))[0]
    if n_latent:
        return n_latent + sum(_rows(shapes, name) for name in _LATENT)
    projected = _rows(shapes, "attn_q") or _rows(shapes, "attn_qkv")
    if "attn_kv_b" in shapes:  # MLA without absorption: keys are put together for every head
        projected += _rows(shapes, "attn_kv_b") + _rows(shapes, "attn_q")
    return projected + (mixed if mixed > n_embd else 0)


def _projected(shapes: BlockShapes, n_embd: int) -> int:
    """Where every query head has a key head of its own, more than what attention holds later."""
    return max(0, sum(_rows(shapes, name) for name in ("attn_q", "attn_k", "attn_v")) - n_embd)


def _recurrent(shapes: BlockShapes) -> RecurrentWork:
    """A delta net holds what goes into its convolution and what comes out, and queries and keys."""
    own = sum(_rows(shapes, name) for name in shapes if name.startswith(_MIXERS))
    values = shapes.get("ssm_out", (0,))[0]
    if "attn_qkv" not in shapes or "ssm_conv1d" not in shapes:
        if "ssm_x" in shapes:  # the first Mamba, without groups
            return RecurrentWork(own + values)
        # The convolution's input and output, the scan's, and its gated form, are tensors, too.
        return RecurrentWork(own + 2 * _rows(shapes, "ssm_conv1d") + 2 * values)
    wide = _rows(shapes, "attn_qkv")
    queries_and_keys = max(0, wide - values)
    return RecurrentWork(
        wide + _rows(shapes, "ssm_conv1d") + queries_and_keys, wide, min(values, wide)
    )


def _held(work: RecurrentWork) -> int:
    return work.held_elements


def _dense_ffn(shapes: BlockShapes, suffix: str = "") -> int:
    down = shapes.get(f"ffn_down{suffix}", (0,))[0]
    return _rows(shapes, f"ffn_gate{suffix}") + _rows(shapes, f"ffn_up{suffix}") + down


def _unrouted_ffn(shapes: BlockShapes) -> int:
    """Without the routed experts; the router's scores are there once more in their order."""
    router = _SCORES * _rows(shapes, "ffn_gate_inp")
    return max(_dense_ffn(shapes), _dense_ffn(shapes, "_shexp"), router)


def _routed_ffn(shapes: BlockShapes, n_embd: int, n_used: int) -> int:
    inward = _inward(shapes, n_used)
    if not inward:
        return 0
    product = n_used * shapes.get("ffn_down_exps", (0,))[0]
    outward = n_used * n_embd
    return inward + product + (outward if outward > inward else 0)


def _routed_use(shapes: BlockShapes, n_embd: int, n_used: int) -> int:
    inward = _inward(shapes, n_used)
    if not inward:
        return 0
    return max(inward, n_used * (shapes.get("ffn_down_exps", (0,))[0] + n_embd))


def _parted(shapes: BlockShapes, n_embd: int) -> int:
    """The gap that a block was seen to leave where its experts are computed elsewhere: a row of the
    model's width with a dense FFN beside them (gemma 4), half its values' in a delta net."""
    if {"ffn_down", "ffn_down_exps"} <= shapes.keys():
        return n_embd
    return shapes["ssm_out"][0] // 2 if {"attn_qkv", "ssm_out"} <= shapes.keys() else 0


def _inward(shapes: BlockShapes, n_used: int) -> int:
    """Gate and up of all experts in use."""
    names = ("ffn_gate_exps", "ffn_up_exps", "ffn_gate_up_exps")
    return n_used * sum(shapes[name][1] for name in names if name in shapes)


def _rows(shapes: BlockShapes, name: str) -> int:
    """What a product with this matrix makes of one token."""
    return prod(shapes[name][1:]) if name in shapes else 0
