"""A configuration file that changes while its models are served."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

from hotset.cli.fleet import Fleet, fleet_of_config
from hotset.cli.screen import note
from hotset.core.errors import HotsetError
from hotset.gateway.config import Config, ModelEntry, load_config
from hotset.gateway.operations import ConfigReport

if TYPE_CHECKING:
    from hotset.core.plan import Wishes
    from hotset.gateway.engines import EnginePool

__all__ = ["ConfigWatch"]

_LOOK_S = 0.5
# Editors write a file in several steps, and people save twice.
_SETTLED_S = 0.5
_AT_THE_NEXT_START = ("listen", "api_keys", "ram", "engine")


class ConfigWatch:
    """Looks at the file now and then; restarts only the models that it describes otherwise.

    A file that cannot be taken over changes nothing, and says so.

    Args:
        fleet: what it starts; its members become those of the file.
        wishes: of the command line, for all models.
    """

    def __init__(self, path: Path, config: Config, fleet: Fleet, wishes: Wishes) -> None:
        self._path, self._config = path, config
        self._fleet, self._wishes = fleet, wishes
        self._stamp = _stamp(path)
        self.report = ConfigReport(str(path.absolute()), time.time())

    async def run(self, pool: EnginePool, on_report: Callable[[ConfigReport], None]) -> None:
        """Until it is cancelled."""
        on_report(self.report)
        while True:
            await asyncio.sleep(_LOOK_S)
            if (stamp := _stamp(self._path)) == self._stamp or stamp is None:
                continue
            await asyncio.sleep(_SETTLED_S)
            if _stamp(self._path) != stamp:
                continue  # it is still being written
            self._stamp = stamp
            problem = ""
            try:
                await self._take_over(pool)
            except HotsetError as error:
                problem = error.message
                note(f"{self._path.name} is not taken over, all stays as it is: {problem}")
            self.report = ConfigReport(self.report.path, time.time(), problem)
            on_report(self.report)

    async def _take_over(self, pool: EnginePool) -> None:
        """Raises HotsetError: the file, or a model in it, cannot be served."""
        old, new = self._config, await asyncio.to_thread(load_config, self._path)
        fleet = await asyncio.to_thread(fleet_of_config, new, self._wishes)
        both = old.models.keys() & new.models.keys()
        changed = {id_ for id_ in both if _described(old, id_) != _described(new, id_)}
        self._config = new
        self._fleet.members.clear()
        self._fleet.members.update(fleet.members)
        offers = [member.offer for member in fleet.members.values()]
        pool.reoffer(offers, changed, default=new.default)
        named = {
            "changed": changed,
            "new": new.models.keys() - both,
            "gone": old.models.keys() - both,
        }
        told = [f"{what}: {', '.join(sorted(ids))}" for what, ids in named.items() if ids]
        note(f"{self._path.name} is taken over; {'; '.join(told) or 'no model has changed'}")
        late = [key for key in _AT_THE_NEXT_START if getattr(old, key) != getattr(new, key)]
        if late:
            note(f"{self._path.name}: {', '.join(late)} will count at the next start")


def _described(config: Config, id_: str) -> tuple[ModelEntry, float | None]:
    """All that the file says of a model."""
    entry = config.models[id_]
    return entry, entry.ttl if entry.has_own_ttl else config.ttl


def _stamp(path: Path) -> tuple[int, int] | None:
    """What changes when a file is written; None while there is none."""
    try:
        found = os.stat(path)
    except OSError:
        return None
    return found.st_mtime_ns, found.st_size
