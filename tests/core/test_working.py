"""What a block holds of a token: sums that follow from the shapes of its matrices."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from hotset.core.modelspec import RecurrentWork, Working
from plankit import real_model
from speckit import Tensor, small, spec_of, tensor

MOE = small(expert_count=8, expert_used_count=2)


def working(tensors: list[Tensor], architecture: str = "llama", **keys: object) -> Working:
    return spec_of(architecture, small() | keys, tensors).working


def block(*shapes: tuple[str, *tuple[int, ...]]) -> list[Tensor]:
    return [tensor(f"blk.0.{name}.weight", *dims) for name, *dims in shapes]


def experts(width: int) -> list[Tensor]:
    return block(
        ("ffn_gate_exps", 128, width, 8),
        ("ffn_up_exps", 128, width, 8),
        ("ffn_down_exps", width, 128, 8),
    )


@given(st.integers(1, 64))
def test_a_dense_ffn_holds_gate_and_up_and_their_product(blocks: int) -> None:
    width = 32 * blocks
    gated = block(("ffn_gate", 128, width), ("ffn_up", 128, width), ("ffn_down", width, 128))
    fused = block(("ffn_up", 128, 2 * width), ("ffn_down", width, 128))

    assert working(gated).ffn_elements == working(fused).ffn_elements == 3 * width
    assert working(gated[1:]).ffn_elements == 2 * width


@given(st.integers(1, 64), st.integers(1, 8))
def test_experts_in_use_add_up_and_their_output_needs_room_where_it_fits_no_gap(
    blocks: int, used: int
) -> None:
    width = 32 * blocks
    keys = MOE | {"expert_used_count": used}

    held = spec_of("llama", keys, experts(width)).working.ffn_elements

    apart = 0 if 2 * width >= 128 else 128
    assert held == used * (3 * width + apart)


def test_fused_and_single_experts_hold_the_same() -> None:
    fused = block(("ffn_gate_up_exps", 128, 128, 8), ("ffn_down_exps", 64, 128, 8))
    single = [
        tensor(f"blk.0.ffn_{part}.{expert}.weight", *dims)
        for expert in range(8)
        for part, *dims in (("gate", 128, 64), ("up", 128, 64), ("down", 64, 128))
    ]
    whole = spec_of("llama", MOE, experts(64)).working

    assert spec_of("llama", MOE, fused).working == whole
    assert spec_of("llama", MOE, single).working == whole


def test_the_fullest_block_counts_and_no_mtp_block_does() -> None:
    one = experts(64)
    wide = [replace(t, name=t.name.replace("blk.0", "blk.3")) for t in experts(512)]

    def held(**keys: object) -> int:
        return spec_of("qwen35moe", MOE | SSM | keys, one + wide).working.ffn_elements

    assert held() == 2 * 3 * 512
    assert held(nextn_predict_layers=1) == 2 * 3 * 64


SSM = {"ssm.conv_kernel": 4, "ssm.inner_size": 256, "ssm.state_size": 64, "ssm.group_count": 2}


def test_biases_and_norms_are_no_matrices() -> None:
    bias = Tensor("blk.0.ffn_up.bias", tensor("x", 8).type, (64, 8), 1024)

    assert working([bias, *block(("attn_norm", 128))]) == Working()


def test_attention_holds_its_queries_and_what_comes_out_if_that_is_wider_than_the_model() -> None:
    def held(queries: int, mixed: int) -> int:
        shapes = (("attn_q", 128, queries), ("attn_output", mixed, 128))
        return working(block(*shapes)).attention_elements

    assert held(128, 128) == 128  # what comes out finds a gap of the model's width
    assert held(256, 256) == 512
    assert held(512, 256) == 768  # queries with their gates
    assert working(block(("attn_qkv", 128, 384))).attention_elements == 384
    apart = block(("attn_q", 128, 128), ("attn_kv_b", 64, 256), ("attn_output", 128, 128))
    assert working(apart).attention_elements == 128 + 256 + 128


def test_latent_attention_holds_the_queries_of_all_heads_against_the_latent_row() -> None:
    keys = {
        "attention.head_count_kv": 1,
        "attention.key_length": 96,
        "attention.key_length_mla": 64,
        "attention.value_length_mla": 64,
    }
    shapes = (("attn_q", 128, 256), ("attn_k_b", 32, 64, 4), ("attn_kv_a_mqa", 128, 96))

    held = working(block(*shapes), "deepseek2", **keys).attention_elements

    assert held == 4 * 96 + 256 + 64 * 4 + 96


def test_recurrent_blocks_hold_what_goes_through_their_convolution() -> None:
    delta = block(
        ("attn_qkv", 128, 512), ("ssm_conv1d", 4, 512), ("ssm_out", 256, 128), ("ssm_ba", 128, 8)
    )
    mamba = block(("ssm_in", 128, 512), ("ssm_conv1d", 4, 256), ("ssm_out", 256, 128))

    assert working(delta).recurrent == RecurrentWork(512 + 512 + 256, 512, 256)
    first = [*mamba, *block(("ssm_x", 256, 80), ("ssm_dt", 16, 256))]

    assert working(mamba).recurrent == RecurrentWork(512 + 3 * 256 + 128 + 2 * 256)
    assert working(first).recurrent == RecurrentWork(512 + 256 + 128 + 80 + 256 + 256)


@pytest.mark.parametrize(("name", "rows"), [("qwen3.8-flash-next", 7), ("qwen3-30b-a3b", 0)])
def test_residual_streams_beside_each_other_last(name: str, rows: int) -> None:
    spec = real_model(name)

    assert spec.working.lasting_elements == rows * spec.n_embd


def test_inputs_of_all_blocks_at_once_last() -> None:
    table = [tensor("per_layer_model_proj.weight", 128, 4 * 32), *block(("attn_norm", 128))]

    assert working(table).lasting_elements == 128
    assert working(table).setup_elements == 3 * 128
    streams = [*table, tensor("altup_proj.weight", 128, 128, 3)]
    assert working(streams).lasting_elements == 128 + 7 * 128
