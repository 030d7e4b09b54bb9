"""What kind of model file this is: told from its metadata and tensors, never from its name."""

from __future__ import annotations

import re
from collections.abc import Mapping
from enum import StrEnum

from hotset.core.errors import FileProblem
from hotset.gguf.reader import MetaValue
from hotset.gguf.shards import ModelFile
from hotset.gguf.window import printable

__all__ = ["Kind", "kind_of", "metadata_int", "metadata_text"]


class Kind(StrEnum):
    """What a file is good for."""

    CHAT = "chat model"
    EMBEDDING = "embedding"
    RERANKER = "reranker"
    PROJECTOR = "projector"
    DRAFT = "draft/MTP"
    IMATRIX = "imatrix"
    ADAPTER = "adapter"
    VOCABULARY = "vocabulary only"
    SPEECH = "speech model"

    @property
    def is_model(self) -> bool:
        """Whether it has blocks and a cache: whether `model_spec` describes it."""
        return self in _MODELS


_MODELS = frozenset({Kind.CHAT, Kind.EMBEDDING, Kind.RERANKER, Kind.DRAFT})

# Sources for the names: llama.cpp src/llama-arch.cpp; tools/imatrix/imatrix.cpp and
# convert_lora_to_gguf.py for general.type; tools/cvector-generator for control vectors.
_BY_TYPE = {"mmproj": Kind.PROJECTOR, "imatrix": Kind.IMATRIX, "adapter": Kind.ADAPTER}
_BY_ARCHITECTURE = {
    "clip": Kind.PROJECTOR,
    "imatrix": Kind.IMATRIX,
    "controlvector": Kind.ADAPTER,
    "eagle3": Kind.DRAFT,
    "dflash": Kind.DRAFT,
    "gemma4-assistant": Kind.DRAFT,
    "wavtokenizer-dec": Kind.SPEECH,
    "qwen3tts": Kind.SPEECH,
    "pockettts": Kind.SPEECH,
    "bert": Kind.EMBEDDING,
    "modern-bert": Kind.EMBEDDING,
    "nomic-bert": Kind.EMBEDDING,
    "nomic-bert-moe": Kind.EMBEDDING,
    "neo-bert": Kind.EMBEDDING,
    "jina-bert-v2": Kind.EMBEDDING,
    "jina-bert-v3": Kind.EMBEDDING,
    "eurobert": Kind.EMBEDDING,
    "gemma-embedding": Kind.EMBEDDING,
    "llama-embed": Kind.EMBEDDING,
    "t5encoder": Kind.EMBEDDING,
}
_POOLING_NONE, _POOLING_RANK = 0, 4  # include/llama.h, enum llama_pooling_type
_RANK_TENSORS = frozenset({"cls.output.weight", "cls.weight"})
_BLOCK = re.compile(r"blk\.(\d+)\.")


def kind_of(model: ModelFile) -> Kind:
    """Tell the kind of a sound file.

    Raises:
        FileProblem: when it names no architecture, or has neither tensors nor a vocabulary.
    """
    name = printable(model.paths[0].name)
    general_type = metadata_text(model.metadata, "general.type")
    if general_type in _BY_TYPE:
        return _BY_TYPE[general_type]
    architecture = metadata_text(model.metadata, "general.architecture")
    if not architecture:
        raise FileProblem(
            f"{name}: names no general.architecture, so no engine can tell what it is; "
            "get a complete file of this model"
        )
    tensor_names = {tensor.name for tensor in model.tensors}
    if not tensor_names:
        if "tokenizer.ggml.tokens" in model.metadata:
            return Kind.VOCABULARY
        raise FileProblem(f"{name}: has neither tensors nor a vocabulary; download it again")
    pooling = metadata_int(model.metadata, f"{architecture}.pooling_type", _POOLING_NONE)
    listed = _BY_ARCHITECTURE.get(architecture)
    if listed in (None, Kind.EMBEDDING):
        if pooling == _POOLING_RANK or tensor_names & _RANK_TENSORS:
            return Kind.RERANKER
        if pooling != _POOLING_NONE:
            return Kind.EMBEDDING
    if listed is None and _is_mtp_only(model.metadata, architecture, tensor_names):
        return Kind.DRAFT
    return listed or Kind.CHAT


def metadata_int(metadata: Mapping[str, MetaValue], key: str, default: int) -> int:
    """A whole number; `default` where it is absent or something else."""
    value = metadata.get(key)
    return value if type(value) is int else default


def metadata_text(metadata: Mapping[str, MetaValue], key: str) -> str:
    """A text; empty where it is absent or something else."""
    value = metadata.get(key)
    return value if isinstance(value, str) else ""


def _is_mtp_only(
    metadata: Mapping[str, MetaValue], architecture: str, tensor_names: set[str]
) -> bool:
    """Whether only the blocks of a multi-token-prediction head are there.

    Such files keep the whole model's block count (llama.cpp conversion, `mtp_only`).
    """
    n_blocks = metadata_int(metadata, f"{architecture}.block_count", 0)
    n_mtp = metadata_int(metadata, f"{architecture}.nextn_predict_layers", 0)
    blocks = {int(match[1]) for name in tensor_names if (match := _BLOCK.match(name))}
    return 0 < n_mtp < n_blocks and bool(blocks) and min(blocks) >= n_blocks - n_mtp
