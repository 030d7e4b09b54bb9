"""What an engine has read of a conversation, kept on the disk while the engine is away.

The engine writes and reads the state of a slot; hotset decides what may be restored where. A state
belongs to one model file, one engine build and one set of settings: their digest begins its name,
so that a state of anything else is never even looked at. Its checksum ends its name: the engine
writes to a name of its own, and what is whole gets its final name in one step. So nothing that was
cut off, written over or damaged on the disk is ever given to an engine.
"""

from __future__ import annotations

import dataclasses
import hashlib
import math
import secrets
import shutil
import threading
import time
import zlib
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

import httpx

from hotset.core.units import GIB, MIB

if TYPE_CHECKING:
    from hotset.core.settings import Settings
    from hotset.engine.running import Running

__all__ = ["Conversations", "state_name"]

_FOLDER_MODE = 0o700
_BUDGET_BYTES = 8 * GIB
# The disk keeps at least this much free.
_LEAST_FREE_BYTES = 4 * GIB
# A shorter conversation is read again in no time.
_LEAST_TOKENS = 256
# So long a swap may be held up by saving, and a start by checking what was saved.
_PATIENCE_S = 15.0
# Once checked, a state is in memory, and the engine reads it from there.
_RESTORE_S = 120.0
_LOOK_S = 0.05
_ASK_S = 2.0
_CHUNK_BYTES = 4 * MIB
# A long conversation outlives short ones in its slot for a while.
_FAR_LARGER = 4
_RECENT_S = 3600.0
# A file that an engine still writes is younger than that.
_STALE_S = 600.0
# Settings that change nothing about what a state means.
_INDIFFERENT = frozenset(
    {"model", "alias", "host", "port", "api_key", "slot_folder", "expert_store"}
    | {"prompt_cache_mib", "threads", "load_mode", "is_warmed_up"}
)

Note = Callable[[str], None]


def state_name(files: Sequence[Path], build: str, settings: Settings) -> str:
    """The name under which a state may be restored.

    Raises:
        OSError: a file of the model is gone.
    """
    facts: list[object] = [build, settings.expert_store is not None]
    for field in dataclasses.fields(settings):
        if field.name not in _INDIFFERENT:
            facts.append((field.name, getattr(settings, field.name)))
    for file in files:
        at = file.stat()
        facts.append((str(file.absolute()), at.st_size, at.st_mtime_ns, at.st_ctime_ns))
    return hashlib.sha256("\n".join(map(repr, facts)).encode()).hexdigest()[:32]


