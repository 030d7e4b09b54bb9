"""Which bytes are whose: tensor names of real files."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.modelspec import Role
from hotset.core.roles import place_tensor


@pytest.mark.parametrize(
    ("name", "role"),
    [
        ("token_embd.weight", Role.TOKEN_EMBEDDING),
        ("token_embd_norm.weight", Role.TOKEN_EMBEDDING),
        ("per_layer_token_embd.weight", Role.TOKEN_EMBEDDING),
        ("position_embd.weight", Role.TOKEN_EMBEDDING),
        ("output.weight", Role.OUTPUT),
        ("output_norm.weight", Role.OUTPUT),
        ("cls.output.weight", Role.OUTPUT),
        ("nextn.pre_projection.weight", Role.MTP),
        ("rope_freqs.weight", Role.OTHER),
        ("blk.3.attn_q.weight", Role.ATTENTION),
        ("blk.3.attn_sinks.weight", Role.ATTENTION),
        ("blk.3.post_attention_norm.weight", Role.ATTENTION),
        ("blk.3.ssm_conv1d.weight", Role.ATTENTION),
        ("blk.3.shortconv.in_proj.weight", Role.ATTENTION),
        ("blk.3.time_mix_key.weight", Role.ATTENTION),
        ("blk.3.indexer.q_proj.weight", Role.ATTENTION),
        ("blk.3.ffn_down.weight", Role.DENSE_FFN),
        ("blk.3.ffn_norm.weight", Role.DENSE_FFN),
        ("blk.3.post_ffw_norm_1.weight", Role.DENSE_FFN),
        ("blk.3.channel_mix_value.weight", Role.DENSE_FFN),
        ("blk.3.ffn_gate_inp.weight", Role.ROUTER),
        ("blk.3.exp_probs_b.bias", Role.ROUTER),
        ("blk.3.ffn_gate_tid2eid.weight", Role.ROUTER),
        ("blk.3.ffn_gate_exps.weight", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_up_exps.bias", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_down_exps.scale", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_gate_up_exps.weight", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_down_chexps.weight", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_gate.7.weight", Role.ROUTED_EXPERTS),
        ("blk.3.ffn_up_shexp.weight", Role.SHARED_EXPERTS),
        ("blk.3.ffn_gate_inp_shexp.weight", Role.SHARED_EXPERTS),
        ("blk.3.nextn.eh_proj.weight", Role.MTP),
        ("blk.3.hc_attn_down.weight", Role.OTHER),
        ("blk.3.ple_conv1d.weight", Role.OTHER),
        ("blk.x.attn_q.weight", Role.OTHER),
        ("a.blk.3.attn_q.weight", Role.OTHER),
    ],
)
def test_a_tensor_has_the_role_that_its_name_says(name: str, role: Role) -> None:
    assert place_tensor(name, 4).role is role


@pytest.mark.parametrize("rest", ["attn_q.weight", "ffn_down_exps.weight", "nextn.enorm.weight"])
def test_everything_behind_the_last_running_block_is_the_mtp_head(rest: str) -> None:
    place = place_tensor(f"blk.4.{rest}", 4)

    assert (place.block, place.role) == (4, Role.MTP)


def test_fused_and_single_experts_are_told_from_merged_ones() -> None:
    merged, fused, single = (
        place_tensor(f"blk.0.{rest}", 1)
        for rest in ("ffn_gate_exps.weight", "ffn_gate_up_exps.weight", "ffn_down.12.weight")
    )

    assert [p.is_fused_expert for p in (merged, fused, single)] == [False, True, False]
    assert [p.is_single_expert for p in (merged, fused, single)] == [False, False, True]


@given(st.text())
def test_no_name_is_too_strange_to_have_a_place(name: str) -> None:
    assert place_tensor(name, 4).block is None
    assert place_tensor(f"blk.2.{name}", 4).role in Role
    assert place_tensor(f"blk.{'9' * 400}.{name}", 4).block is None


@given(st.integers(min_value=0, max_value=600), st.integers(min_value=0, max_value=512))
def test_the_block_number_is_read_whatever_follows(block: int, n_layers: int) -> None:
    place = place_tensor(f"blk.{block}.attn_k.weight", n_layers)

    assert place.block == block
    assert (place.role is Role.MTP) == (block >= n_layers)
