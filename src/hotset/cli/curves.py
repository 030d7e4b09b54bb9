"""Hit rates of a model's own routing: kept by `hotset simulate --plan`, used by every plan."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.core.modelspec import ModelSpec
    from hotset.lab.routing import Routing

__all__ = ["keep_curve", "with_recorded_hits"]

# Of the experts used: the last layer may compute fewer tokens than the others.
_USED_TOLERANCE = 0.1


def with_recorded_hits(spec: ModelSpec) -> ModelSpec:
    """The same model with the hit rates that are kept of it; a note says so if they are damaged."""
    if spec.experts is None:
        return spec
    from hotset.cli.screen import note
    from hotset.lab.curvefile import load_curve

    curve, complaint = load_curve(_file(spec))
    if complaint:
        note(f"note: {complaint}")
    return replace(spec, recorded_hits=curve)


def keep_curve(model: str, routings: Sequence[Routing]) -> None:
    """Work out the hit rates of MODEL from recordings of it, and keep them for its plans.

    Raises:
        FileProblem: MODEL cannot be read.
        ConfigProblem: the recordings are not of this model.
        MachineProblem: they cannot be kept.
    """
    from hotset.cli.screen import note
    from hotset.cli.subjects import read_subject
    from hotset.lab.curvefile import save_curve
    from hotset.lab.hitcurve import recorded_curve

    spec = read_subject(model, has_vision=False).spec
    _check(spec, routings)
    curve = recorded_curve(routings)
    file = _file(spec)
    save_curve(file, curve)
    prior = replace(spec, recorded_hits=None).hits
    told = ", ".join(
        f"{share:.0%} hold {curve.rate(share):.0%} ({prior.rate(share):.0%})"
        for share in (0.1, 0.2, 0.4, 0.6)
    )
    note(f"kept for plans of {spec.name}: of its experts {told}; in brackets what was assumed")
    note(f"in {file}")


def _check(spec: ModelSpec, routings: Sequence[Routing]) -> None:
    from hotset.cli.screen import note

    if spec.experts is None:
        raise ConfigProblem(f"--plan: {spec.name} has no experts; name the model of the recordings")
    wanted = (len(spec.experts.layers), spec.experts.count)
    for routing in routings:
        sizes = {layer.num_experts for layer in routing.layers}
        if (len(routing.layers), *sizes) != wanted:
            raise ConfigProblem(
                f"--plan: {routing.name} has {len(routing.layers)} layers with"
                f" {'/'.join(map(str, sorted(sizes)))} experts, and {spec.name} has"
                f" {wanted[0]} with {wanted[1]}; name the model of the recordings"
            )
        used = routing.cycle_units / len(routing.layers)
        if used and abs(used - spec.experts.used) > _USED_TOLERANCE * spec.experts.used:
            note(
                f"note: {routing.name} uses {used:.1f} experts per token and layer, the model"
                f" {spec.experts.used}: it hits more, or less, than the model will"
            )


def _file(spec: ModelSpec) -> Path:
    from hotset.cli.machine_options import measured_file
    from hotset.lab.curvefile import curve_name

    return measured_file(os.environ).parent / "hits" / curve_name(spec)