class Conversations:
    """Saved states below one folder that only its owner can read.

    Safe for several threads, and for several gateways that share the folder.

    Args:
        budget_bytes: for all of them; the oldest go first.
        least_free_bytes: nothing is saved with less free on the disk.
        patience_s: a save or a check that takes longer is given up.
    """

    def __init__(
        self,
        folder: Path,
        *,
        budget_bytes: int = _BUDGET_BYTES,
        least_free_bytes: int = _LEAST_FREE_BYTES,
        patience_s: float = _PATIENCE_S,
    ) -> None:
        self.folder = folder
        self._budget_bytes = budget_bytes
        self._least_free_bytes = least_free_bytes
        self._patience_s = patience_s
        # To make a client takes 40 ms, and each engine is asked two or three times in its life.
        self._http = httpx.Client(
            timeout=_RESTORE_S,
            trust_env=False,
            limits=httpx.Limits(max_keepalive_connections=0),
        )
        self._too_long: dict[str, int] = {}
        self._sealing: dict[str, list[threading.Thread]] = {}

    def open(self) -> None:
        """Make the folder, readable by its owner alone.

        Raises:
            OSError: that cannot be; nothing can be kept then.
        """
        self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        self.folder.chmod(_FOLDER_MODE)
        self._keep_budget()

    def save(self, running: Running, name: str, note: Note) -> None:
        """Save every slot that holds a conversation worth it. What fails is only noted.

        An engine that does not get done in time is ended: it would go on writing.
        """
        deadline_s = time.monotonic() + self._patience_s
        try:
            for slot, n_tokens in _used_slots(self._http, running):
                if _LEAST_TOKENS <= n_tokens < self._too_long.get(name, math.inf):
                    self._save_slot(running, name, slot, n_tokens, deadline_s, note)
        except OSError as error:
            note(f"conversations are not saved: {error.strerror}")

    def _save_slot(
        self, running: Running, name: str, slot: int, n_tokens: int, deadline_s: float, note: Note
    ) -> None:
        part = self.folder / f"{name}-{slot}.{secrets.token_hex(8)}.part"
        ask: _Ask | None = None
        while not (reason := self._why_not(part, deadline_s)):
            ask = ask or _Ask(self._http, running, slot, "save", part.name)
            if ask.is_done(_LOOK_S):
                break
        if reason:
            note(f"slot {slot}: conversation of {n_tokens:,} tokens not saved: {reason}")
            if ask:
                self._too_long[name] = n_tokens
                running.stop(grace_s=0)
                ask.is_done(_ASK_S)
            part.unlink(missing_ok=True)
        elif ask and ask.found("n_saved"):
            # While the engine ends and the next one loads.
            sealing = threading.Thread(
                target=self._seal,
                args=(part, name, slot, ask.found("n_written"), note),
                name="sealing",
            )
            self._sealing.setdefault(name, []).append(sealing)
            sealing.start()
        else:
            note(f"slot {slot}: the engine did not save its conversation")
            part.unlink(missing_ok=True)

    def _why_not(self, part: Path, deadline_s: float) -> str:
        """Why a save must not begin, or not go on; empty if it may."""
        if shutil.disk_usage(self.folder).free < self._least_free_bytes:
            return "the disk is nearly full"
        if _size(part) > self._budget_bytes:
            return "it is larger than all that may be kept"
        return "" if time.monotonic() < deadline_s else "the disk is too slow for it"

    def _seal(self, part: Path, name: str, slot: int, n_bytes: int, note: Note) -> None:
        """Give a written state its final name, if it is whole; earlier ones of the slot go."""
        try:
            if _size(part) < n_bytes:
                raise OSError(0, "the disk did not take all of it")
            sealed = self.folder / f"{name}-{slot}.{_checksum(part):08x}.slot"
            part.rename(sealed)
            states = self._states(name, slot)
            for other in states:
                if other not in (sealed, _best(states)):
                    other.unlink(missing_ok=True)
            self._keep_budget()
            note(f"slot {slot}: conversation saved ({n_bytes / MIB:.0f} MiB)")
        except OSError as error:
            note(f"slot {slot}: conversation not saved: {error.strerror}")
            with suppress(OSError):
                part.unlink(missing_ok=True)

    def restore(
        self, running: Running, name: str, note: Note, cancel: threading.Event | None = None
    ) -> None:
        """Give the slots back what they held. A state that does not serve any more is deleted.

        Args:
            cancel: once set, whatever is done here is left as it is.
        """
        for sealing in self._sealing.pop(name, ()):
            sealing.join()
        try:
            for slot in range(running.settings.slots):
                if state := _best(self._states(name, slot)):
                    self._restore_slot(running, slot, state, note, cancel)
        except OSError as error:
            note(f"conversations are not restored: {error.strerror}")

    def _restore_slot(
        self,
        running: Running,
        slot: int,
        state: Path,
        note: Note,
        cancel: threading.Event | None,
    ) -> None:
        deadline_s = time.monotonic() + self._patience_s

        def is_over() -> bool:
            return time.monotonic() > deadline_s or (cancel is not None and cancel.is_set())

        is_whole = f"{_checksum(state, is_over):08x}" == state.suffixes[-2][1:]
        n_tokens = 0
        if is_whole:
            ask = _Ask(self._http, running, slot, "restore", state.name)
            deadline_s = time.monotonic() + _RESTORE_S
            while not ask.is_done(_LOOK_S) and not is_over():
                pass
            n_tokens = ask.found("n_restored")
        if n_tokens:
            note(f"slot {slot}: conversation of {n_tokens:,} tokens restored")
        elif cancel is None or not cancel.is_set():
            why = "refused by the engine" if is_whole else "damaged, or not read in time"
            note(f"slot {slot}: a saved conversation is dropped: {why}")
            state.unlink(missing_ok=True)

    def _states(self, name: str, slot: int) -> list[Path]:
        return list(self.folder.glob(f"{name}-{slot}.*.slot"))

    def _keep_budget(self) -> None:
        """Delete the oldest beyond the budget, and what killed engines left behind."""
        stale_ns = time.time_ns() - int(_STALE_S * 1e9)
        for part in self.folder.glob("*.part"):
            if _written_ns(part) < stale_ns:
                part.unlink(missing_ok=True)
        kept = 0
        for state in sorted(self.folder.glob("*.slot"), key=_written_ns, reverse=True):
            kept += _size(state)
            if kept > self._budget_bytes:
                state.unlink(missing_ok=True)


