"""The models behind one gateway: found in folders or named in a file, planned, and started."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import psutil

from hotset.cli.conversations import Conversations, state_name
from hotset.cli.experts import ExpertWatch, watched_store
from hotset.cli.launching import launch, prepare
from hotset.cli.settings import settings_of
from hotset.cli.subjects import expanded
from hotset.core.errors import ConfigProblem, EngineProblem, FileProblem, MachineProblem
from hotset.core.units import MIB, format_bytes
from hotset.gateway.ledger import Bytes
from hotset.gateway.names import Name, given_names
from hotset.gateway.offers import Offer, StartWatch
from hotset.gateway.pool import Capability
from hotset.gguf.kinds import Kind, kind_of, metadata_text
from hotset.gguf.library import Entry, list_models
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


@dataclass(frozen=True, slots=True)
class Member:
    """One model: its file, and what is wished for it."""

    offer: Offer
    path: Path
    wishes: Wishes


@dataclass(frozen=True, slots=True)
class Fleet:
    """All models of a gateway; starts their engines (see `hotset.gateway.offers.Starter`).

    Attributes:
        ignored: files that are not served, with the reason.
        ram_bytes: for all engines together; None for what is free.
        conversations: where they are kept while a model is away; None keeps none.
    """

    members: dict[str, Member]
    ignored: tuple[str, ...]
    engine: str
    ram_bytes: int | None
    conversations: Conversations | None = None

    def start(self, model_id: str, bytes_by_device: Bytes, watch: StartWatch) -> ServedEngine:
        member = self.members[model_id]
        granted = bytes_by_device[_RAM]
        ready = _prepared(member.path, replace(member.wishes, ram_bytes=granted), self.engine)
        ready = _with_prompt_cache(ready, granted)

        def on_progress(progress: Progress) -> None:
            watch.on_fraction(progress.fraction)

        stack = ExitStack()
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
            )
            stack.callback(running.stop, grace_s=0)
            experts.adopt()
            save = self._kept(ready, running, watch)
        except BaseException:
            stack.close()
            raise
        held = {_RAM: min(granted, ready.plan.footprint.total_bytes)}
        return ServedEngine(running, held, experts, stack, save)

    def _slot_folder(self) -> Path | None:
        return self.conversations.folder if self.conversations else None

    def _kept(self, ready: Launchable, running: Running, watch: StartWatch) -> Callable[[], None]:
        """Restore what the model's slots held when it left last; returns what saves it again."""
        kept = self.conversations
        if kept is None or running.settings.slot_folder is None:
            return lambda: None
        name = state_name(ready.files, running.loaded.build, running.settings)
        kept.restore(running, name, watch.on_line)
        return lambda: kept.save(running, name, watch.on_line)

    def room(self, pids: Sequence[int]) -> Bytes:
        free = memory().available_bytes + sum(map(_anonymous_bytes, pids))
        return {_RAM: min(free, self.ram_bytes) if self.ram_bytes else free}


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
        if grace_s and self.is_alive():
            self.save()
        self.running.stop(grace_s=grace_s)
        self.resources.close()


def fleet_of_folders(
    models: Sequence[str], wishes: Wishes, engine: str, *, ttl_s: float | None
) -> Fleet:
    """Every chat and embedding model of these folders and files.

    Raises:
        FileProblem: a folder cannot be read, or none of all the files can be served.
    """
    entries: dict[Path, Entry] = {}
    ignored: list[str] = []
    for text in models:
        path = expanded(text)
        found = list_models(path) if path.is_dir() else [_entry_of(path)]
        entries |= {entry.path.absolute(): entry for entry in found}
    served = []
    for path, entry in entries.items():
        if entry.model is None or entry.problem or entry.kind not in _CAPABILITIES:
            ignored.append(f"{path.name} ({entry.problem or entry.kind})")
        else:
            own_name = metadata_text(entry.model.metadata, "general.name")
            served.append((path, own_name))
    if not served:
        what = f": {'; '.join(ignored[:5])}" if ignored else ""
        raise FileProblem(f"{', '.join(models)}: no model to serve here{what}")
    names = given_names(served)
    members = [
        _member(name, path, entries[path], wishes, engine, ttl_s=ttl_s, num_models=len(served))
        for name, (path, _) in zip(names, served, strict=True)
    ]
    return _fleet(members, ignored, engine, wishes.ram_bytes)


