"""All synthetic families, by name."""

from __future__ import annotations

from collections.abc import Mapping

from hotset.core.errors import ConfigProblem
from hotset.gguf.synth import deepseeks, embeddings, gemmas, hybrids, llamas, qwen4, qwens
from hotset.gguf.synth.recipe import FamilyRecipe

__all__ = ["FAMILIES", "family_named"]

FAMILIES: Mapping[str, FamilyRecipe] = {
    recipe.name: recipe
    for recipe in (
        *llamas.RECIPES,
        *qwens.RECIPES,
        *qwen4.RECIPES,
        *gemmas.RECIPES,
        *deepseeks.RECIPES,
        *hybrids.RECIPES,
        *embeddings.RECIPES,
    )
}


def family_named(name: str) -> FamilyRecipe:
    """The recipe called `name`.

    Raises:
        ConfigProblem: for an unknown name, listing the known ones.
    """
    if name not in FAMILIES:
        raise ConfigProblem(f"family '{name}': unknown; known are {', '.join(FAMILIES)}")
    return FAMILIES[name]
