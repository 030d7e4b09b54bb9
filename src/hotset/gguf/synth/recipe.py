"""What a synthetic model consists of: sizes, tensor types by role, and the plan they give.

A family is a function that takes a `Builder` and calls it once per metadata key and tensor, in
the order of a real file. Names, shapes and required keys are those that llama.cpp asks for
(src/llama-arch.cpp, load_arch_hparams and load_arch_tensors in src/models).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from enum import Enum, StrEnum, auto

from hotset.core.tensortypes import TensorType, tensor_type_named
from hotset.gguf.synth.writer import Value

__all__ = [
    "Builder",
    "Dims",
    "FamilyRecipe",
    "Fill",
    "Latent",
    "Mix",
    "ModelKind",
    "ModelPlan",
    "Sparse",
    "Ssm",
    "TensorPlan",
]


class Fill(Enum):
    """How a tensor's values look."""

    MATRIX = auto()  # a product keeps the size of what goes in (times the gain)
    EMBEDDING = auto()  # values of the size of the gain
    LEANING = auto()  # as EMBEDDING, around a vector that all rows share
    OUTPUT = auto()  # as MATRIX; rows of silent tokens are zero
    TIED = auto()  # as EMBEDDING; rows of silent tokens are small
    ROUTER = auto()  # as MATRIX; its own kind, so that routing can be given a pattern
    NORM = auto()  # around the gain, all positive
    MIXED_NORM = auto()  # the same with random signs
    BIAS = auto()  # around zero, of the size of the gain
    DECAY = auto()  # around minus the gain, all negative


class ModelKind(StrEnum):
    """What a family's files are for."""

    CHAT = "chat"
    EMBEDDING = "embedding"
    PROJECTOR = "projector"


@dataclass(frozen=True, slots=True)
class Ssm:
    """Sizes of a recurrent (state space, gated delta net, short convolution) layer."""

    conv_kernel: int = 4
    state: int = 64
    inner: int = 256
    rank: int = 4
    groups: int = 2


@dataclass(frozen=True, slots=True)
class Latent:
    """Sizes of multi-head latent attention."""

    q_rank: int = 0
    kv_rank: int = 128
    nope: int = 64
    rope: int = 32
    value: int = 64


@dataclass(frozen=True, slots=True)
class Sparse:
    """Sizes of what qwen4exp adds: hyper-connections, the indexer, hashed n-gram embeddings.

    Attributes:
        mixer_rank: of the low-rank mixers between the streams of the residual.
        indexer_heads, indexer_dim: of the indexer; top_k: cells that it selects.
        heads_per_ngram: hash heads for each n-gram length (2 and 3).
        rows_per_head: rows of the n-gram table per hash head.
    """

    mixer_rank: int = 32
    indexer_heads: int = 4
    indexer_dim: int = 64
    top_k: int = 64
    heads_per_ngram: int = 2
    rows_per_head: int = 512


@dataclass(frozen=True, slots=True)
class Dims:
    """Sizes of a model. A family uses those that it knows.

    Attributes:
        n_layers: blocks that run for a token, MTP blocks not counted.
        n_ff: width of a dense FFN; n_ff_exp of one expert; n_ff_shexp of all shared experts.
        n_dense_lead: leading blocks with a dense FFN.
        n_mtp: blocks of a multi-token-prediction head.
        window_tokens: sliding window of the layers that have one.
        interval: every so many-th layer is a full-attention layer (hybrid and window patterns).
        head_dim_swa, n_head_kv_swa: of sliding-window layers, where they differ.
        n_embd_per_layer: width of a per-layer embedding.
        n_shared_kv: layers at the end that use the KV cache of earlier ones.
        rope_dims: rotated part of a head; 0 for all of it.
    """

    n_layers: int = 4
    n_embd: int = 256
    n_head: int = 4
    n_head_kv: int = 2
    head_dim: int = 64
    n_ff: int = 512
    n_ff_exp: int = 256
    n_ff_shexp: int = 256
    n_experts: int = 8
    n_used: int = 2
    n_vocab: int = 512
    context_tokens: int = 2048
    n_dense_lead: int = 1
    n_mtp: int = 0
    window_tokens: int = 128
    interval: int = 2
    head_dim_swa: int = 64
    n_head_kv_swa: int = 2
    n_embd_per_layer: int = 0
    n_shared_kv: int = 0
    rope_dims: int = 0
    rope_base: float = 10000.0
    is_fused: bool = False
    is_tied: bool = False
    ssm: Ssm = field(default_factory=Ssm)
    latent: Latent = field(default_factory=Latent)
    sparse: Sparse = field(default_factory=Sparse)


@dataclass(frozen=True, slots=True)
class Mix:
    """Tensor types by role. Vectors, routers and convolutions are F32 in every mix."""

    embedding: str = "Q8_0"
    output: str = "Q8_0"
    attention: str = "Q8_0"
    dense: str = "Q8_0"
    shared: str = "Q8_0"
    experts: str = "Q4_0"
    down: str = "Q4_0"
    file_type: int = 2
    """`general.file_type` (llama.cpp include/llama.h, llama_ftype)."""


@dataclass(frozen=True, slots=True)
class TensorPlan:
    """One tensor: its place in the file, and how it is filled.

    `popularity` is for a router: how far its experts differ in being chosen at all, as a share of
    how far one expert's logits differ between tokens.
    """

    name: str
    shape: tuple[int, ...]
    type: TensorType
    fill: Fill
    gain: float = 1.0
    popularity: float = 0.0


@dataclass(frozen=True, slots=True)
class ModelPlan:
    """All metadata but the tokenizer's, and all tensors."""

    metadata: dict[str, Value]
    tensors: tuple[TensorPlan, ...]


