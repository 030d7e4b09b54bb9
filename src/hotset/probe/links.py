"""How fast a card's PCI Express link can be: the narrowest hop between it and the processor.

Between a card and the processor there may be bridges, some of them on the card itself, where the
link always looks like x16. Each PCI device states what it can do and how many lanes were agreed on
(`max_link_speed`, `current_link_width`; kernel documentation, ABI/testing/sysfs-bus-pci). The
current speed is not asked: cards lower it while they have nothing to do.
"""

from __future__ import annotations

import itertools
import re
from pathlib import Path

from hotset.core.machine import Link
from hotset.probe.drm import BUS_ID
from hotset.probe.sysfs import read_text

__all__ = ["link_of"]

_GENERATIONS = {"2.5": 1, "5": 2, "5.0": 2, "8": 3, "8.0": 3, "16": 4, "16.0": 4}
_GENERATIONS |= {"32": 5, "32.0": 5, "64": 6, "64.0": 6}


def link_of(folder: Path, reachable_lanes: int = 0) -> Link | None:
    """The link of a PCI device, by its folder in /sys with links resolved; None if unknown.

    Args:
        reachable_lanes: what its driver says it will go up to, for a card that rests with fewer
            lanes than it works with.
    """
    path = [folder]
    while BUS_ID.fullmatch(path[-1].parent.name):
        path.append(path[-1].parent)
    pairs = list(itertools.pairwise(path)) or [(folder, folder)]
    hops = [_hop(lower, upper, reachable_lanes) for lower, upper in pairs]
    known = [hop for hop in hops if hop is not None]
    return min(known, key=lambda link: link.limit_bytes_s, default=None)


def _hop(lower: Path, upper: Path, reachable_lanes: int) -> Link | None:
    """The link between two neighbours; one of them may not say what it can do."""
    generations = [g for g in (_generation(lower), _generation(upper)) if g]
    widths = [w for w in (_width(lower, "current"), _width(upper, "current")) if w]
    possible = [w for w in (_width(lower, "max"), _width(upper, "max")) if w]
    if not generations or not widths:
        return None
    return Link(min(generations), max(min(widths), min([reachable_lanes, *possible])))


def _generation(folder: Path) -> int:
    """From ``16.0 GT/s PCIe``; 0 for "Unknown" and the like."""
    speed = (read_text(folder / "max_link_speed") or "").partition(" ")[0]
    return _GENERATIONS.get(speed, 0)


def _width(folder: Path, which: str) -> int:
    """Lanes; 0 where there is no link (0, or 255 from a device that has gone)."""
    text = read_text(folder / f"{which}_link_width") or ""
    return int(text) if re.fullmatch(r"1|2|4|8|16", text) else 0