def fleet_of_config(config: Config, wishes: Wishes) -> Fleet:
    """The models of a configuration file, and nothing else.

    Raises:
        FileProblem, ConfigProblem: a model cannot be served as it is described.
    """
    members = []
    for id_, entry in config.models.items():
        found = _entry_of(entry.path)
        if found.kind not in _CAPABILITIES:
            raise ConfigProblem(f"models.{id_}: {entry.path.name} is no model but: {found.kind}")
        own = replace(wishes, context_tokens=entry.ctx, kv_type=entry.kv, slots=entry.slots)
        members.append(
            _member(
                Name(id_, entry.aliases),
                entry.path,
                found,
                own,
                config.engine,
                ttl_s=entry.ttl if entry.has_own_ttl else config.ttl,
                is_pinned=entry.pin,
                num_models=len(config.models),
            )
        )
    return _fleet(members, [], config.engine, wishes.ram_bytes)


def _entry_of(path: Path) -> Entry:
    model = open_model(path)
    model.check_computable()
    return Entry(model.paths[0], model, kind_of(model))


def _fleet(
    members: Sequence[Member], ignored: list[str], engine: str, ram_bytes: int | None
) -> Fleet:
    by_id = {member.offer.name.id: member for member in members}
    return Fleet(by_id, tuple(ignored), engine, ram_bytes)


def _member(
    name: Name,
    path: Path,
    entry: Entry,
    wishes: Wishes,
    engine: str,
    *,
    ttl_s: float | None,
    num_models: int,
    is_pinned: bool = False,
) -> Member:
    """A model with its plan; one that does not fit is offered, and says so when it is asked for."""
    if entry.kind is Kind.EMBEDDING:
        wishes = replace(wishes, is_serving=False)  # it has no conversations to keep
    context_tokens = None
    file_bytes = sum(file.stat().st_size for file in (entry.model.paths if entry.model else ()))
    need = {_RAM: file_bytes}
    try:
        ready = _prepared(path, wishes, engine)
    except MachineProblem:
        pass
    else:
        footprint = ready.plan.footprint
        n_bytes = footprint.total_bytes
        if num_models > 1:
            beyond = footprint.prompt_cache_bytes - _SHARED_PROMPT_CACHE_BYTES
            n_bytes -= max(0, beyond)
        need, context_tokens = {_RAM: n_bytes}, ready.plan.context_tokens
    offer = Offer(
        name=name,
        need=need,
        capabilities=_CAPABILITIES[entry.kind or Kind.CHAT],
        context_tokens=context_tokens,
        n_bytes=file_bytes,
        created_s=int(path.stat().st_mtime),
        slots=wishes.slots,
        ttl_s=ttl_s,
        is_pinned=is_pinned,
    )
    return Member(offer, path, wishes)


def _prepared(path: Path, wishes: Wishes, engine: str) -> Launchable:
    return prepare(str(path), wishes, engine, may_embed=True)


def _with_prompt_cache(ready: Launchable, granted_bytes: int) -> Launchable:
    """The plan with a prompt cache of all that was granted and is not used otherwise."""
    plan, footprint = ready.plan, ready.plan.footprint
    others = footprint.total_bytes - footprint.prompt_cache_bytes
    cache_mib = min(granted_bytes - others, _SHARED_PROMPT_CACHE_BYTES) // MIB
    if ready.is_embedding or cache_mib <= plan.prompt_cache_mib:
        return ready
    footprint = replace(footprint, prompt_cache_bytes=cache_mib * MIB)
    return replace(ready, plan=replace(plan, prompt_cache_mib=cache_mib, footprint=footprint))


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
            f"takes {format_bytes(offer.need[_RAM])} of RAM",
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
