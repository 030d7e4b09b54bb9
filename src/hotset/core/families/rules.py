"""The vocabulary of the families table: how a file says which block keeps what."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum, auto

__all__ = ["Attention", "Family", "Indexer", "Recurrent", "State", "Where", "Window"]


class Attention(Enum):
    """What the attention blocks of a family keep."""

    CACHED = auto()
    LATENT = auto()
    """K only, compressed (MLA), if the file has the two ``attention.*_length_mla`` keys; files
    from before that change keep full K and V."""
    UNCACHED = auto()
    """Nothing: encoders and diffusion models see all their tokens at once."""


@dataclass(frozen=True, slots=True)
class Window:
    """Which blocks look back over a sliding window only, and how far.

    Attributes:
        default_tokens: window where the file has no ``attention.sliding_window``; None if the
            key is required, 0 if its absence means no window anywhere.
        fixed_tokens: what the engine takes instead of the file's value; 0 to believe the file.
        period: one block in so many keeps everything, where the file has no pattern of its own;
            0 for no such block, None if the file must have an array.
        is_full_first: the first block of each period is the one, not the last.
        only_with_blocks: the rule holds for models of exactly this many blocks; 0 for all.
    """

    period: int | None
    default_tokens: int | None = None
    fixed_tokens: int = 0
    is_full_first: bool = False
    only_with_blocks: int = 0


class Where(Enum):
    """Which blocks are recurrent."""

    EVERY = auto()
    BESIDE_ATTENTION = auto()
    """Every block, and every block has attention as well."""
    INTERVAL = auto()
    """``attention.recurrent_layers``, or all but each ``full_attention_interval``-th."""
    NO_KV_HEADS = auto()
    """Those whose entry in ``attention.head_count_kv`` is 0."""
    NO_KV_HEADS_NOR_FFN = auto()
    """Those whose ``feed_forward_length`` is 0 too; a block with one has neither memory."""


class State(Enum):
    """How large the memory of a recurrent block is (llama.cpp src/llama-hparams.cpp, n_embd_r
    for the convolution and n_embd_s for the state)."""

    SSM = auto()
    """Mamba, without groups."""
    GROUPED_SSM = auto()
    """Mamba 2 and the gated delta nets."""
    SHORT_CONVOLUTION = auto()
    DELTA_HEADS = auto()
    """Kimi delta attention: a square per head, and three convolutions."""
    LIGHTNING = auto()
    """A square per head, nothing else."""
    WKV = auto()


@dataclass(frozen=True, slots=True)
class Recurrent:
    """The recurrent blocks of a family.

    Attributes:
        where: which blocks.
        state: how much each keeps.
        interval: where ``full_attention_interval`` is absent.
        can_roll_back: the engine keeps snapshots to take back drafted tokens.
    """

    where: Where
    state: State
    interval: int = 4
    can_roll_back: bool = False


class Indexer(Enum):
    """Which blocks cache the keys of a sparse-attention indexer: one head, K only under MLA."""

    POOLED = auto()
    """The attention blocks; twice the width where the file gives ``attention.compress_ratios``."""
    EVERY = auto()
    BY_TYPE = auto()
    """Those marked in ``attention.indexer.types``."""
    AFTER_DENSE = auto()
    """Those behind ``leading_dense_block_count``; V rows of one head as well."""


@dataclass(frozen=True, slots=True)
class Family:
    """One row: the architectures that keep the same things in the same way.

    Attributes:
        architectures: values of ``general.architecture``.
        attention: what attention blocks keep.
        window: None if every attention block keeps the whole context.
        recurrent: None without recurrent blocks.
        indexer: None without a sparse-attention indexer.
        kv_blocks: the blocks behind the first so many use the KV of earlier ones; 0 for none.
        has_shared_kv_key: ``attention.shared_kv_layers`` says how many blocks at the end do so.
        has_output_first: the engine makes the output before the token embedding, and so, where
            the two are one matrix, allocates it twice even in one place.
        has_conv_history: a block named in ``ple.layers`` keeps a convolution's history, too.
        oddities: what else is worth knowing, one sentence each.
    """

    architectures: tuple[str, ...]
    attention: Attention = Attention.CACHED
    window: Window | None = None
    recurrent: Recurrent | None = None
    indexer: Indexer | None = None
    kv_blocks: int = 0
    has_shared_kv_key: bool = False
    has_output_first: bool = False
    has_conv_history: bool = False
    oddities: tuple[str, ...] = ()
