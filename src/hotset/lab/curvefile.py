"""The file in which a model's recorded hit rates are kept for its plans."""

from __future__ import annotations

import hashlib
import json
import os
import re
from pathlib import Path

from hotset.core.errors import MachineProblem
from hotset.core.hits import HitCurve
from hotset.core.modelspec import ModelSpec

__all__ = ["curve_name", "load_curve", "save_curve"]

_VERSION = 1
_MOST_BYTES = 1 << 16


def curve_name(spec: ModelSpec) -> str:
    """The file's name. Quantizations of one model share it: they route alike."""
    experts = spec.experts
    identity = [spec.architecture, spec.name, spec.n_layers]
    identity += [experts.count, experts.used, len(experts.layers)] if experts else []
    digest = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:12]
    readable = re.sub(r"[^a-z0-9.]+", "-", spec.name.lower()).strip("-.")[:60]
    return f"{readable or 'model'}-{digest}.json"


def save_curve(file: Path, curve: HitCurve) -> None:
    """Write the file, whole or not at all.

    Raises:
        MachineProblem: it cannot be written.
    """
    data = {"version": _VERSION, "source": curve.source, "points": curve.points}
    part = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        try:
            part.write_text(json.dumps(data) + "\n", encoding="utf-8")
            part.replace(file)
        finally:
            part.unlink(missing_ok=True)
    except OSError as error:
        raise MachineProblem(f"{file}: cannot be written: {error.strerror}") from error


def load_curve(file: Path) -> tuple[HitCurve | None, str]:
    """What is kept, and "" or one line about a file that cannot be used.

    A file that is not there is nothing to speak of.
    """
    try:
        with file.open("rb") as opened:
            content = opened.read(_MOST_BYTES)
    except FileNotFoundError:
        return None, ""
    except OSError as error:
        return None, _complaint(file, f"it cannot be read: {error.strerror}")
    try:
        data = json.loads(content)
        if data["version"] != _VERSION:
            raise ValueError(f"its version is not {_VERSION}")
        points = tuple((float(share), float(hits)) for share, hits in data["points"])
        return HitCurve(points, str(data["source"])), ""
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        return None, _complaint(file, " ".join(str(error).split())[:120])


def _complaint(file: Path, why: str) -> str:
    return (
        f"{file}: no hit rates of hotset ({why}); the plan takes a prior until"
        " `hotset simulate --plan` writes it again"
    )
