"""The expert store in the commands: whether an engine takes it, and what it did for an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.cli.launching import Launchable
    from hotset.core.settings import ExpertStore
    from hotset.store.page import CountersPage

__all__ = ["ExpertWatch", "watched_store"]


class ExpertWatch:
    """What the store has done since the last look.

    Args:
        page: the counters; None where the engine runs without the store.
    """

    def __init__(self, page: CountersPage | None) -> None:
        self._page = page
        self._before = (0, 0, 0)

    def adopt(self) -> None:
        """To be called once the engine is up."""
        if self._page:
            self._page.adopt()
            self.line()

    def line(self) -> str:
        """`experts 91 % from RAM, 9 % from disk (1.1 GB read)`; empty without the store."""
        if self._page is None:
            return ""
        counters = self._page.read()
        now = (counters.num_requests, counters.num_hits, counters.read_bytes)
        requests, hits, read_bytes = (n - b for n, b in zip(now, self._before, strict=True))
        self._before = now
        if not requests:
            return ""
        share = hits / requests
        return (
            f"experts {share:.0%} from RAM, {1 - share:.0%} from disk"
            f" ({read_bytes / 1e9:.1f} GB read)"
        )

    def total(self) -> str:
        """What all requests since the start came to; empty without the store."""
        if self._page is None:
            return ""
        counters = self._page.read()
        misses = counters.num_requests - counters.num_hits
        return (
            f"experts asked for: {counters.num_requests:,} · {counters.num_hits:,} were in RAM,"
            f" {misses:,} were read from disk · memory for experts"
            f" {format_bytes(counters.budget_bytes)}"
        )


@contextmanager
def watched_store(
    ready: Launchable, trace: Path | None = None
) -> Iterator[tuple[ExpertStore | None, ExpertWatch]]:
    """The store's part of the settings, and the watch over it; (None, silent) without the store.

    Args:
        trace: a new file for the routing.

    Raises:
        EngineProblem: the native part is gone since the plan was made.
        MachineProblem: no file can be made for the counters.
        ConfigProblem: a path holds a character that separates paths in the store's settings;
            or a trace is wanted without the store, or in a file that is there or cannot be.
    """
    if ready.plugin is None:
        if trace is not None:
            raise ConfigProblem(
                f"--trace {trace}: only the expert store sees the routing; {_why_not(ready)}"
            )
        yield None, ExpertWatch(None)
        return
    from hotset.core.settings import ExpertStore
    from hotset.store.child import child_settings
    from hotset.store.locate import find_native
    from hotset.store.page import CountersPage

    try:
        page = CountersPage()
    except OSError as error:
        raise MachineProblem(
            f"no file can be made for the expert store's counters: {error.strerror};"
            " name a writable folder with TMPDIR"
        ) from error
    with page:
        ram_bytes = ready.plan.footprint.expert_cache_bytes
        child = child_settings(
            find_native(),
            ready.plugin,
            [path.absolute() for path in ready.files],
            ram_bytes=ram_bytes,
            counters=page.path,
            trace=trace.absolute() if trace else None,
        )
        if trace:
            _begin(trace)
        store = ExpertStore(
            plugin=ready.plugin,
            ram_bytes=ram_bytes,
            counters=page.path,
            environment=child.environment,
            server_environment=child.plugin_environment,
            server_arguments=tuple(child.arguments),
        )
        try:
            yield store, ExpertWatch(page)
        finally:
            if trace:
                _drop_empty(trace)


def _why_not(ready: Launchable) -> str:
    if not ready.spec.experts:
        return "this model has no experts"
    if not ready.plan.is_larger_than_ram:
        return "this model fits into RAM without it; a smaller --ram brings it in"
    return ready.plan.reasons[-1]  # why the engine does not take it


def _begin(trace: Path) -> None:
    """An empty file, before the engine starts: what stands in the way is said at once.

    Never over a file that is there: a slip of the hand must not cost a model.
    """
    try:
        trace.touch(mode=0o600, exist_ok=False)
    except FileExistsError:
        raise ConfigProblem(f"--trace {trace}: is there already; name a new file") from None
    except OSError as error:
        raise ConfigProblem(f"--trace {trace}: cannot be made: {error.strerror}") from error


def _drop_empty(trace: Path) -> None:
    """Nothing is left of a trace that the engine never came to."""
    with suppress(OSError):
        if not trace.stat().st_size:
            trace.unlink()
