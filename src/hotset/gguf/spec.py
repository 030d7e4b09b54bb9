"""A GGUF model on disk as a `ModelSpec`."""

from __future__ import annotations

from hotset.core.families import build_model_spec
from hotset.core.modelspec import ModelSpec
from hotset.gguf.shards import ModelFile
from hotset.gguf.window import printable

__all__ = ["model_spec"]


def model_spec(model: ModelFile) -> ModelSpec:
    """Work out what `model` is from its metadata and tensor table, all shards together.

    Raises:
        FileProblem: when metadata is missing, impossible or at odds with the tensors, or when
            the file is no model that an engine runs (a projector, an adapter, a vocabulary).
    """
    return build_model_spec(model.metadata, model.tensors, source=printable(model.paths[0].name))
