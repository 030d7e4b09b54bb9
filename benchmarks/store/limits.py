"""A memory limit for a process and all its children, page cache included: a control group.

Version 1 (`memory.limit_in_bytes`) and version 2 (`memory.max`). Both charge a page of a file to
the group that first touched it, so a file must be out of the page cache before a run is counted.
"""

from __future__ import annotations

import contextlib
import os
import re
import signal
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import MachineProblem

__all__ = ["MemoryGroup", "Names", "find_parent", "memory_group", "remove_stale"]

_PREFIX = "hotset-bench-"
_REMOVAL_S = 10.0


@dataclass(frozen=True, slots=True)
class Names:
    """The files of one version of control groups."""

    limit: str
    swap: str
    counts_both: bool
    """Whether the swap limit is one for memory and swap together."""
    peak: str
    anonymous: str
    """In `memory.stat`, as is `cached`."""
    cached: str
    empty: str
    """Written to give back the page cache; none in version 2, which does so on removal."""


_V1 = Names(
    "memory.limit_in_bytes", "memory.memsw.limit_in_bytes", True,
    "memory.max_usage_in_bytes", "total_rss", "total_cache", "memory.force_empty",
)  # fmt: skip
_V2 = Names("memory.max", "memory.swap.max", False, "memory.peak", "anon", "file", "")


@dataclass(frozen=True, slots=True)
class MemoryGroup:
    """A group that lives as long as the block of `memory_group`."""

    path: Path
    names: Names

    def command(self, argv: Sequence[str]) -> list[str]:
        """`argv` as a process that enters the group before it becomes the program."""
        enter = 'echo $$ > "$0" && exec "$@"'
        return ["/bin/sh", "-c", enter, str(self.path / "cgroup.procs"), *argv]

    def peak_bytes(self) -> int:
        """Most memory at once, page cache included; 0 where the kernel does not say (v2 < 5.19)."""
        try:
            return int((self.path / self.names.peak).read_text())
        except OSError:
            return 0

    def anonymous_bytes(self) -> int:
        """Memory that belongs to no file, now."""
        return self._stat(self.names.anonymous)

    def cached_bytes(self) -> int:
        """Pages of files that the group brought in, now."""
        return self._stat(self.names.cached)

    def _stat(self, name: str) -> int:
        lines = (self.path / "memory.stat").read_text().splitlines()
        return int(dict(line.split() for line in lines)[name])


def find_parent(root: Path = Path("/")) -> tuple[Path, Names]:
    """The group under which limited groups can be made, and how its files are called.

    Our own group, so that limits set around us stay in force; with version 2 the one above it
    where ours may not have children with limits (a group with processes has none).

    Raises:
        MachineProblem: there is no memory controller that we may use.
    """
    base = root / "sys/fs/cgroup"
    try:
        lines = (root / "proc/self/cgroup").read_text().splitlines()
    except OSError:
        lines = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if "memory" in controllers.split(","):
            return _existing(base / "memory", name), _V1
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers:
            continue
        own = _existing(base, name)
        for parent in (own, own.parent):
            control = parent / "cgroup.subtree_control"
            if control.is_file() and "memory" in control.read_text().split():
                return parent, _V2
    raise _no_group(base, "no memory controller is handed down to this process")


def _existing(base: Path, name: str) -> Path:
    # In a container the name may be one that is seen from outside only.
    own = base / name.lstrip("/")
    return own if own.is_dir() else base


@contextmanager
def memory_group(limit_bytes: int | None, *, root: Path = Path("/")) -> Iterator[MemoryGroup]:
    """A new group, with a limit or only to measure. At the end its processes are killed and it is
    removed.

    Raises:
        MachineProblem: no group can be made, or it takes no limit; the reason and the remedy.
    """
    parent, names = find_parent(root)
    path = parent / f"{_PREFIX}{os.getpid()}-{time.monotonic_ns()}"
    try:
        path.mkdir()
    except OSError as error:
        raise _no_group(parent, error.strerror or str(error)) from error
    group = MemoryGroup(path, names)
    try:
        try:
            if limit_bytes is not None:
                _set_limit(group, limit_bytes)
        except OSError as error:
            raise _no_group(path, error.strerror or str(error)) from error
        yield group
    finally:
        _remove(group)


def _set_limit(group: MemoryGroup, limit_bytes: int) -> None:
    (group.path / group.names.limit).write_text(str(limit_bytes))
    swap = group.path / group.names.swap
    if swap.exists():  # not where the kernel does not count it
        swap.write_text(str(limit_bytes if group.names.counts_both else 0))


def remove_stale(root: Path = Path("/")) -> list[str]:
    """Remove groups of benchmarks that were killed; returns their names."""
    parent, names = find_parent(root)
    removed = []
    for path in sorted(parent.glob(f"{_PREFIX}*")):
        owner = re.fullmatch(rf"{_PREFIX}(\d+)-\d+", path.name)
        if owner and not (root / "proc" / owner[1]).exists():
            _remove(MemoryGroup(path, names))
            removed.append(path.name)
    return removed


def _remove(group: MemoryGroup) -> None:
    deadline = time.monotonic() + _REMOVAL_S
    while True:
        for line in (group.path / "cgroup.procs").read_text().split():
            with contextlib.suppress(ProcessLookupError):
                os.kill(int(line), signal.SIGKILL)
        if group.names.empty:
            with contextlib.suppress(OSError):
                (group.path / group.names.empty).write_text("0")
        try:
            group.path.rmdir()
            return
        except OSError:
            if time.monotonic() > deadline:
                raise
        time.sleep(0.05)


def _no_group(path: Path, reason: str) -> MachineProblem:
    return MachineProblem(
        f"{path}: cannot make a control group with a memory limit ({reason}); run as root, or as a "
        "service with delegation: systemd-run --scope -p Delegate=yes"
    )
