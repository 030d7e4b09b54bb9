"""Writes synthetic models: tiny ones for tests, realistic sizes for benchmarks."""

from __future__ import annotations

import shutil
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.tensortypes import tensor_type_named
from hotset.core.units import MIB, format_bytes
from hotset.gguf.synth.families import family_named
from hotset.gguf.synth.filling import Filler
from hotset.gguf.synth.locality import Locality, with_locality
from hotset.gguf.synth.recipe import Dims, FamilyRecipe, Mix, ModelKind
from hotset.gguf.synth.vocab import make_vocabulary
from hotset.gguf.synth.writer import Value, write_shards

__all__ = ["write_sized", "write_tiny"]

_SPARE_BYTES = 256 * MIB


def write_tiny(
    family: str,
    path: Path,
    *,
    experts_type: str | None = None,
    down_type: str | None = None,
    seed: int = 0,
    n_shards: int = 1,
    fused: bool = False,
    locality: Locality | None = None,
    **sizes: int,
) -> tuple[Path, ...]:
    """Write a model of a few MB that the engine loads and answers with.

    Args:
        family: a name in `FAMILIES`.
        path: where; with several shards, the stem of their names.
        experts_type: of gate and up experts; None for Q4_0.
        down_type: of down experts; None for the same as gate and up.
        seed: another seed, another model of the same shape.
        n_shards: files.
        fused: gate and up experts as one tensor.
        locality: how concentrated the routing is; None for a model without a pattern.
        sizes: fields of `Dims` that differ from the family's tiny model (`n_layers=2`).

    Returns:
        The files, first shard first.

    Raises:
        ConfigProblem: an unknown family, type or size; expert types or a locality in a family
            that has no use for them; `fused` where the engine takes only split gate and up.
        MachineProblem: the file cannot be written.
    """
    recipe = family_named(family)
    dims = replace(recipe.tiny, is_fused=fused, **_known_sizes(sizes))
    if (experts_type or down_type) and not recipe.has_experts:
        raise ConfigProblem(f"family '{family}': it has no experts to give a type; leave it out")
    experts_type = experts_type or Mix().experts
    mix = Mix(experts=_type(experts_type), down=_type(down_type or experts_type))
    return _write(recipe, path, dims, mix, locality, seed=seed, n_shards=n_shards)


def write_sized(
    family: str,
    path: Path,
    dims: Dims,
    mix: Mix,
    *,
    seed: int = 0,
    n_shards: int = 1,
    locality: Locality | None = None,
) -> tuple[Path, ...]:
    """Write a model of any size, at the speed of the disk.

    Raises:
        ConfigProblem: as `write_tiny`.
        MachineProblem: when the disk has no room for it, before anything is written.
    """
    recipe = family_named(family)
    return _write(recipe, path, dims, mix, locality, seed=seed, n_shards=n_shards)


def _write(
    recipe: FamilyRecipe,
    path: Path,
    dims: Dims,
    mix: Mix,
    locality: Locality | None,
    *,
    seed: int,
    n_shards: int,
) -> tuple[Path, ...]:
    _check(recipe, dims)
    vocabulary = make_vocabulary(dims.n_vocab)
    plan = recipe.plan(dims, mix)
    if locality is not None:
        plan = with_locality(plan, locality)
    filler = Filler(seed, vocabulary.silent)
    entries = [filler.entry(tensor) for tensor in plan.tensors]
    _require_room(path, sum(entry.n_bytes for entry in entries))
    metadata: dict[str, Value] = {
        "general.architecture": recipe.architecture,
        "general.name": f"synthetic {recipe.name}",
        **plan.metadata,
    }
    if recipe.kind is not ModelKind.PROJECTOR:
        metadata |= vocabulary.metadata(with_template=recipe.kind is ModelKind.CHAT)
    return write_shards(path, metadata, entries, n_shards=n_shards)


def _require_room(path: Path, n_bytes: int) -> None:
    parent = path.absolute().parent
    if not parent.is_dir():
        raise MachineProblem(f"{parent}: no such directory; create it or choose another place")
    free = shutil.disk_usage(parent).free
    if n_bytes + _SPARE_BYTES > free:
        raise MachineProblem(
            f"{path}: the model takes {format_bytes(n_bytes)} and {format_bytes(free)} are free "
            "on that disk; make room or write a smaller one"
        )


def _known_sizes(sizes: dict[str, int]) -> dict[str, Any]:
    known = {f.name for f in fields(Dims) if f.type in ("int", "float", "bool")} - {"is_fused"}
    for name in sizes:
        if name not in known:
            raise ConfigProblem(f"size '{name}': unknown; known are {', '.join(sorted(known))}")
    return sizes


def _check(recipe: FamilyRecipe, dims: Dims) -> None:
    if dims.is_fused and not recipe.can_fuse:
        raise ConfigProblem(
            f"family '{recipe.name}': the engine knows no fused gate and up experts there; "
            "leave them split"
        )
    for name in ("n_layers", "n_embd", "n_head", "head_dim", "n_ff", "n_used"):
        if (size := getattr(dims, name)) < 1:
            raise ConfigProblem(f"{name} {size}: there is no model without; choose at least 1")
    if dims.n_used > dims.n_experts:
        raise ConfigProblem(
            f"n_used {dims.n_used}: more than the {dims.n_experts} experts there are; "
            "choose at most as many"
        )


def _type(name: str) -> str:
    try:
        return tensor_type_named(name).name
    except KeyError:
        raise ConfigProblem(f"tensor type '{name}': unknown to ggml") from None
