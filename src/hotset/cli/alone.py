"""One model behind the gateway: loaded before anybody asks, and never made to leave."""

from __future__ import annotations

from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.cli.demo_models import DEMO_NAMES
from hotset.cli.experts import ExpertWatch, watched_store
from hotset.cli.fleet import ServedEngine
from hotset.cli.launching import Launchable, launch, prepare
from hotset.cli.meter import ServiceMeter
from hotset.cli.settings import settings_of
from hotset.core.settings import Settings, validate_settings
from hotset.gateway.ledger import Bytes
from hotset.gateway.names import Name, given_names
from hotset.gateway.offers import Claims, Offer, StartWatch
from hotset.gateway.pool import Capability

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Sequence

    from hotset.core.plan import Wishes
    from hotset.engine.watch import Progress

__all__ = ["Alone"]

_RAM = "RAM"


@dataclass(frozen=True, slots=True)
class _SetUp:
    """What one engine is started with, and what has to be given back after it."""

    ready: Launchable
    settings: Settings
    experts: ExpertWatch
    resources: ExitStack


class Alone:
    """The model of `hotset serve FILE`; starts its engine (see `hotset.gateway.offers.Starter`).

    The first engine is set up at once, so that what is wrong is known before anything is printed.
    One that dies is planned and started anew for the next request.

    Args:
        trace: a new file for the routing, of the first engine only.

    Attributes:
        on_progress: told of a start's progress, on another thread.
        start_s: how long the last start took.

    Raises:
        HotsetError: the model cannot be served like this.
    """

    def __init__(
        self,
        model: str,
        wishes: Wishes,
        engine: str,
        *,
        chat_template: Path | None = None,
        trace: Path | None = None,
    ) -> None:
        self._model, self._wishes, self._engine = model, wishes, engine
        self._template = chat_template
        self._next: _SetUp | None = self._set_up(trace)
        first = self._next
        self.ready, self.settings = first.ready, first.settings
        self.on_progress: Callable[[Progress], None] = lambda _: None
        self.start_s = 0.0
        self._experts = first.experts
        self._meter = ServiceMeter(first.experts)

    @property
    def id(self) -> str:
        return self.settings.alias

    @property
    def has_store(self) -> bool:
        return self._experts.has_store

    def meter_line(self) -> str:
        """What the experts do now; empty where nothing was asked for lately."""
        return self._meter.line()

    def experts_line(self) -> str:
        """What they have done since the last such line; empty without the store."""
        return self._experts.line()

    def offer(self) -> Offer:
        ready = self.ready
        can = {Capability.EMBEDDING if ready.is_embedding else Capability.CHAT}
        if ready.projector:
            can.add(Capability.VISION)
        return Offer(
            name=Name(self.id, self._aliases()),
            need=self.room(()),
            capabilities=frozenset(can),
            context_tokens=ready.plan.context_tokens,
            n_bytes=sum(path.stat().st_size for path in ready.files),
            created_s=int(ready.path.stat().st_mtime),
            slots=ready.plan.slots,
            is_pinned=True,
        )

    def _aliases(self) -> tuple[str, ...]:
        """As in a folder: a request may use any name, but `hotset logs` needs a known one."""
        own_name = self._model if self._model in DEMO_NAMES else self.ready.spec.name
        return given_names([(self.ready.path, own_name)])[0].aliases

    def room(self, pids: Sequence[int]) -> Bytes:
        """What its plan takes: the plan has looked for what is free, and there is nobody else."""
        del pids
        return {_RAM: self.ready.plan.footprint.total_bytes}

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        """Nothing: there is no other model to wait for."""
        del model_id, claims, cancel
        return ""

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> ServedEngine:
        del model_id
        own, self._next = self._next or self._set_up(None), None

        def on_progress(progress: Progress) -> None:
            watch.on_fraction(progress.fraction)
            self.on_progress(progress)

        try:
            running = launch(
                own.ready,
                own.settings,
                on_progress,
                on_line=watch.on_line,
                on_pid=watch.on_pid,
                cancel=watch.cancel,
                tells_spills=True,
            )
            own.resources.callback(running.stop, grace_s=0)
            own.experts.adopt()
        except BaseException:
            own.resources.close()
            raise
        self._experts, self._meter = own.experts, ServiceMeter(own.experts)
        self.start_s = running.loaded.start_s
        return ServedEngine(running, bytes_by_device, own.experts, own.resources, lambda: None)

    def _set_up(self, trace: Path | None) -> _SetUp:
        ready = prepare(self._model, self._wishes, self._engine, may_embed=True, has_vision=True)
        resources = ExitStack()
        try:
            store, experts = resources.enter_context(watched_store(ready, trace))
            settings = settings_of(ready, chat_template=self._template, store=store)
            validate_settings(settings)
        except BaseException:
            resources.close()
            raise
        return _SetUp(ready, settings, experts, resources)

    def close(self) -> None:
        """Give back what was set up and never started."""
        if self._next:
            self._next.resources.close()
