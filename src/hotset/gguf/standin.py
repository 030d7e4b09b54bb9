"""A stand-in for a model: its tokenizer and chat templates, and next to nothing else.

Whoever has only to count a model's tokens needs no weights. The stand-in is a whole, sound GGUF
file that any engine loads: the model's own `tokenizer.*` keys byte for byte, and the body of a
llama with one narrow block, all zeros. On disk it is as large as the vocabulary, a few MB; the
zeros are a hole.

Its counts are the model's own: llama.cpp (src/llama-vocab.cpp, `llama_vocab::impl::load`) makes a
tokenizer of these keys and of the model's name. Its architecture matters to two encoders only
(nomic-bert-moe, jina-bert-v3), which this is not for.
"""

from __future__ import annotations

from pathlib import Path

from hotset.core.errors import FileProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.gguf.reader import copy_values
from hotset.gguf.synth.writer import Encoded, TensorEntry, Value, write_gguf
from hotset.gguf.values import ArrayInfo
from hotset.gguf.window import printable

__all__ = ["write_stand_in"]

_WIDTH = 32
_CONTEXT_TOKENS = 64
_NAME = "general.name"
_TOKENS = "tokenizer.ggml.tokens"


def write_stand_in(model: Path, path: Path) -> None:
    """Write the stand-in of `model` (its only or first file) to `path`.

    Raises:
        FileProblem: the model's header is not sound, or there is no tokenizer in it.
        MachineProblem: the file cannot be written.
    """
    kept = copy_values(model, lambda key: key == _NAME or key.startswith("tokenizer."))
    tokens = kept.get(_TOKENS, ("", b""))[0]
    if not isinstance(tokens, ArrayInfo) or not tokens.count:
        raise FileProblem(f"{printable(model.name)}: has no tokenizer of its own ({_TOKENS})")
    body: dict[str, Value] = {
        "general.architecture": "llama",
        "llama.context_length": _CONTEXT_TOKENS,
        "llama.embedding_length": _WIDTH,
        "llama.feed_forward_length": _WIDTH,
        "llama.block_count": 1,
        "llama.attention.head_count": 1,
        "llama.attention.layer_norm_rms_epsilon": 1e-5,
        "llama.rope.dimension_count": _WIDTH,
    }
    copied = {key: Encoded(raw) for key, (_, raw) in kept.items()}
    write_gguf(path, {**body, **copied}, _tensors(tokens.count))


def _tensors(num_tokens: int) -> list[TensorEntry]:
    square = (_WIDTH, _WIDTH)
    rows = {"token_embd": (_WIDTH, num_tokens)}
    rows |= {f"blk.0.attn_{name}": square for name in ("q", "k", "v", "output")}
    rows |= {f"blk.0.ffn_{name}": square for name in ("gate", "up", "down")}
    norms = ("output_norm", "blk.0.attn_norm", "blk.0.ffn_norm")
    return [
        *(
            TensorEntry(f"{name}.weight", shape, tensor_type_named("F16"))
            for name, shape in rows.items()
        ),
        *(TensorEntry(f"{name}.weight", (_WIDTH,), tensor_type_named("F32")) for name in norms),
    ]
