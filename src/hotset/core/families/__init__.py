"""Architecture families: what a GGUF file of each kind keeps in memory, and where it says so.

`table` has one row per family, `rules` the vocabulary of the rows, `caches` turns a row and a
file's metadata into what each block keeps, `build` puts a `ModelSpec` together.
"""

from __future__ import annotations

from hotset.core.families.build import TensorFacts, build_model_spec
from hotset.core.families.metadata import MAX_BLOCKS, Metadata
from hotset.core.families.rules import Family
from hotset.core.families.table import FAMILIES, family_named

__all__ = [
    "FAMILIES",
    "MAX_BLOCKS",
    "Family",
    "Metadata",
    "TensorFacts",
    "build_model_spec",
    "family_named",
]
