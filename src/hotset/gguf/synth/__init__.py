"""Synthetic GGUF files: tiny models of every family, realistic sizes, sparse full-scale files."""

from __future__ import annotations

from hotset.gguf.synth.families import FAMILIES
from hotset.gguf.synth.fullscale import MIXES, REAL_MODELS, write_fullscale
from hotset.gguf.synth.locality import Locality
from hotset.gguf.synth.models import write_sized, write_tiny
from hotset.gguf.synth.recipe import Dims, FamilyRecipe, Mix, ModelKind

__all__ = [
    "FAMILIES",
    "MIXES",
    "REAL_MODELS",
    "Dims",
    "FamilyRecipe",
    "Locality",
    "Mix",
    "ModelKind",
    "write_fullscale",
    "write_sized",
    "write_tiny",
]
