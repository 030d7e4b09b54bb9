"""What a model is, as numbers: the planner's picture of one GGUF file or shard set."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum

from hotset.core.hits import HitCurve, prior_curve

__all__ = [
    "CacheKind",
    "DraftHead",
    "Experts",
    "LayerSpec",
    "Matrix",
    "ModelSpec",
    "RecurrentWork",
    "Role",
    "Selection",
    "Working",
]


class Role(StrEnum):
    """What a tensor's bytes are for. The order is that of the tables people read."""

    TOKEN_EMBEDDING = "token embedding"
    ATTENTION = "attention"
    DENSE_FFN = "dense FFN"
    ROUTER = "router"
    ROUTED_EXPERTS = "routed experts"
    SHARED_EXPERTS = "shared experts"
    OUTPUT = "output"
    MTP = "MTP block"
    OTHER = "other"


class CacheKind(StrEnum):
    """What a layer keeps of the tokens it has seen."""

    FULL = "full attention"
    WINDOW = "sliding window"
    LATENT = "latent (MLA)"
    RECURRENT = "recurrent"
    NONE = "none"


@dataclass(frozen=True, slots=True)
class Matrix:
    """One weight of a block: elements, the contiguous dimension first, and bytes."""

    dims: tuple[int, ...]
    n_bytes: int


@dataclass(frozen=True, slots=True)
class LayerSpec:
    """One block.

    Attributes:
        index: number in the file (`blk.<index>.`).
        bytes_by_role: weights in the file, bytes; roles without bytes are absent. All bytes of
            an MTP block are `Role.MTP`.
        cache: the main kind. A block with attention and a recurrent state (falcon-h1) names its
            attention kind and fills both groups of fields.
        k_elements: elements that one token adds to the K cache, all heads; 0 without attention.
        v_elements: the same for V; 0 where K holds everything (MLA).
        indexer_elements: elements per token of a sparse-attention indexer's key cache.
        indexer_v_elements: the same for the V rows that some engines' indexer caches carry.
        state_r_elements: F32 elements of convolution state per sequence.
        state_s_elements: F32 elements of recurrent state per sequence.
        matrices: its weights by short name (`attn_q`); blocks with equal ones share them. Empty for
            an MTP block.
    """

    index: int
    bytes_by_role: Mapping[Role, int]
    cache: CacheKind
    k_elements: int = 0
    v_elements: int = 0
    indexer_elements: int = 0
    indexer_v_elements: int = 0
    state_r_elements: int = 0
    state_s_elements: int = 0
    matrices: Mapping[str, Matrix] = field(default_factory=dict)

    @property
    def n_bytes(self) -> int:
        return sum(self.bytes_by_role.values())


@dataclass(frozen=True, slots=True)
class Experts:
    """The routed experts of a model.

    Attributes:
        count: experts per layer.
        used: experts that a token uses per layer.
        layers: indices of the blocks that have routed experts.
        n_bytes: all routed experts together, biases and scales included.
        is_fused: gate and up are one tensor (`ffn_gate_up_exps`).
        is_per_expert_file: one tensor per expert, as old Mixtral files have.
        largest_tensor_bytes: of the largest tensor of routed experts. An engine that computes a
            large batch on a card copies one such tensor there after the other.
        second_tensor_bytes: of the largest that is smaller than that; 0 where all are alike. The
            gap that it leaves is too small for the largest.
    """

    count: int
    used: int
    layers: tuple[int, ...]
    n_bytes: int
    is_fused: bool = False
    is_per_expert_file: bool = False
    largest_tensor_bytes: int = 0
    second_tensor_bytes: int = 0

    @property
    def bytes_per_token(self) -> int:
        """Expert bytes that one token reads, on average over the experts."""
        return self.n_bytes * self.used // self.count if self.count else 0


@dataclass(frozen=True, slots=True)
class RecurrentWork:
    """F32 elements of one token in a recurrent block.

    Attributes:
        held_elements: before the new states are there.
        gap_elements: of what is done with by then, and leaves one gap.
        result_elements: what comes out, in one tensor with the new states.
    """

    held_elements: int = 0
    gap_elements: int = 0
    result_elements: int = 0


@dataclass(frozen=True, slots=True)
class Selection:
    """What a sparse-attention indexer makes of one token.

    Attributes:
        elements: F32 elements, whatever the context.
        masks: rows as wide as the context, in the type of the attention mask.
        score_bytes: for every cell of the context.
    """

    elements: int = 0
    masks: int = 0
    score_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Working:
    """F32 elements of one token that an engine holds at once while it computes.

    Attributes:
        attention_elements: in the block whose attention holds most, scores not counted.
        projected_elements: while its queries, keys and values are made, beyond a row that is a gap
            later.
        recurrent: in the recurrent block that holds most.
        ffn_elements: in the block whose FFN holds most, all experts in use together.
        routed_elements: of them what is in use at once in a routed FFN, gaps not counted; they
            close where experts are copied to a device, since the copies leave larger ones.
        unrouted_elements: of `ffn_elements`, what remains where another device computes the routed
            experts: dense and shared parts, and the choice of experts.
        parted_elements: of a gap that some blocks leave, and that only experts fill.
        lasting_elements: beside every block, more than a residual of the model's width.
        setup_elements: before the first block, beside what lasts.
        selection: beside attention.
    """

    attention_elements: int = 0
    projected_elements: int = 0
    recurrent: RecurrentWork = RecurrentWork()
    ffn_elements: int = 0
    routed_elements: int = 0
    unrouted_elements: int = 0
    parted_elements: int = 0
    lasting_elements: int = 0
    setup_elements: int = 0
    selection: Selection = Selection()


