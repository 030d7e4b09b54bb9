"""What the memory table tries: full-size models as sparse files, real loads, places on a card."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path

from hotset.core.memory import CacheSettings
from hotset.core.settings import Settings
from hotset.core.tensortypes import tensor_type_named

__all__ = [
    "CARD_CASES",
    "DRY_CASES",
    "LOAD_CASES",
    "PROJECTOR_CASES",
    "SMALL_VOCABULARY",
    "Case",
    "quick_cases",
]

PAIRS = (
    ("qwen3-30b-a3b", "Q4_K_M"),
    ("qwen3-30b-a3b", "Q8_0"),
    ("qwen3.6-35b-a3b", "IQ4_XS"),
    ("qwen3.6-35b-a3b", "Q5_K_M"),
    ("qwen3.6-35b-a3b-mtp", "Q4_K_XL"),
    ("qwen3.5-122b-a10b", "IQ4_XS"),
    ("qwen3-next-80b-a3b", "Q4_K_M"),
    ("qwen3.8-flash-next", "Q4_K_M"),
    ("gpt-oss-20b", "MXFP4"),
    ("gpt-oss-120b", "MXFP4"),
    ("gemma-4-26b-a4b", "Q8_0"),
    ("glm-4.5-air", "Q4_K_M"),
    ("glm-4.5-air-mtp", "Q2_K"),
    ("glm-4.7-flash", "Q6_K"),
    ("mixtral-8x7b", "Q4_0"),
    ("olmoe-1b-7b", "Q8_0"),
    ("granite-3.1-3b-a800m", "Q4_K_M"),
    ("granite-3.1-1b-a400m", "Q8_0"),
)
"""Model and type mix of the dry starts, by the names of `hotset.gguf.synth.fullscale`."""

_CONTEXTS = (4096, 32768, 131072, 262144)
_KV_TYPES = ("f16", "q8_0", "q4_0")
_UBATCHES = (512, 2048)
# The engine (xllamacpp 2026.10.11549) aborts on these, dry or not: the nodes that a quantized cache
# adds to the graph of so small a model with so many experts in use outgrow its table.
_ABORTS = {("granite-3.1-1b-a400m", kv) for kv in ("q8_0", "q4_0")}
_TAKEN_EVERY = 3  # of all combinations, another third for each pair


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One start.

    Attributes:
        model: of the full-size models; a synthetic family; or "smollm2".
        mix: of a full-size model; empty for the others.
        context_tokens: of one slot.
        flash: "auto", "on" or "off".
        gpu_layers: units on the card; None for an engine on the CPU.
        host_experts: blocks from the first on whose experts stay in RAM.
        projector: "" without one, else "card" or "RAM".
        is_repacked: see `Settings`.
        draft_tokens: that an engine drafts at once with the model's MTP head; 0 if it does not.
    """

    model: str
    mix: str = ""
    context_tokens: int
    kv: str = "f16"
    ubatch_tokens: int = 512
    slots: int = 1
    flash: str = "auto"
    gpu_layers: int | None = None
    host_experts: int = 0
    projector: str = ""
    is_repacked: bool = False
    draft_tokens: int = 0

    def cache_settings(self) -> CacheSettings:
        kind = tensor_type_named(self.kv)
        return CacheSettings(
            context_tokens=self.context_tokens * self.slots,
            slots=self.slots,
            type_k=kind,
            type_v=kind,
            ubatch_tokens=self.ubatch_tokens,
            has_flash_attention=self.flash != "off",
            draft_tokens=self.draft_tokens,
        )

    def settings(self, file: Path, projector: Path | None = None) -> Settings:
        return Settings(
            model=file,
            alias="memory",
            context_tokens=self.context_tokens,
            slots=self.slots,
            kv_type_k=self.kv,
            kv_type_v=self.kv,
            ubatch_tokens=self.ubatch_tokens,
            flash_attention=self.flash,
            load_mode="none",
            is_repacked=self.is_repacked,
            is_warmed_up=False,
            gpu_layers=self.gpu_layers,
            cpu_moe_layers=self.host_experts or None,
            projector=projector,
            is_projector_on_card=self.projector == "card",
        )


CARD_MODELS = (
    ("qwen3-30b-a3b", "IQ4_XS", 48),
    ("qwen3.6-35b-a3b", "Q2_K", 40),
    ("glm-4.7-flash", "Q4_0", 47),
    ("olmoe-1b-7b", "Q4_0", 16),
    ("granite-3.1-3b-a800m", "Q4_K_M", 32),
)
"""Model, mix and blocks of the dry starts on a card. The software card takes no matrix of more than
128 MiB, which decides over the mixes."""

