"""Which projector (`mmproj`) belongs to which model.

The engine only compares the width of what the projector puts out with the width of what the
model takes in (llama.cpp tools/mtmd/mtmd.cpp), and widths such as 2048 or 4096 are everywhere.
So a match also needs the right pairing of projector type and architecture, or a common name.
"""

from __future__ import annotations

import re

from hotset.core.placement import Projector
from hotset.core.units import MIB
from hotset.gguf.kinds import metadata_int, metadata_text
from hotset.gguf.shards import ModelFile, ShardName

__all__ = ["matching_projectors", "projector_sizes", "projector_width"]

# Where a projector type is made for certain architectures only, these are they
# (llama.cpp conversion: the classes that write the two files of one model).
_ARCHITECTURES: dict[str, frozenset[str]] = {
    "qwen2vl_merger": frozenset({"qwen2vl"}),
    "qwen2.5vl_merger": frozenset({"qwen2vl"}),
    "qwen3vl_merger": frozenset({"qwen3vl", "qwen3vlmoe", "qwen35", "qwen35moe", "qwen4exp"}),
    "gemma3": frozenset({"gemma3"}),
    "gemma3nv": frozenset({"gemma3n"}),
    "gemma4v": frozenset({"gemma4"}),
    "gemma4a": frozenset({"gemma4"}),
    "gemma4uv": frozenset({"gemma4"}),
    "gemma4ua": frozenset({"gemma4"}),
    "llama4": frozenset({"llama4"}),
    "cogvlm": frozenset({"cogvlm"}),
    "minimax_m3": frozenset({"minimax-m3"}),
}

# The tensor whose size the engine takes as the output width, and the dimension of it
# (llama.cpp tools/mtmd/clip.cpp, clip_n_mmproj_embd); for the rest the metadata has to do.
_OUTPUT_TENSOR: dict[str, tuple[str, int]] = {
    "mlp": ("mm.2.weight", 1),
    "pixtral": ("mm.2.weight", 1),
    "qwen2vl_merger": ("mm.2.weight", 1),
    "qwen2.5vl_merger": ("mm.2.weight", 1),
    "qwen3vl_merger": ("mm.2.weight", 1),
    "kimivl": ("mm.2.weight", 1),
    "lfm2": ("mm.2.weight", 1),
    "gemma3": ("mm.input_projection.weight", 0),
    "gemma4v": ("mm.input_projection.weight", 1),
    "idefics3": ("mm.model.fc.weight", 1),
    "llama4": ("mm.model.fc.weight", 1),
    "internvl": ("mm.model.mlp.3.weight", 1),
}
_TYPE_KEYS = ("clip.projector_type", "clip.vision.projector_type", "clip.audio.projector_type")
_DEEPSTACK = re.compile(r"v\.deepstack\.\d+\.fc1\.weight")

_LIKE_ENOUGH = 0.5
_QUANTIZATION = re.compile(
    r"\b(ud|i?q\d\w*|tq\d\w*|b?f\d\d|fp\d+|mxfp4\w*|nvfp4|imat\w*|gguf|mmproj|model|vision)\b"
)
_WORD = re.compile(r"[a-z0-9.]*[a-z0-9]")


def matching_projectors(model: ModelFile, candidates: list[ModelFile]) -> list[ModelFile]:
    """The projectors among `candidates` that belong to `model`, the best named ones only.

    Args:
        model: a chat model.
        candidates: projectors, usually those in the model's directory.

    Returns:
        Those that fit, in the given order: several where one projector is there in more than
        one precision.
    """
    scored = [(projector, _score(model, projector)) for projector in candidates]
    best = max((score for _, score in scored if score is not None), default=None)
    return [projector for projector, score in scored if score is not None and score == best]