class _Ask:
    """A request to save or restore a slot, on a thread of its own."""

    def __init__(
        self, http: httpx.Client, running: Running, slot: int, action: str, file_name: str
    ) -> None:
        self._answer: dict[str, object] = {}
        self._request = http.build_request(
            "POST",
            f"{running.url}/slots/{slot}",
            params={"action": action},
            json={"filename": file_name},
            headers=running.headers(),
        )
        self._thread = threading.Thread(target=self._ask, args=(http,), daemon=True)
        self._thread.start()

    def _ask(self, http: httpx.Client) -> None:
        with suppress(httpx.HTTPError, ValueError):
            answer = http.send(self._request)
            found = answer.json() if answer.status_code == 200 else None
            self._answer = found if isinstance(found, dict) else {}

    def is_done(self, wait_s: float) -> bool:
        self._thread.join(wait_s)
        return not self._thread.is_alive()

    def found(self, key: str) -> int:
        """A count of the answer; 0 where there is none, or the request failed."""
        value = self._answer.get(key)
        return value if isinstance(value, int) else 0


def _used_slots(http: httpx.Client, running: Running) -> list[tuple[int, int]]:
    """Slots that have computed anything, with the tokens that they hold; the fullest first."""
    try:
        answer = http.get(f"{running.url}/slots", headers=running.headers(), timeout=_ASK_S)
        slots = answer.json()
        used = [(int(s["id"]), int(s["n_prompt_tokens"])) for s in slots if "id_task" in s]
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return []
    return sorted(used, key=lambda slot: slot[1], reverse=True)


def _checksum(path: Path, is_over: Callable[[], bool] = lambda: False) -> int:
    """CRC-32 of the file, or -1 if it `is_over` before. About 2 GB/s from memory."""
    crc, room = 0, bytearray(_CHUNK_BYTES)
    with path.open("rb", buffering=0) as file:
        while n_bytes := file.readinto(room):
            crc = zlib.crc32(memoryview(room)[:n_bytes], crc)
            if is_over():
                return -1
    return crc


def _best(states: Sequence[Path]) -> Path | None:
    """The newest, or a recent one that is far larger.

    Agents ask small things between two turns of a long conversation. Its state is the one that is
    worth having; the small one is read again in no time.
    """
    newest = max(states, key=_written_ns, default=None)
    if newest is None:
        return None
    since_ns, least = time.time_ns() - int(_RECENT_S * 1e9), _FAR_LARGER * _size(newest)
    large = [one for one in states if _size(one) > least and _written_ns(one) > since_ns]
    return max(large, key=_size, default=newest)


def _size(path: Path) -> int:
    """0 where there is none."""
    try:
        return path.stat().st_size
    except OSError:
        return 0


def _written_ns(path: Path) -> int:
    try:
        return path.stat().st_mtime_ns
    except OSError:  # another gateway has just deleted it
        return 0
