"""A tiny qwen3moe model with random weights, for contract tests of the expert store."""

from __future__ import annotations

from pathlib import Path

import numpy as np

import gguf

NUM_LAYERS = 3

NUM_USED = 4
WIDTH = 256
EXPERT_WIDTH = 256
HEAD_WIDTH = 64
NUM_HEADS = 4
NUM_KV_HEADS = 2


def _byte_tokens() -> list[str]:
    """The 256 characters that stand for bytes in a GPT-2 vocabulary, in byte order."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]


def write_tiny_moe(
    path: Path, *, expert_type: str = "Q4_0", num_experts: int = 16, seed: int = 1
) -> Path:
    """Write the model to `path`; the same arguments give the same bytes.

    `expert_type` names the quantization of the expert tensors; all others are F32.
    """
    rng = np.random.default_rng(seed)
    writer = gguf.GGUFWriter(path, "qwen3moe")
    writer.add_block_count(NUM_LAYERS)
    writer.add_context_length(2048)
    writer.add_embedding_length(WIDTH)
    writer.add_feed_forward_length(2 * WIDTH)
    writer.add_head_count(NUM_HEADS)
    writer.add_head_count_kv(NUM_KV_HEADS)
    writer.add_key_length(HEAD_WIDTH)
    writer.add_value_length(HEAD_WIDTH)
    writer.add_layer_norm_rms_eps(1e-6)
    writer.add_rope_freq_base(1e6)
    writer.add_expert_count(num_experts)
    writer.add_expert_used_count(NUM_USED)
    writer.add_expert_feed_forward_length(EXPERT_WIDTH)
    tokens = [*_byte_tokens(), "Ġt", "<|end|>"]
    kinds = [gguf.TokenType.NORMAL] * (len(tokens) - 1) + [gguf.TokenType.CONTROL]
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("qwen2")
    writer.add_token_list(tokens)
    writer.add_token_types(kinds)
    writer.add_token_merges(["Ġ t"])
    writer.add_eos_token_id(len(tokens) - 1)

    def random(*shape: int, scale: float = 1.0) -> np.typing.NDArray[np.float32]:
        return rng.standard_normal(shape, dtype=np.float32) * np.float32(scale)

    def add(name: str, *shape: int, kind: str = "F32", scale: float = 1.0) -> None:
        values = random(*shape, scale=scale)
        quantization = gguf.GGMLQuantizationType[kind]
        writer.add_tensor(name, gguf.quants.quantize(values, quantization), raw_dtype=quantization)

    def add_ones(name: str, size: int) -> None:
        writer.add_tensor(name, np.ones(size, dtype=np.float32))

    # Rows of about unit length keep the activations near one through the layers.
    inner = WIDTH**-0.5
    add("token_embd.weight", len(tokens), WIDTH)
    add_ones("output_norm.weight", WIDTH)
    # Only printable characters have logits other than zero: some servers refuse to pass on
    # output that is not UTF-8.
    output = random(len(tokens), WIDTH, scale=inner)
    output[[not 0x20 <= token < 0x7F for token in range(len(tokens))]] = 0
    writer.add_tensor("output.weight", output)
    for layer in range(NUM_LAYERS):
        block = f"blk.{layer}"
        add_ones(f"{block}.attn_norm.weight", WIDTH)
        add_ones(f"{block}.attn_q_norm.weight", HEAD_WIDTH)
        add_ones(f"{block}.attn_k_norm.weight", HEAD_WIDTH)
        add(f"{block}.attn_q.weight", NUM_HEADS * HEAD_WIDTH, WIDTH, scale=inner)
        add(f"{block}.attn_k.weight", NUM_KV_HEADS * HEAD_WIDTH, WIDTH, scale=inner)
        add(f"{block}.attn_v.weight", NUM_KV_HEADS * HEAD_WIDTH, WIDTH, scale=inner)
        add(f"{block}.attn_output.weight", WIDTH, NUM_HEADS * HEAD_WIDTH, scale=inner)
        add_ones(f"{block}.ffn_norm.weight", WIDTH)
        add(f"{block}.ffn_gate_inp.weight", num_experts, WIDTH, scale=inner)
        for part in ("gate", "up"):
            add(
                f"{block}.ffn_{part}_exps.weight",
                *(num_experts, EXPERT_WIDTH, WIDTH),
                kind=expert_type,
                scale=inner,
            )
        add(
            f"{block}.ffn_down_exps.weight",
            *(num_experts, WIDTH, EXPERT_WIDTH),
            kind=expert_type,
            scale=inner,
        )
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path
