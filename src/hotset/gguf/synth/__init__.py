"""Synthetic GGUF files: tiny models of every family, realistic sizes, sparse full-scale files."""

from __future__ import annotations

from hotset.gguf.synth.families import FAMILIES
from hotset.gguf.synth.models import write_sized, write_tiny
from hotset.gguf.synth.recipe import Dims, FamilyRecipe, Mix

__all__ = ["FAMILIES", "Dims", "FamilyRecipe", "Mix", "write_sized", "write_tiny"]
