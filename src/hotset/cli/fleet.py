"""The models behind one gateway: found in folders or named in a file, planned, and started."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from hotset.cli.cards import Cards
from hotset.cli.conversations import Conversations, state_name
from hotset.cli.demo_models import DEMO_NAMES
from hotset.cli.experts import ExpertWatch, watched_store
from hotset.cli.launching import launch, prepare
from hotset.cli.machines import engine_called, machine_now
from hotset.cli.readahead import Piece, read_ahead
from hotset.cli.settings import settings_of
from hotset.cli.subjects import expanded, resolve_model
from hotset.core.errors import ConfigProblem, EngineProblem, FileProblem, MachineProblem
from hotset.core.units import MIB, format_bytes
from hotset.gateway.ledger import Bytes
from hotset.gateway.names import Name, given_names
from hotset.gateway.offers import Claims, Offer, StartWatch
from hotset.gateway.pool import Capability
from hotset.gguf.kinds import Kind, kind_of, metadata_text
from hotset.gguf.library import Entry, find_projectors, list_models
from hotset.gguf.shards import open_model
from hotset.probe.memory import memory

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.plan import Wishes
    from hotset.core.settings import Secret
    from hotset.engine.running import Running
    from hotset.engine.watch import Progress
    from hotset.gateway.config import Config

__all__ = ["Fleet", "Member", "describe_fleet", "fleet_of_config", "fleet_of_folders"]

_CAPABILITIES = {
    Kind.CHAT: frozenset({Capability.CHAT}),
    Kind.EMBEDDING: frozenset({Capability.EMBEDDING}),
}
_RAM = "RAM"
# Beside other models a prompt cache gets no more than this; alone it gets what the plan gives it.
_SHARED_PROMPT_CACHE_BYTES = 1024 * MIB
# Not to be filled by what is read ahead: other programs want something now and then.
_KEPT_FREE_BYTES = 512 * MIB


@dataclass(frozen=True, slots=True)
class Member:
    """One model: its file, and what is wished for it.

    Attributes:
        needed: what its engine will read before it answers; nothing where no plan could be made.
    """

    offer: Offer
    path: Path
    wishes: Wishes
    needed: tuple[Piece, ...] = ()


@dataclass(frozen=True, slots=True)
class Fleet:
    """All models of a gateway; starts their engines (see `hotset.gateway.offers.Starter`).

    Attributes:
        ignored: files that are not served, with the reason.
        ram_bytes: for all engines together; None for what is free.
        cards: what there is of graphics cards for all engines together.
        conversations: where they are kept while a model is away; None keeps none.
    """

    members: dict[str, Member]
    ignored: tuple[str, ...]
    engine: str
    ram_bytes: int | None
    cards: Cards
    conversations: Conversations | None = None

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> ServedEngine:
        member = self.members[model_id]
        granted = bytes_by_device[_RAM]
        wishes = replace(member.wishes, ram_bytes=granted)
        ready = _prepared(member.path, wishes, self.engine, bytes_by_device)
        ready = _with_prompt_cache(ready, granted)
        on_cards = self.cards.taken(ready.plan.footprint.devices)

        def on_progress(progress: Progress) -> None:
            watch.on_fraction(progress.fraction)

        stack = ExitStack()
        self.cards.begin(model_id, on_cards)
        stack.callback(self.cards.end, model_id)
        try:
            store, experts = stack.enter_context(watched_store(ready))
            settings = replace(
                settings_of(ready, store=store),
                alias=model_id,
                slot_folder=None if ready.is_embedding else self._slot_folder(),
            )
            running = launch(
                ready,
                settings,
                on_progress,
                on_line=watch.on_line,
                on_pid=watch.on_pid,
                cancel=watch.cancel,
                tells_spills=True,
            )
            stack.callback(running.stop, grace_s=0)
            self.cards.settle(model_id)
            experts.adopt()
            save = self._kept(ready, running, watch)
        except BaseException:
            stack.close()
            raise
        held = {_RAM: min(granted, ready.plan.footprint.total_bytes)} | on_cards
        return ServedEngine(running, held, experts, stack, save)

    def _slot_folder(self) -> Path | None:
        return self.conversations.folder if self.conversations else None

    def _kept(self, ready: Launchable, running: Running, watch: StartWatch) -> Callable[[], None]:
        """Restore what the model's slots held when it left last; returns what saves it again."""
        kept = self.conversations
        if kept is None or running.settings.slot_folder is None:
            return lambda: None
        try:
            name = state_name(_all_files(ready), running.loaded.build, running.settings)
        except OSError:  # a file is gone that the engine still has open
            return lambda: None
        kept.restore(running, name, watch.on_line, watch.cancel)
        return lambda: kept.save(running, name, watch.on_line)

    def room(self, pids: Sequence[int]) -> Bytes:
        free = _free_bytes(pids)
        return {_RAM: min(free, self.ram_bytes) if self.ram_bytes else free} | self.cards.room()

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        def room_bytes() -> int:
            now = claims()
            return _free_bytes(now.pids) - now.held.get(_RAM, 0) - _KEPT_FREE_BYTES

        n_bytes = read_ahead(self.members[model_id].needed, room_bytes, cancel.is_set)
        return f"{format_bytes(n_bytes)} of the file read ahead" if n_bytes else ""


