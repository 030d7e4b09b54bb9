"""From a real file to a `ModelSpec`: the adapter, on files that the synthetic writer makes."""

from __future__ import annotations

from pathlib import Path

import pytest

import gguf
from hotset.core.errors import FileProblem
from hotset.core.modelspec import CacheKind, Role
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import FAMILIES, write_tiny
from hotset.gguf.synth.recipe import ModelKind

MODELS = [name for name, recipe in FAMILIES.items() if recipe.kind is not ModelKind.PROJECTOR]


@pytest.mark.parametrize("name", MODELS)
def test_every_synthetic_family_is_known_and_every_byte_has_its_place(
    name: str, tmp_path: Path
) -> None:
    paths = write_tiny(name, tmp_path / "tiny.gguf")

    spec = model_spec(open_model(paths[0]))

    their_sizes = {t.name: int(t.n_bytes) for t in gguf.GGUFReader(paths[0]).tensors}
    in_blocks = sum(n for key, n in their_sizes.items() if key.startswith("blk."))
    assert spec.is_known
    assert spec.architecture == FAMILIES[name].architecture
    assert spec.n_bytes == sum(spec.bytes_by_type.values()) == sum(their_sizes.values())
    assert sum(layer.n_bytes for layer in spec.layers) == in_blocks
    assert all(layer.n_bytes > 0 for layer in spec.layers)
    assert spec.has_vocabulary


def test_a_shard_set_is_the_same_model_as_one_file(tmp_path: Path) -> None:
    (tmp_path / "set").mkdir()
    whole = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    shards = write_tiny("qwen3moe", tmp_path / "set" / "tiny.gguf", n_shards=3)

    assert len(shards) == 3
    assert model_spec(open_model(shards[1])) == model_spec(open_model(whole[0]))


def test_fused_experts_weigh_what_split_ones_do(tmp_path: Path) -> None:
    split, fused = (
        model_spec(
            open_model(write_tiny("gemma4-moe", tmp_path / f"{flag}.gguf", fused=flag)[0])
        ).experts
        for flag in (False, True)
    )

    assert split is not None
    assert fused is not None
    assert (split.is_fused, fused.is_fused) == (False, True)
    assert split.n_bytes == fused.n_bytes


def test_an_mtp_block_adds_to_the_file_and_to_nothing_else(tmp_path: Path) -> None:
    plain, with_mtp = (
        model_spec(open_model(write_tiny(name, tmp_path / f"{name}.gguf")[0]))
        for name in ("glm4moe", "glm4moe-mtp")
    )

    assert with_mtp.n_mtp_layers == 1
    assert with_mtp.trunk_bytes == plain.n_bytes < with_mtp.n_bytes
    assert with_mtp.bytes_by_role[Role.MTP] == with_mtp.layers[-1].n_bytes
    assert with_mtp.layers[-1].cache is CacheKind.NONE


def test_a_projector_is_no_model(tmp_path: Path) -> None:
    projector = next(n for n, r in FAMILIES.items() if r.kind is ModelKind.PROJECTOR)
    path = write_tiny(projector, tmp_path / "mmproj.gguf")[0]

    with pytest.raises(FileProblem, match=r"^mmproj\.gguf: clip\.block_count is missing"):
        model_spec(open_model(path))