def projector_width(projector: ModelFile) -> int:
    """Elements per token that it puts out, all deepstack levels together; 0 where unknown."""
    types = _types(projector)
    shapes = {tensor.name: tensor.dims for tensor in projector.tensors}
    n_levels = 1 + sum(1 for name in shapes if _DEEPSTACK.fullmatch(name))
    for type_ in types:
        name, index = _OUTPUT_TENSOR.get(type_, ("", 0))
        if index < len(shapes.get(name, ())):
            return shapes[name][index] * n_levels
    for modality in ("vision", "audio"):
        width = metadata_int(projector.metadata, f"clip.{modality}.projection_dim", 0)
        if width > 0:
            return width * n_levels
    return 0


# The picture that the engine tries a projector with (llama.cpp tools/mtmd/clip.cpp,
# set_warmup_n_tokens): 46 x 46 tokens of 2 x 2 patches each for the families that take any size.
_WARMUP_PATCHES = 46 * 46 * 4
_F32_BYTES = 4
# Rows of a block that are alive at once: the residual, its norm, Q, K, V, attention and output, and
# twice the wide rows of the FFN. An upper bound for llama.cpp's graph with flash attention.
_NARROW_ROWS = 8
_WIDE_ROWS = 2
_UNKNOWN_COMPUTE_BYTES = 512 * MIB


def projector_sizes(projector: ModelFile) -> Projector:
    """What it takes: its weights, and the buffers for the picture that the engine tries it with.

    A larger picture takes more; the reserve of a plan has to do for that.
    """
    weights = sum(tensor.n_bytes for tensor in projector.tensors)

    def number(key: str) -> int:
        return max(0, metadata_int(projector.metadata, f"clip.vision.{key}", 0))

    width, wide = number("embedding_length"), number("feed_forward_length")
    size, patch = number("image_size"), number("patch_size")
    if not (width and wide and size and patch):
        return Projector(weights, _UNKNOWN_COMPUTE_BYTES)
    patches = max(_WARMUP_PATCHES, (size // patch) ** 2)
    row = _NARROW_ROWS * width + _WIDE_ROWS * wide
    return Projector(weights, patches * row * _F32_BYTES)


def _model_width(model: ModelFile) -> int:
    """Elements per token that the model takes in (llama.cpp src/llama-hparams.cpp)."""
    architecture = metadata_text(model.metadata, "general.architecture")
    width = metadata_int(model.metadata, f"{architecture}.embedding_length", 0)
    return width * (1 + metadata_int(model.metadata, f"{architecture}.n_deepstack_layers", 0))


def _score(model: ModelFile, projector: ModelFile) -> float | None:
    """How alike the names are, 0 to 1; None for a projector that does not belong."""
    width = projector_width(projector)
    if not width or width != _model_width(model):
        return None
    likeness = _likeness(model, projector)
    made_for = [_ARCHITECTURES[t] for t in _types(projector) if t in _ARCHITECTURES]
    if not made_for:
        return likeness if likeness >= _LIKE_ENOUGH else None
    architecture = metadata_text(model.metadata, "general.architecture")
    return likeness if any(architecture in row for row in made_for) else None


def _types(projector: ModelFile) -> list[str]:
    return [text for key in _TYPE_KEYS if (text := metadata_text(projector.metadata, key))]


def _likeness(model: ModelFile, projector: ModelFile) -> float:
    """Common words over all words, of the two names that are most alike."""
    return max(
        (
            len(ours & theirs) / len(ours | theirs)
            for ours in _names(model)
            for theirs in _names(projector)
        ),
        default=0.0,
    )


def _names(model: ModelFile) -> list[frozenset[str]]:
    """The words of each name the file goes by, without quantization and the like.

    `general.basename` is left out: it is the same for all sizes of a family.
    """
    path = model.paths[0]
    shard = ShardName.parse(path.name)
    stem = shard.prefix if shard else path.stem
    texts = (metadata_text(model.metadata, "general.name"), stem)
    names = [frozenset(_WORD.findall(_QUANTIZATION.sub(" ", t.lower()))) for t in texts]
    return [words for words in names if words]
