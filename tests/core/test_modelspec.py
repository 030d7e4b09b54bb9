"""What a model says about itself once it is a `ModelSpec`."""

from __future__ import annotations

from hotset.core.modelspec import Experts, Role
from plankit import real_model
from speckit import small, spec_of, tensor

MOE = small(expert_count=8, expert_used_count=2, nextn_predict_layers=1, block_count=3)
MOE_TENSORS = [
    tensor("token_embd.weight", 128, 500),
    tensor("output.weight", 128, 500),
    tensor("output_norm.weight", 128),
    *(
        tensor(f"blk.{i}.{name}.weight", *dims, type_name="Q4_0")
        for i in range(3)
        for name, dims in (
            ("attn_q", (128, 128)),
            ("ffn_gate_inp", (128, 8)),
            ("ffn_up_exps", (128, 64, 8)),
            ("ffn_down_exps", (64, 128, 8)),
            ("ffn_up_shexp", (128, 32)),
        )
    ),
]


def test_bytes_add_up_by_block_by_role_and_by_type_alike() -> None:
    spec = spec_of("qwen2moe", MOE, MOE_TENSORS)
    outside = sum(t.n_bytes for t in MOE_TENSORS if not t.name.startswith("blk."))

    assert spec.n_bytes == sum(t.n_bytes for t in MOE_TENSORS)
    assert sum(layer.n_bytes for layer in spec.layers) + outside == spec.n_bytes
    assert sum(spec.bytes_by_type.values()) == spec.n_bytes
    assert spec.bytes_by_type["F16"] == outside


def test_blocks_of_the_same_kind_weigh_the_same_and_the_mtp_block_stands_apart() -> None:
    first, second, mtp = spec_of("qwen2moe", MOE, MOE_TENSORS).layers

    assert first.bytes_by_role == second.bytes_by_role
    assert mtp.bytes_by_role == {Role.MTP: first.n_bytes}


def test_what_is_loaded_without_drafting_is_all_but_the_mtp_block() -> None:
    with_mtp = spec_of("qwen2moe", MOE, MOE_TENSORS)
    without = spec_of(
        "qwen2moe",
        MOE | {"block_count": 2, "nextn_predict_layers": 0},
        [t for t in MOE_TENSORS if not t.name.startswith("blk.2.")],
    )

    assert with_mtp.trunk_bytes == without.trunk_bytes == without.n_bytes < with_mtp.n_bytes
    assert with_mtp.experts == without.experts


def test_a_token_reads_its_share_of_the_experts() -> None:
    experts = spec_of("qwen2moe", MOE, MOE_TENSORS).experts

    assert experts is not None
    assert (experts.count, experts.used, experts.layers) == (8, 2, (0, 1))
    assert experts.bytes_per_token * 4 == experts.n_bytes
    assert Experts(count=0, used=0, layers=(), n_bytes=0).bytes_per_token == 0


def test_fused_and_per_expert_files_say_so_and_hold_the_same_bytes() -> None:
    keys = small(block_count=1, expert_count=4, expert_used_count=2)
    down = tensor("blk.0.ffn_down_exps.weight", 64, 128, 4)
    split = spec_of(
        "llama",
        keys,
        [tensor(f"blk.0.ffn_{side}_exps.weight", 128, 64, 4) for side in ("gate", "up")] + [down],
    )
    fused = spec_of("llama", keys, [tensor("blk.0.ffn_gate_up_exps.weight", 128, 128, 4), down])
    single = spec_of(
        "llama",
        keys,
        [
            tensor(f"blk.0.ffn_{side}.{e}.weight", *dims)
            for e in range(4)
            for side, dims in (("gate", (128, 64)), ("up", (128, 64)), ("down", (64, 128)))
        ],
    )

    flags = [
        (s.experts.is_fused, s.experts.is_per_expert_file, s.experts.n_bytes)
        for s in (split, fused, single)
        if s.experts
    ]

    n_bytes = 3 * 128 * 64 * 4 * 2
    assert flags == [(False, False, n_bytes), (True, False, n_bytes), (False, True, n_bytes)]


def test_an_embedding_that_is_the_output_matrix_too_is_counted_once_and_marked() -> None:
    tied = spec_of("qwen2moe", MOE, [t for t in MOE_TENSORS if t.name != "output.weight"])
    own = spec_of("qwen2moe", MOE, MOE_TENSORS)

    assert tied.tied_output_bytes == 128 * 500 * 2
    assert own.tied_output_bytes == 0
    assert own.n_bytes - tied.n_bytes == tied.tied_output_bytes


def test_only_a_family_that_makes_its_output_first_holds_a_tied_one_twice_in_ram() -> None:
    for name, is_twice in (("gemma-4-26b-a4b", True), ("granite-3.1-1b-a400m", False)):
        spec = real_model(name)
        again = spec.tied_output_bytes if is_twice else 0
        assert spec.tied_output_bytes > 0
        assert spec.unmapped_bytes == spec.trunk_bytes + again


def test_the_vocabulary_is_as_large_as_the_embedding_or_as_the_file_says() -> None:
    assert spec_of("qwen2moe", MOE, MOE_TENSORS).n_vocab == 500
    assert spec_of("qwen2moe", MOE | {"vocab_size": 700}, MOE_TENSORS).n_vocab == 500
    assert spec_of("qwen2moe", MOE | {"vocab_size": 700}, MOE_TENSORS[1:]).n_vocab == 700
