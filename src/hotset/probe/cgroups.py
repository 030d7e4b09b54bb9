"""The control groups of this process, for one controller: where its limits can be read.

Both versions: v2 has one hierarchy at /sys/fs/cgroup, v1 one per controller below it (kernel
documentation, admin-guide/cgroup-v2.rst and cgroup-v1). A limit may stand at any level between the
group of this process and the root of the hierarchy.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from hotset.probe.sysfs import read_text

__all__ = ["Group", "groups"]


@dataclass(frozen=True, slots=True)
class Group:
    """A group's folder, and 1 or 2 for the version of its hierarchy."""

    folder: Path
    version: int


def groups(controller: str, root: Path = Path("/")) -> Iterator[Group]:
    """From the group of this process upwards, in both hierarchies where there are both."""
    for line in (read_text(root / "proc/self/cgroup") or "").splitlines():
        _, _, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if not colon:
            continue
        if controllers == "":
            base, version = root / "sys/fs/cgroup", 2
        elif controller in controllers.split(","):
            base, version = root / "sys/fs/cgroup" / controller, 1
        else:
            continue
        here = PurePosixPath(path.lstrip("/"))
        # In a container the path is the host's and may not exist below the mounted hierarchy:
        # then only its upper part, down to the root of what is mounted, can be read.
        for folder in [here, *here.parents]:
            yield Group(base / folder, version)
