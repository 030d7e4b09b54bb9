"""From a tensor's name to what its bytes are for.

llama.cpp names tensors the same way in every family (LLM_TENSOR_NAMES in src/llama-arch.cpp), so
one small set of patterns covers all of them:

    routed experts   blk.N.ffn_{gate,up,down}_exps, the fused blk.N.ffn_gate_up_exps, grovemoe's
                     ffn_*_chexps, and blk.N.ffn_{gate,up,down}.E, one tensor per expert E, in
                     files from before experts were merged; biases and scales included
    shared experts   blk.N.ffn_{gate,up,down}_shexp and their gate, ffn_gate_inp_shexp
    router           blk.N.ffn_gate_inp, exp_probs_b, ffn_gate_tid2eid
    MTP block        blk.N with N behind the last block that runs for a token, and nextn.*
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from hotset.core.modelspec import Role

__all__ = ["TensorPlace", "place_tensor"]

_BLOCK = re.compile(r"blk\.([0-9]{1,9})\.(.+)", re.DOTALL)
_SINGLE_EXPERT = re.compile(r"ffn_(gate|up|down)\.[0-9]+(\.|$)")
_FUSED = "ffn_gate_up_exps"

# First match wins.
_IN_BLOCK: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"nextn\."), Role.MTP),
    (re.compile(r"ffn_(gate|up|down|gate_up)_(exps|chexps)\b"), Role.ROUTED_EXPERTS),
    (_SINGLE_EXPERT, Role.ROUTED_EXPERTS),
    (re.compile(r"ffn_\w+_shexp\b"), Role.SHARED_EXPERTS),
    (re.compile(r"ffn_gate_inp\b|ffn_gate_tid2eid\b|exp_probs_b"), Role.ROUTER),
    (re.compile(r"ffn_|ffn\.|(pre|post)_ffw_|channel_mix_"), Role.DENSE_FFN),
    (
        re.compile(r"attn_|cross_attn_|vis_attn_|post_attention_|indexer|ssm_|shortconv|time_mix"),
        Role.ATTENTION,
    ),
)
_OUTSIDE: tuple[tuple[re.Pattern[str], Role], ...] = (
    (re.compile(r"token_|per_layer_token_embd|position_embd"), Role.TOKEN_EMBEDDING),
    (re.compile(r"output|cls\b"), Role.OUTPUT),
    (re.compile(r"nextn\.|mtp\."), Role.MTP),
)


@dataclass(frozen=True, slots=True)
class TensorPlace:
    """Where a tensor belongs.

    Attributes:
        block: number of its block; None outside of blocks.
        role: what its bytes are for. Attention includes what takes its place in a recurrent
            block; token embedding includes every table that is looked up and never multiplied.
        is_fused_expert: gate and up of all experts of a block in one tensor.
        is_single_expert: one expert's own tensor.
    """

    block: int | None
    role: Role
    is_fused_expert: bool = False
    is_single_expert: bool = False


def place_tensor(name: str, n_layers: int) -> TensorPlace:
    """Where the tensor called `name` belongs in a model of `n_layers` blocks without its MTP head.

    Never fails: what no pattern knows is `Role.OTHER`.
    """
    match = _BLOCK.fullmatch(name)
    if match is None:
        return TensorPlace(None, _first_match(_OUTSIDE, name))
    block, rest = int(match[1]), match[2]
    if block >= n_layers:
        return TensorPlace(block, Role.MTP)
    role = _first_match(_IN_BLOCK, rest)
    return TensorPlace(
        block,
        role,
        is_fused_expert=rest.startswith(_FUSED),
        is_single_expert=_SINGLE_EXPERT.match(rest) is not None,
    )


def _first_match(patterns: tuple[tuple[re.Pattern[str], Role], ...], text: str) -> Role:
    return next((role for pattern, role in patterns if pattern.match(text)), Role.OTHER)