# A row that the wanted type's block does not divide falls back to the nearest type that it
# does (llama.cpp src/llama-quant.cpp does the same).
_FALLBACK = {"Q4_K": "Q5_0", "Q5_K": "Q5_1", "Q6_K": "Q8_0"}


def fitting_type(name: str, row_elements: int) -> TensorType:
    """The type called `name`, or the nearest one whose blocks divide a row of `row_elements`."""
    wanted = tensor_type_named(name)
    if row_elements % wanted.block_elements == 0:
        return wanted
    if row_elements % 32 == 0 and wanted.block_elements > 32:
        return tensor_type_named(_FALLBACK.get(wanted.name, "IQ4_NL"))
    return tensor_type_named("F16")


_LOGIT_STD = 3.0


class Builder:
    """Collects a model's metadata and tensors. `d` are its sizes, `mix` its types."""

    def __init__(self, architecture: str, dims: Dims, mix: Mix) -> None:
        self.d = dims
        self.mix = mix
        self._architecture = architecture
        self._metadata: dict[str, Value] = {
            "general.architecture": architecture,
            "general.type": "model",
            "general.quantization_version": 2,
            "general.file_type": mix.file_type,
        }
        self._tensors: list[TensorPlan] = []

    def plan(self) -> ModelPlan:
        return ModelPlan(self._metadata, tuple(self._tensors))

    def set(self, key: str, value: Value) -> None:
        """A key without the architecture's prefix."""
        self._metadata[key] = value

    def key(self, key: str, value: Value) -> None:
        """A key under the architecture's name."""
        self._metadata[f"{self._architecture}.{key}"] = value

    def matrix(
        self,
        name: str,
        n_in: int,
        n_out: int,
        kind: str,
        *,
        fill: Fill = Fill.MATRIX,
        gain: float = 1.0,
    ) -> None:
        """A matrix of the type called `kind` (or the one nearest to it that fits)."""
        kind_fitting = fitting_type(kind, n_in)
        self._tensors.append(TensorPlan(name, (n_in, n_out), kind_fitting, fill, gain))

    def stack(self, name: str, n_in: int, n_out: int, n: int, kind: str, gain: float = 1.0) -> None:
        """`n` matrices in one tensor: the experts of a layer, the heads of a projection."""
        kind_fitting = fitting_type(kind, n_in)
        self._tensors.append(TensorPlan(name, (n_in, n_out, n), kind_fitting, Fill.MATRIX, gain))

    def values(self, name: str, *shape: int, fill: Fill = Fill.BIAS, gain: float = 0.02) -> None:
        """F32 values: biases, decays, convolutions."""
        self._tensors.append(TensorPlan(name, shape, tensor_type_named("F32"), fill, gain))

    def norm(self, name: str, *shape: int, gain: float = 1.0) -> None:
        """F32 factors around `gain`: norm weights, skip connections."""
        self.values(name, *shape, fill=Fill.NORM, gain=gain)

    def mixed_norm(self, name: str, n: int) -> None:
        """A norm with random signs. Before a tied output it keeps a token from predicting itself,
        which it would, being most like its own embedding."""
        self.values(name, n, fill=Fill.MIXED_NORM, gain=1.0)

    def decays(self, name: str, *shape: int) -> None:
        """F32 exponents of a state's decay."""
        self.values(name, *shape, fill=Fill.DECAY, gain=1.0)

    def router(self, name: str, n_in: int, n_experts: int) -> None:
        """Router logits of a standard deviation of 1.5: clear preferences, no fixed winner."""
        self.matrix(name, n_in, n_experts, "F32", fill=Fill.ROUTER, gain=1.5)

    def embedding(self, name: str, n_in: int, n_rows: int) -> None:
        """A table to look up. Its values are smaller than what a layer adds (about 1), so that
        the context, and not the last token alone, decides what comes next."""
        self.matrix(name, n_in, n_rows, self.mix.embedding, fill=Fill.EMBEDDING, gain=0.3)

    def output(self, n_in: int, n_tokens: int, *, gain: float = 1.0) -> None:
        """Logits of a standard deviation of 3: clear differences, no token that is certain.

        Args:
            gain: for a family whose last state is not normed to values around 1.
        """
        name, kind, gain = "output.weight", self.mix.output, gain * _LOGIT_STD
        self.matrix(name, n_in, n_tokens, kind, fill=Fill.OUTPUT, gain=gain)

    def tied_embedding(self, n_in: int, n_tokens: int) -> None:
        """One table that is both; the size is right for the logits."""
        gain = _LOGIT_STD / n_in**0.5
        self.matrix(
            "token_embd.weight", n_in, n_tokens, self.mix.embedding, fill=Fill.TIED, gain=gain
        )


@dataclass(frozen=True, slots=True)
class FamilyRecipe:
    """One family of models.

    Attributes:
        name: unique; an architecture may have several (llama, mixtral).
        architecture: `general.architecture`.
        build: adds the family's keys and tensors to a builder.
        tiny: the sizes of its smallest sensible model.
        can_fuse: whether the engine takes gate and up experts as one tensor.
        kind: chat models and embedding models load in the engine; a projector does not alone.
    """

    name: str
    architecture: str
    build: Callable[[Builder], None]
    tiny: Dims = field(default_factory=Dims)
    can_fuse: bool = False
    kind: ModelKind = ModelKind.CHAT

    @property
    def has_experts(self) -> bool:
        return f"{self.architecture}.expert_count" in self.plan(self.tiny, Mix()).metadata

    def plan(self, dims: Dims, mix: Mix) -> ModelPlan:
        builder = Builder(self.architecture, dims, mix)
        self.build(builder)
        return builder.plan()