@dataclass(frozen=True, slots=True)
class ServedEngine:
    """A started engine, as the gateway's pool handles it."""

    running: Running
    held: Bytes
    experts: ExpertWatch
    resources: ExitStack
    save: Callable[[], None]

    @property
    def url(self) -> str:
        return self.running.url

    @property
    def api_key(self) -> Secret | None:
        return self.running.api_key

    @property
    def pid(self) -> int:
        return self.running.pid

    @property
    def context_tokens(self) -> int:
        return self.running.settings.context_tokens

    def is_alive(self) -> bool:
        return self.running.is_alive()

    def died(self) -> EngineProblem:
        return self.running.died()

    def num_expert_look_ups(self) -> tuple[int, int]:
        work = self.experts.work()
        return work.num_hits, work.num_requests

    def stop(self, *, grace_s: float) -> None:
        with self.resources:
            if grace_s and self.is_alive():
                self.save()
            self.running.stop(grace_s=grace_s)

    def kill(self) -> None:
        self.running.stop(grace_s=0)


def fleet_of_folders(
    models: Sequence[str], wishes: Wishes, engine: str, *, ttl_s: float | None
) -> Fleet:
    """Every chat and embedding model of these folders and files.

    Raises:
        FileProblem: a folder cannot be read, or none of all the files can be served.
    """
    entries: dict[Path, Entry] = {}
    called: dict[Path, str] = {}
    ignored: list[str] = []
    for text in models:
        path = expanded(text)
        found = list_models(path) if os.path.isdir(path) else [_entry_of(resolve_model(text))]
        entries |= {entry.path.absolute(): entry for entry in found}
        if text in DEMO_NAMES:
            called |= {entry.path.absolute(): text for entry in found}
    served = []
    for path, entry in entries.items():
        if entry.model is None or entry.problem or entry.kind not in _CAPABILITIES:
            ignored.append(f"{path.name} ({entry.problem or entry.kind})")
        else:
            own_name = metadata_text(entry.model.metadata, "general.name")
            served.append((path, called.get(path, own_name)))
    if not served:
        what = f": {'; '.join(ignored[:5])}" if ignored else ""
        raise FileProblem(f"{', '.join(models)}: no model to serve here{what}")
    names, cards = given_names(served), _cards(engine, wishes)
    num_models = len(served)
    members = [
        _member(
            name, path, entries[path], wishes, engine, cards, ttl_s=ttl_s, num_models=num_models
        )
        for name, (path, _) in zip(names, served, strict=True)
    ]
    return _fleet(members, ignored, engine, wishes.ram_bytes, cards)


def fleet_of_config(config: Config, wishes: Wishes) -> Fleet:
    """The models of a configuration file, and nothing else.

    Raises:
        FileProblem, ConfigProblem: a model cannot be served as it is described.
    """
    members = []
    cards = _cards(config.engine, wishes)
    for id_, entry in config.models.items():
        found = _entry_of(entry.path)
        if found.kind not in _CAPABILITIES:
            raise ConfigProblem(f"models.{id_}: {entry.path.name} is no model but: {found.kind}")
        own = replace(wishes, context_tokens=entry.ctx, kv_type=entry.kv, slots=entry.slots)
        own = replace(own, has_vision=entry.vision is not False)
        if entry.vision and not (found.model and find_projectors(found.model)):
            raise ConfigProblem(
                f"models.{id_}: vision is true, but no projector (mmproj) for it lies beside"
                f" {entry.path.name}; put it there, or leave vision out"
            )
        members.append(
            _member(
                Name(id_, entry.aliases),
                entry.path,
                found,
                own,
                config.engine,
                cards,
                ttl_s=entry.ttl if entry.has_own_ttl else config.ttl,
                is_pinned=entry.pin,
                num_models=len(config.models),
            )
        )
    return _fleet(members, [], config.engine, wishes.ram_bytes, cards)


def _entry_of(path: Path) -> Entry:
    model = open_model(path)
    model.check_computable()
    return Entry(model.paths[0], model, kind_of(model))


def _fleet(
    members: Sequence[Member],
    ignored: list[str],
    engine: str,
    ram_bytes: int | None,
    cards: Cards,
) -> Fleet:
    by_id = {member.offer.name.id: member for member in members}
    return Fleet(by_id, tuple(ignored), engine, ram_bytes, cards)


