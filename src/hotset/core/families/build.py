"""From one file's metadata and tensor table to a `ModelSpec`."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Protocol

from hotset.core.errors import FileProblem
from hotset.core.families.caches import BlockCache, Caches, block_caches
from hotset.core.families.metadata import MAX_BLOCKS, Metadata
from hotset.core.families.rules import Family, Indexer
from hotset.core.families.table import (
    DRAFTING_ARCHITECTURES,
    FIRST_DRAFTING_ARCHITECTURES,
    family_named,
)
from hotset.core.families.working import BlockShapes, short_name, working_of
from hotset.core.modelspec import (
    CacheKind,
    DraftHead,
    Experts,
    LayerSpec,
    Matrix,
    ModelSpec,
    Role,
    Selection,
    Working,
)
from hotset.core.roles import place_tensor
from hotset.core.tensortypes import TensorType

__all__ = ["TensorFacts", "build_model_spec"]

_MAX_EXPERTS = 1024  # LLAMA_MAX_EXPERTS in llama.cpp src/llama-hparams.h
_MAX_NAME_CHARACTERS = 64
_SELECTION_ROWS = 4  # indices and weights of the selected cells, in several forms


class TensorFacts(Protocol):
    """One line of a tensor table: what a header reader gives."""

    @property
    def name(self) -> str: ...
    @property
    def type(self) -> TensorType: ...
    @property
    def dims(self) -> tuple[int, ...]:
        """Elements, the contiguous dimension first."""
        ...

    @property
    def n_bytes(self) -> int: ...


@dataclass(slots=True)
class _Weights:
    """Sums over the tensor table, filled tensor by tensor."""

    by_block: list[Counter[Role]]
    by_role: Counter[Role] = field(default_factory=Counter)
    by_type: Counter[str] = field(default_factory=Counter)
    shapes_outside: BlockShapes = field(default_factory=dict)
    matrices: list[dict[str, Matrix]] = field(default_factory=list)
    token_embedding_bytes: int = 0
    n_vocab: int = 0
    has_output: bool = False
    n_tensors: int = 0
    is_fused: bool = False
    is_per_expert: bool = False
    expert_tensor_bytes: set[int] = field(default_factory=set)


def build_model_spec(
    metadata: Mapping[str, object], tensors: Iterable[TensorFacts], *, source: str
) -> ModelSpec:
    """Work out what a model is.

    Args:
        metadata: key to value: text, numbers, booleans, tuples of numbers; any other object for
            what was not read. Nothing in it is trusted.
        tensors: every tensor, of all shards.
        source: the file's name, for messages and for a model without a name of its own.

    Raises:
        FileProblem: for metadata that is missing, impossible, or at odds with the tensors.
    """
    architecture = metadata.get("general.architecture")
    if not isinstance(architecture, str) or not 0 < len(architecture) <= _MAX_NAME_CHARACTERS:
        raise FileProblem(
            f"{source}: general.architecture is missing or no name; this file is no model that an "
            "engine can run: get a GGUF file of the model itself"
        )
    meta = Metadata(metadata, architecture, source)
    family = family_named(architecture)
    n_all = meta.number("block_count", low=1, high=MAX_BLOCKS)
    n_mtp = meta.number("nextn_predict_layers", 0, high=n_all)
    n_layers = n_all - n_mtp
    n_used = _experts_used(meta, n_all)
    weights = _weigh(meta, tensors, n_all, n_layers)
    caches = block_caches(family, meta, n_all, n_layers)
    rule = family.recurrent if family else None
    matrices = _shared(weights.matrices[:n_layers])
    return ModelSpec(
        architecture=architecture,
        name=_text(metadata.get("general.name")) or source,
        is_known=family is not None,
        n_layers=n_layers,
        n_mtp_layers=n_mtp,
        context_tokens=meta.number("context_length", 0),
        n_vocab=weights.n_vocab or meta.number("vocab_size", 0),
        n_embd=meta.number("embedding_length", low=1),
        layers=tuple(
            _layer(i, weights, block, matrices[i] if i < n_layers else {})
            for i, block in enumerate(caches.blocks)
        ),
        bytes_by_role=weights.by_role,
        bytes_by_type=weights.by_type,
        experts=_experts(meta, weights, n_used),
        window_tokens=caches.window_tokens,
        has_vocabulary="tokenizer.ggml.tokens" in metadata,
        has_chat_template="tokenizer.chat_template" in metadata,
        notes=() if family else (_unknown_note(architecture),),
        v_padded_elements=caches.v_padded_elements,
        k_head_elements=caches.k_head_elements,
        v_head_elements=caches.v_head_elements,
        n_heads=caches.n_heads,
        working=_working(
            meta,
            weights,
            caches.blocks,
            weights.matrices[:n_layers],
            family,
            n_used,
            caches.n_heads,
        ),
        tied_output_bytes=0 if weights.has_output else weights.token_embedding_bytes,
        is_output_made_first=family is not None and family.has_output_first,
        can_roll_back_state=rule is not None and rule.can_roll_back,
        n_tensors=weights.n_tensors + (not weights.has_output),
        head=_head(meta, weights, caches, family, n_used, n_layers),
    )


def _layer(
    index: int, weights: _Weights, block: BlockCache, matrices: Mapping[str, Matrix]
) -> LayerSpec:
    return LayerSpec(
        index=index,
        bytes_by_role=weights.by_block[index],
        cache=block.cache,
        k_elements=block.k_elements,
        v_elements=block.v_elements,
        indexer_elements=block.indexer_elements,
        indexer_v_elements=block.indexer_v_elements,
        state_r_elements=block.state_r_elements,
        state_s_elements=block.state_s_elements,
        matrices=matrices,
    )


def _head(
    meta: Metadata,
    weights: _Weights,
    caches: Caches,
    family: Family | None,
    n_used: int,
    n_layers: int,
) -> DraftHead | None:
    """The MTP blocks, where the file has them and the engine can draft with them."""
    if not any(weights.by_block[n_layers:]) or meta.architecture not in DRAFTING_ARCHITECTURES:
        return None
    matrices = weights.matrices[n_layers:]
    blocks = zip(caches.head, matrices, strict=True)
    return DraftHead(
        tuple(_layer(i, weights, *block) for i, block in enumerate(blocks, start=n_layers)),
        _working(meta, weights, caches.head, matrices, family, n_used, caches.n_heads),
        is_unknown_to_some=meta.architecture not in FIRST_DRAFTING_ARCHITECTURES,
    )


def _weigh(meta: Metadata, tensors: Iterable[TensorFacts], n_all: int, n_layers: int) -> _Weights:
    weights = _Weights(
        by_block=[Counter() for _ in range(n_all)],
        matrices=[{} for _ in range(n_all)],
    )
    for tensor in tensors:
        place = place_tensor(tensor.name, n_layers)
        weights.n_tensors += place.role is not Role.MTP
        weights.by_role[place.role] += tensor.n_bytes
        weights.by_type[tensor.type.name] += tensor.n_bytes
        if place.block is None:
            _note_outside(weights, tensor)
            continue
        if place.block >= n_all:
            raise meta.problem(
                "block_count", f"is {n_all}, but there is a tensor {tensor.name[:80]!r}"
            )
        weights.by_block[place.block][place.role] += tensor.n_bytes
        weights.is_fused |= place.is_fused_expert
        weights.is_per_expert |= place.is_single_expert
        is_each = place.role is Role.ROUTED_EXPERTS
        if is_each:
            weights.expert_tensor_bytes.add(tensor.n_bytes)
        name = tensor.name.split(".", 2)[2]
        _note_matrix(weights.matrices[place.block], tensor, name)
    if not any(weights.by_block):
        raise FileProblem(
            f"{meta.source}: has no tensors of any block, only a vocabulary; get the file with "
            "the model's weights"
        )
    return weights


def _shapes(matrices: dict[str, Matrix]) -> BlockShapes:
    return {name: matrix.dims for name, matrix in matrices.items() if len(matrix.dims) > 1}


def _note_matrix(matrices: dict[str, Matrix], tensor: TensorFacts, name: str) -> None:
    """Experts that are each a tensor of their own count as one matrix, as the engine loads them."""
    short = short_name(name)
    if short:
        before = matrices[short].n_bytes if short in matrices else 0
        matrices[short] = Matrix(tensor.dims, before + tensor.n_bytes)


def _shared(matrices: list[dict[str, Matrix]]) -> list[dict[str, Matrix]]:
    """Equal ones as one object each, so that they are cheap to tell apart."""
    known: dict[tuple[tuple[str, Matrix], ...], dict[str, Matrix]] = {}
    return [known.setdefault(tuple(m.items()), m) for m in matrices]


def _note_outside(weights: _Weights, tensor: TensorFacts) -> None:
    if len(tensor.dims) > 1 and (short := short_name(tensor.name)):
        weights.shapes_outside[short] = tensor.dims
    if tensor.name == "token_embd.weight":
        weights.token_embedding_bytes = tensor.n_bytes
        weights.n_vocab = math.prod(tensor.dims[1:])
    elif tensor.name == "output.weight":
        weights.has_output = True


def _working(
    meta: Metadata,
    weights: _Weights,
    blocks: Sequence[BlockCache],
    matrices: Sequence[dict[str, Matrix]],
    family: Family | None,
    n_used: int,
    n_heads: int,
) -> Working:
    """Of the first blocks, as many as there are matrices of."""
    queries = {
        i: block.k_elements * n_heads
        for i, block in enumerate(blocks)
        if block.cache is CacheKind.LATENT
    }
    return working_of(
        [_shapes(block) for block in matrices],
        weights.shapes_outside,
        n_embd=meta.number("embedding_length", low=1),
        n_used=n_used,
        n_streams=meta.number("hyper_connection.count", 1),
        queries=queries,
        selection=_selection(meta, blocks, family),
    )


def _selection(meta: Metadata, blocks: Sequence[BlockCache], family: Family | None) -> Selection:
    """Of qwen4exp as its graph shows (build_qsa_sel in src/models/qwen4exp.cpp): a mask with room
    for the selected cells, its sum with the causal one, and a score of every fourth cell. The
    other indexers score every cell, and sort the scores; none of them has been compared.
    """
    if family is None or not any(block.indexer_elements for block in blocks):
        return Selection()
    score_bytes = 1 if family.indexer is Indexer.POOLED else 8
    n_selected = meta.number("attention.indexer.top_k", 0)
    return Selection(_SELECTION_ROWS * n_selected, masks=2, score_bytes=score_bytes)


def _experts_used(meta: Metadata, n_all: int) -> int:
    """Experts that a token uses in the block that uses most; 0 for a dense model."""
    count = meta.number("expert_count", 0, high=_MAX_EXPERTS)
    used = max(meta.per_block("expert_used_count", n_all, (0,)))
    if used > count or (count > 1 and used == 0):
        raise meta.problem("expert_used_count", f"is {used} of {count} experts")
    return used


def _experts(meta: Metadata, weights: _Weights, n_used: int) -> Experts | None:
    layers = tuple(i for i, roles in enumerate(weights.by_block) if Role.ROUTED_EXPERTS in roles)
    if not layers:
        return None
    largest, second = sorted((*weights.expert_tensor_bytes, 0), reverse=True)[:2]
    return Experts(
        count=meta.number("expert_count", low=1, high=_MAX_EXPERTS),
        used=n_used,
        layers=layers,
        n_bytes=weights.by_role[Role.ROUTED_EXPERTS],
        is_fused=weights.is_fused,
        is_per_expert_file=weights.is_per_expert,
        largest_tensor_bytes=largest,
        second_tensor_bytes=second,
    )


def _unknown_note(architecture: str) -> str:
    return (
        f"Architecture {architecture!r} is not in hotset's table: the cache is counted as if every "
        "block kept the whole context, which may be too much."
    )


def _text(value: object) -> str:
    return " ".join(value.split()) if isinstance(value, str) else ""
