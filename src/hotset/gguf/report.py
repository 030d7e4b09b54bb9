"""What `hotset inspect` says of one model file, as plain facts: the screen and the JSON."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass

from hotset.core.errors import FileProblem
from hotset.core.modelspec import CacheKind, LayerSpec, ModelSpec
from hotset.gguf.kinds import Kind, kind_of, metadata_text
from hotset.gguf.library import find_projectors
from hotset.gguf.projectors import projector_width
from hotset.gguf.reader import ArrayInfo
from hotset.gguf.shards import ModelFile
from hotset.gguf.spec import model_spec

__all__ = [
    "BlockGroup",
    "CacheFacts",
    "ExpertFacts",
    "FileFacts",
    "Report",
    "make_report",
]

_F16_BYTES = 2
_F32_BYTES = 4


@dataclass(frozen=True, slots=True)
class FileFacts:
    """One file of the set."""

    path: str
    file_bytes: int
    gguf_version: int


@dataclass(frozen=True, slots=True)
class BlockGroup:
    """Blocks with the same bytes in the same roles and the same cache; `n_bytes` is of one."""

    blocks: tuple[int, ...]
    cache: str
    n_bytes: int
    bytes_by_role: Mapping[str, int]


@dataclass(frozen=True, slots=True)
class CacheFacts:
    """The KV cache of all blocks of one kind, with f16 elements.

    Attributes:
        kind: as `CacheKind` names it.
        blocks: how many blocks have it, MTP blocks left out.
        f16_bytes_per_token: all these blocks together.
        limit_tokens: how many tokens it keeps at most; 0 for the whole context.
    """

    kind: str
    blocks: int
    f16_bytes_per_token: int
    limit_tokens: int


@dataclass(frozen=True, slots=True)
class ExpertFacts:
    """The routed experts; `n_bytes` is of all, `bytes_per_token` what one token reads."""

    count: int
    used: int
    blocks: int
    n_bytes: int
    bytes_per_token: int


@dataclass(frozen=True, slots=True)
class Report:
    """One model file or shard set. The fields are the keys of the JSON, units in their names.

    Fields that only a model with blocks has are empty for the other kinds.
    """

    path: str
    kind: str
    name: str
    architecture: str
    is_known_architecture: bool
    files: tuple[FileFacts, ...]
    tensors: int
    tensor_bytes: int
    bytes_by_type: Mapping[str, int]
    bytes_by_role: Mapping[str, int]
    blocks: int
    mtp_blocks: int
    block_groups: tuple[BlockGroup, ...]
    experts: ExpertFacts | None
    context_tokens: int
    embedding_elements: int
    vocabulary_tokens: int
    has_tokenizer: bool
    has_chat_template: bool
    kv_cache: tuple[CacheFacts, ...]
    recurrent_state_bytes_per_sequence: int
    projector_output_elements: int
    projectors: tuple[str, ...]
    notes: tuple[str, ...]
    problems: tuple[str, ...]


def make_report(model: ModelFile) -> Report:
    """Collect the facts. What makes the file unusable is in `problems`, not raised."""
    problems: list[str] = []
    kind: Kind | None = None
    spec: ModelSpec | None = None
    try:
        kind = kind_of(model)
        model.check_computable()
    except FileProblem as problem:
        problems.append(problem.message)
    if kind is not None and kind.is_model:
        try:
            spec = model_spec(model)
        except FileProblem as problem:
            problems.append(problem.message)
    metadata = model.metadata
    tokens = metadata.get("tokenizer.ggml.tokens")
    tensors = model.tensors
    by_type: Counter[str] = Counter()
    for tensor in tensors:
        by_type[tensor.type.name] += tensor.n_bytes
    return Report(
        path=str(model.paths[0]),
        kind=kind.value if kind else "none",
        name=(spec.name if spec else metadata_text(metadata, "general.name"))
        or model.paths[0].stem,
        architecture=metadata_text(metadata, "general.architecture"),
        is_known_architecture=spec is not None and spec.is_known,
        files=tuple(FileFacts(str(h.path), h.file_bytes, h.version) for h in model.headers),
        tensors=len(tensors),
        tensor_bytes=sum(by_type.values()),
        bytes_by_type=dict(by_type.most_common()),
        bytes_by_role={role.value: n for role, n in spec.bytes_by_role.items()} if spec else {},
        blocks=spec.n_layers if spec else 0,
        mtp_blocks=spec.n_mtp_layers if spec else 0,
        block_groups=_block_groups(spec.layers) if spec else (),
        experts=_experts(spec) if spec else None,
        context_tokens=spec.context_tokens if spec else 0,
        embedding_elements=spec.n_embd if spec else 0,
        vocabulary_tokens=tokens.count if isinstance(tokens, ArrayInfo) else 0,
        has_tokenizer="tokenizer.ggml.model" in metadata,
        has_chat_template="tokenizer.chat_template" in metadata,
        kv_cache=_kv_cache(spec) if spec else (),
        recurrent_state_bytes_per_sequence=_state_bytes(spec) if spec else 0,
        projector_output_elements=projector_width(model) if kind is Kind.PROJECTOR else 0,
        projectors=_projectors(model) if kind is Kind.CHAT else (),
        notes=spec.notes if spec else (),
        problems=tuple(problems),
    )


def _block_groups(layers: tuple[LayerSpec, ...]) -> tuple[BlockGroup, ...]:
    """Blocks that are alike, wherever they stand; in the order of their first.

    A block without a byte is left out: it is not in the file (an MTP head by itself).
    """
    groups: dict[tuple[object, ...], list[LayerSpec]] = {}
    for layer in layers:
        if not layer.n_bytes:
            continue
        key = (layer.cache, *sorted(layer.bytes_by_role.items()))
        groups.setdefault(key, []).append(layer)
    return tuple(
        BlockGroup(
            blocks=tuple(layer.index for layer in alike),
            cache=alike[0].cache.value,
            n_bytes=alike[0].n_bytes,
            bytes_by_role={role.value: n for role, n in alike[0].bytes_by_role.items()},
        )
        for alike in groups.values()
    )


def _experts(spec: ModelSpec) -> ExpertFacts | None:
    experts = spec.experts
    if experts is None:
        return None
    return ExpertFacts(
        count=experts.count,
        used=experts.used,
        blocks=len(experts.layers),
        n_bytes=experts.n_bytes,
        bytes_per_token=experts.bytes_per_token,
    )


def _kv_cache(spec: ModelSpec) -> tuple[CacheFacts, ...]:
    """One entry per kind that grows with the context; MTP blocks keep none of their own
    until they are used, and are left out."""
    blocks: Counter[CacheKind] = Counter()
    elements: Counter[CacheKind] = Counter()
    for layer in spec.layers[: spec.n_layers]:
        grows = layer.k_elements + layer.v_elements + layer.indexer_elements
        if grows:
            blocks[layer.cache] += 1
            elements[layer.cache] += grows
    return tuple(
        CacheFacts(
            kind=kind.value,
            blocks=blocks[kind],
            f16_bytes_per_token=_F16_BYTES * elements[kind],
            limit_tokens=spec.window_tokens if kind is CacheKind.WINDOW else 0,
        )
        for kind in CacheKind
        if kind in blocks
    )


def _state_bytes(spec: ModelSpec) -> int:
    """Recurrent state of one sequence, F32, all blocks."""
    return _F32_BYTES * sum(
        layer.state_r_elements + layer.state_s_elements for layer in spec.layers[: spec.n_layers]
    )


def _projectors(model: ModelFile) -> tuple[str, ...]:
    return tuple(str(projector.paths[0]) for projector in find_projectors(model))