@dataclass(frozen=True, slots=True)
class DraftHead:
    """A multi-token-prediction head as the context that drafts with it has it.

    Attributes:
        layers: the MTP blocks, with the caches that they have there.
        working: what a token takes while the head is computed.
        is_unknown_to_some: there are engines that run the model and know nothing of its head.
    """

    layers: tuple[LayerSpec, ...]
    working: Working
    is_unknown_to_some: bool = False


@dataclass(frozen=True, slots=True)
class ModelSpec:
    """Architecture, sizes and cache rule of one model. Bytes are exact; they are the file's own.

    Attributes:
        architecture: as the file names it (`qwen3moe`).
        name: the model's own name, or its file's.
        is_known: whether the families table has a row for it. If not, the cache figures are an
            upper bound (every block as full attention) and `notes` says so.
        n_layers: blocks that run for a token (without MTP blocks).
        n_mtp_layers: blocks of a multi-token-prediction head, at the end of `layers`.
        context_tokens: trained context length; 0 where the file does not say.
        n_vocab: rows of the token embedding.
        n_embd: width of the residual stream.
        layers: every block of the file, MTP blocks last.
        bytes_by_role: the whole file.
        bytes_by_type: the quantization mix: tensor type name to bytes.
        experts: None for a dense model.
        window_tokens: sliding window; 0 without one.
        has_vocabulary, has_chat_template: what the file carries of a tokenizer.
        notes: oddities worth a line on the screen.
        v_padded_elements: widest V row of all blocks; without flash attention every V row is
            padded to it.
        k_head_elements, v_head_elements: widths of one K and one V head, each once, ascending. A
            quantized cache needs multiples of its block size.
        n_heads: attention heads of the block with most.
        working: what a token takes while it is computed.
        tied_output_bytes: bytes of the token embedding if it serves as output matrix too, else 0.
            Where the two run on different devices the engine holds them twice.
        is_output_made_first: it holds them twice in one place, too, unless the file is mapped.
        can_roll_back_state: the engine can keep snapshots of the recurrent state while drafting.
        recorded_hits: of the model's own routing, where it has been recorded.
        n_tensors: that the engine loads.
        head: the MTP blocks as a context of their own has them; None without any, and for families
            whose head the engine has no graph for.
    """

    architecture: str
    name: str
    is_known: bool
    n_layers: int
    n_mtp_layers: int
    context_tokens: int
    n_vocab: int
    n_embd: int
    layers: tuple[LayerSpec, ...]
    bytes_by_role: Mapping[Role, int]
    bytes_by_type: Mapping[str, int]
    experts: Experts | None
    window_tokens: int
    has_vocabulary: bool
    has_chat_template: bool
    notes: tuple[str, ...] = ()
    v_padded_elements: int = 0
    k_head_elements: tuple[int, ...] = ()
    v_head_elements: tuple[int, ...] = ()
    n_heads: int = 0
    working: Working = Working()
    tied_output_bytes: int = 0
    is_output_made_first: bool = False
    can_roll_back_state: bool = False
    recorded_hits: HitCurve | None = None
    n_tensors: int = 0
    head: DraftHead | None = None

    @property
    def hits(self) -> HitCurve:
        """How often a cache of its experts hits: as recorded, or what is known of its family."""
        prior = prior_curve(self.architecture, self.experts.count if self.experts else 0)
        return self.recorded_hits or prior

    @property
    def n_bytes(self) -> int:
        """Bytes of all tensors, without header and padding."""
        return sum(self.bytes_by_role.values())

    @property
    def mtp_bytes(self) -> int:
        """Of the MTP blocks; an engine that does not draft with them leaves them in the file."""
        return self.bytes_by_role.get(Role.MTP, 0)

    @property
    def trunk_bytes(self) -> int:
        """What the engine loads when it does not draft with the MTP block, bytes."""
        return self.n_bytes - self.mtp_bytes

    @property
    def unmapped_bytes(self) -> int:
        """What it allocates where all of that is read into RAM instead of being mapped."""
        again = self.tied_output_bytes if self.is_output_made_first else 0
        return self.trunk_bytes + again

    @property
    def is_latent(self) -> bool:
        """Whether its attention caches K only (MLA): K and V types must then be equal."""
        return any(layer.cache is CacheKind.LATENT for layer in self.layers)