SMALL_MODELS = (("granite-3.1-1b-a400m", "Q8_0", 24), ("smollm2", "", 30))
"""These are tried with whole blocks in RAM only."""

SMALL_VOCABULARY = 32768
"""Of the models on the card, for the same reason."""


def _dry_cases() -> tuple[Case, ...]:
    cases = []
    for index, (model, mix) in enumerate(PAIRS):
        plain = Case(model=model, mix=mix, context_tokens=8192)
        combinations = list(product(_CONTEXTS, _KV_TYPES, _UBATCHES))
        cases += [
            replace(plain, context_tokens=context, kv=kv, ubatch_tokens=ubatch)
            for context, kv, ubatch in combinations[index % _TAKEN_EVERY :: _TAKEN_EVERY]
            if (model, kv) not in _ABORTS
        ]
        cases.append(replace(plain, flash="off"))
        if index % 2 == 0:
            cases.append(replace(plain, slots=4))
    return tuple(cases)


DRY_CASES = _dry_cases()

LOAD_CASES = (
    Case(model="smollm2", context_tokens=2048),
    Case(model="smollm2", context_tokens=8192, kv="q8_0", ubatch_tokens=2048, is_repacked=True),
    Case(model="smollm2", context_tokens=4096, slots=3),
    Case(model="smollm2", context_tokens=8192, flash="off"),
    Case(model="granite-3.1-1b-a400m", mix="Q8_0", context_tokens=32768),
    Case(model="granite-3.1-1b-a400m", mix="Q4_0", context_tokens=8192, ubatch_tokens=2048),
    Case(model="granite-3.1-3b-a800m", mix="Q4_K_M", context_tokens=16384, kv="q8_0"),
    Case(model="olmoe-1b-7b", mix="Q2_K", context_tokens=4096, is_repacked=True),
    Case(model="qwen3moe", context_tokens=8192, ubatch_tokens=2048),
    Case(model="qwen35moe", context_tokens=8192, slots=2),
    Case(model="gpt-oss", context_tokens=8192),
    Case(model="gemma4-moe", context_tokens=8192, kv="q8_0"),
    Case(model="deepseek2-mla", context_tokens=8192),
    Case(model="mixtral", context_tokens=8192, flash="off"),
)
"""Loads that an ordinary machine holds: the small real model, small models at their full size, and
tiny ones of other kinds."""


def _card_cases() -> tuple[Case, ...]:
    """Full-size models in dry starts on a card, in places from all of it to a few blocks."""
    cases = []
    for model, mix, n_blocks in CARD_MODELS:
        for context in (8192, 32768):
            plain = Case(model=model, mix=mix, context_tokens=context, gpu_layers=99)
            for hosted in (0, n_blocks // 3, n_blocks):
                cases.append(replace(plain, host_experts=hosted))
            cases.append(replace(plain, host_experts=n_blocks, ubatch_tokens=2048, kv="q8_0"))
        cases += _parted_cases(replace(plain, gpu_layers=n_blocks // 2))
    for model, mix, n_blocks in SMALL_MODELS:
        cases += _parted_cases(
            Case(model=model, mix=mix, context_tokens=32768, gpu_layers=n_blocks // 2)
        )
    return tuple(cases)


def _parted_cases(plain: Case) -> list[Case]:
    """Whole blocks in RAM."""
    kvs = ("f16",) if (plain.model, "q8_0") in _ABORTS else ("f16", "q8_0")
    return [
        replace(plain, context_tokens=context, kv=kv, ubatch_tokens=ubatch)
        for context, ubatch in ((8192, 2048), (32768, 512))
        for kv in kvs
    ] + [replace(plain, gpu_layers=1)]


CARD_CASES = _card_cases()

PROJECTOR_CASES = tuple(
    Case(model="qwen3", context_tokens=context, flash="off", gpu_layers=99, projector=side)
    for context, side in product((1024, 2048), ("card", "RAM"))
)
"""Loads of a tiny model with a projector. Flash attention is off, since Debian's llvmpipe crashes
in it."""


def quick_cases() -> tuple[Case, ...]:
    """A few dry starts of different kinds, of models whose header is read fast."""
    models = ("granite-3.1-3b-a800m", "mixtral-8x7b", "olmoe-1b-7b")
    return tuple(case for case in DRY_CASES if case.model in models)[::6]