def _cards(engine: str, wishes: Wishes) -> Cards:
    machine, _ = machine_now(engine_called(engine), None)
    return Cards(machine.devices, wishes.reserve_bytes)


def _member(
    name: Name,
    path: Path,
    entry: Entry,
    wishes: Wishes,
    engine: str,
    cards: Cards,
    *,
    ttl_s: float | None,
    num_models: int,
    is_pinned: bool = False,
) -> Member:
    """A model with its plan; one that does not fit is offered, and says so when it is asked for."""
    if entry.kind is Kind.EMBEDDING:
        wishes = replace(wishes, is_serving=False)  # it has no conversations to keep
    context_tokens = None
    needed: tuple[Piece, ...] = ()
    file_bytes = sum(file.stat().st_size for file in (entry.model.paths if entry.model else ()))
    need = {_RAM: file_bytes}
    capabilities = _CAPABILITIES[entry.kind or Kind.CHAT]
    try:
        ready = _prepared(path, wishes, engine)
    except MachineProblem:
        pass
    else:
        if ready.projector:
            capabilities |= {Capability.VISION}
        footprint = ready.plan.footprint
        n_bytes = footprint.total_bytes
        if num_models > 1:
            beyond = footprint.prompt_cache_bytes - _SHARED_PROMPT_CACHE_BYTES
            n_bytes -= max(0, beyond)
        need = {_RAM: n_bytes} | cards.taken(footprint.devices)
        context_tokens, needed = ready.plan.context_tokens, _needed(ready)
    offer = Offer(
        name=name,
        need=need,
        capabilities=capabilities,
        context_tokens=context_tokens,
        n_bytes=file_bytes,
        created_s=int(path.stat().st_mtime),
        slots=wishes.slots,
        ttl_s=ttl_s,
        is_pinned=is_pinned,
    )
    return Member(offer, path, wishes, needed)


def _needed(ready: Launchable) -> tuple[Piece, ...]:
    """All of the model's files; where the store keeps its experts, what is no expert."""
    if ready.plugin:
        ranges = zip(ready.files, ready.needed, strict=True)
        return tuple((file, begin, end) for file, found in ranges for begin, end in found)
    return tuple((file, 0, file.stat().st_size) for file in _all_files(ready))


def _all_files(ready: Launchable) -> tuple[Path, ...]:
    return (*ready.files, *((ready.projector,) if ready.projector else ()))


def _prepared(path: Path, wishes: Wishes, engine: str, granted: Bytes | None = None) -> Launchable:
    return prepare(str(path), wishes, engine, may_embed=True, has_vision=True, granted=granted)


def _with_prompt_cache(ready: Launchable, granted_bytes: int) -> Launchable:
    """The plan with a prompt cache of all that was granted and is not used otherwise."""
    plan, footprint = ready.plan, ready.plan.footprint
    others = footprint.total_bytes - footprint.prompt_cache_bytes
    cache_mib = min(granted_bytes - others, _SHARED_PROMPT_CACHE_BYTES) // MIB
    if ready.is_embedding or cache_mib <= plan.prompt_cache_mib:
        return ready
    footprint = replace(footprint, prompt_cache_bytes=cache_mib * MIB)
    return replace(ready, plan=replace(plan, prompt_cache_mib=cache_mib, footprint=footprint))


def _free_bytes(pids: Sequence[int]) -> int:
    """RAM that is free, and what these engines have of it."""
    return memory().available_bytes + sum(map(_anonymous_bytes, pids))


def _anonymous_bytes(pid: int) -> int:
    """Memory of a process that is no page of a file: it is not free, but it is ours."""
    try:
        info = psutil.Process(pid).memory_info()
    except psutil.Error:
        return 0
    return max(0, int(info.rss) - int(info.shared))


def describe_fleet(fleet: Fleet) -> list[str]:
    """A row per model, then what was ignored."""
    rows = [
        (
            offer.name.id,
            format_bytes(offer.n_bytes),
            f"{offer.context_tokens:,}" if offer.context_tokens else "does not fit now",
            f"takes {' and '.join(f'{format_bytes(n)} of {d}' for d, n in offer.need.items())}",
            "pinned" if offer.is_pinned else "on demand",
            f"also {', '.join(offer.name.aliases)}" if offer.name.aliases else "",
        )
        for offer in (member.offer for member in fleet.members.values())
    ]
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    lines = [
        "  "
        + "   ".join(text.ljust(width) for text, width in zip(row, widths, strict=True)).rstrip()
        for row in rows
    ]
    return lines + ([f"  ignored: {', '.join(fleet.ignored)}"] if fleet.ignored else [])
