"""The expert store in the commands: whether an engine takes it, and what it did for an answer."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem, MachineProblem
from hotset.core.units import format_bytes

if TYPE_CHECKING:
    from pathlib import Path

    from hotset.cli.launching import Launchable
    from hotset.core.settings import ExpertStore
    from hotset.store.page import CountersPage

__all__ = ["ExpertWatch", "ExpertWork", "resized", "watched_store"]


@dataclass(frozen=True, slots=True)
class ExpertWork:
    """What the store did in a while.

    Attributes:
        num_tokens: that went through the experts, of prompts and answers; about, for a prompt,
            because its last layer computes only what is asked for.
    """

    num_requests: int = 0
    num_hits: int = 0
    read_bytes: int = 0
    num_tokens: float = 0.0

    def __sub__(self, before: ExpertWork) -> ExpertWork:
        return ExpertWork(
            self.num_requests - before.num_requests,
            self.num_hits - before.num_hits,
            self.read_bytes - before.read_bytes,
            self.num_tokens - before.num_tokens,
        )

    @property
    def hit_share(self) -> float:
        """0 to 1; 1 where nothing was asked for."""
        return self.num_hits / self.num_requests if self.num_requests else 1.0


class ExpertWatch:
    """What the store has done since the last line about it.

    Args:
        page: the counters; None where the engine runs without the store.
        num_used: experts that a token uses per layer.
        trace: where the routing is written to, if it is.
    """

    def __init__(
        self, page: CountersPage | None, num_used: int = 0, trace: Path | None = None
    ) -> None:
        self._page = page
        self._num_used = num_used
        self._trace = trace
        self._before = ExpertWork()
        self._trouble = ""

    @property
    def has_store(self) -> bool:
        return self._page is not None

    def hear(self, line: str) -> None:
        """A line of the engine's log, in which the store says if the trace breaks off."""
        _, mark, reason = line.partition(f"routing trace {self._trace}: ")
        if mark:
            self._trouble = reason

    def check_trace(self) -> None:
        """To be called once the engine has ended.

        Raises:
            MachineProblem: not all of the routing is in the trace.
        """
        if self._trouble:
            raise MachineProblem(f"routing trace {self._trace}: {self._trouble}")

    def adopt(self) -> None:
        """To be called once the engine is up."""
        if self._page:
            self._page.adopt()
            self.line()

    def work(self) -> ExpertWork:
        """Since the last line, and still to be told by the next; none without the store.

        Raises:
            EngineProblem: the counters cannot be read.
        """
        return self._read() - self._before

    def line(self) -> str:
        """`experts 91 % from RAM, 9 % from disk (1.1 GB read)`; empty without the store."""
        now = self._read()
        work, self._before = now - self._before, now
        if not work.num_requests:
            return ""
        share = work.hit_share
        return (
            f"experts {share:.0%} from RAM, {1 - share:.0%} from disk"
            f" ({work.read_bytes / 1e9:.1f} GB read)"
        )

    def _read(self) -> ExpertWork:
        if self._page is None:
            return ExpertWork()
        counters = self._page.read()
        rows_per_token = counters.num_matrices * self._num_used
        return ExpertWork(
            counters.num_requests,
            counters.num_hits,
            counters.read_bytes,
            counters.num_rows / rows_per_token if rows_per_token else 0.0,
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
            read_first=ready.needed,
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
            num_used = ready.spec.experts.used if ready.spec.experts else 0
            yield store, ExpertWatch(page, num_used, trace.absolute() if trace else None)
        finally:
            if trace:
                _drop_empty(trace)


def resized(store: ExpertStore, ram_bytes: int) -> ExpertStore:
    """The same with another budget, for a start that is planned anew."""
    from dataclasses import replace

    from hotset.store.child import RAM_BYTES

    environment = dict(store.environment) | {RAM_BYTES: str(ram_bytes)}
    return replace(store, ram_bytes=ram_bytes, environment=environment)


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
        raise ConfigProblem(f"{trace}: is there already; name a new file for the trace") from None
    except OSError as error:
        raise ConfigProblem(f"{trace}: the trace cannot be made: {error.strerror}") from error


def _drop_empty(trace: Path) -> None:
    """Nothing is left of a trace that the engine never came to."""
    with suppress(OSError):
        if not trace.stat().st_size:
            trace.unlink()
