"""What an engine has read of a conversation, kept on the disk while the engine is away.

The engine saves and restores the state of a slot; hotset decides what may be restored where. A
saved state belongs to one model file, one engine build and one set of settings; their digest is its
name, so that a state of anything else is never even looked at.
"""

from __future__ import annotations

import hashlib
import shutil
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

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
_TIMEOUT_S = 120.0


def state_name(files: Sequence[Path], build: str, settings: Settings) -> str:
    """The name under which a state may be restored.

    Raises:
        OSError: a file of the model is gone.
    """
    facts = [build, settings.kv_type_k, settings.kv_type_v, settings.context_tokens, settings.slots]
    facts += [settings.flash_attention, settings.is_repacked, settings.expert_store is not None]
    for file in files:
        at = file.stat()
        facts += [str(file.absolute()), at.st_size, at.st_mtime_ns]
    return hashlib.sha256("\n".join(map(str, facts)).encode()).hexdigest()[:32]


class Conversations:
    """Saved states below one folder that only its owner can read. Safe for several threads.

    Args:
        budget_bytes: for all of them; the oldest go first.
    """

    def __init__(self, folder: Path, budget_bytes: int = _BUDGET_BYTES) -> None:
        self.folder = folder
        self._budget_bytes = budget_bytes

    def open(self) -> bool:
        """Make the folder; False where that cannot be, and nothing is kept then."""
        try:
            self.folder.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
            self.folder.chmod(_FOLDER_MODE)
        except OSError:
            return False
        return True

    def save(self, running: Running, name: str, note: Callable[[str], None]) -> None:
        """Save every slot that holds a conversation worth it. What fails is only noted."""
        if shutil.disk_usage(self.folder).free < _LEAST_FREE_BYTES:
            note("conversations are not saved: the disk is nearly full")
            return
        for slot in range(running.settings.slots):
            file = self._file(name, slot)
            n_tokens = _ask(running, slot, "save", file.name, "n_saved")
            if n_tokens < _LEAST_TOKENS:
                file.unlink(missing_ok=True)
            else:
                size = file.stat().st_size / MIB
                note(f"slot {slot}: conversation of {n_tokens:,} tokens saved ({size:.0f} MiB)")
        self._keep_budget()

    def restore(self, running: Running, name: str, note: Callable[[str], None]) -> None:
        """Give the slots back what they held. A state that the engine refuses is deleted."""
        for slot in range(running.settings.slots):
            file = self._file(name, slot)
            if file.exists():
                n_tokens = _ask(running, slot, "restore", file.name, "n_restored")
                if n_tokens:
                    note(f"slot {slot}: conversation of {n_tokens:,} tokens restored")
                else:
                    file.unlink(missing_ok=True)

    def _file(self, name: str, slot: int) -> Path:
        return self.folder / f"{name}-{slot}.slot"

    def _keep_budget(self) -> None:
        """Delete the oldest beyond the budget."""
        kept = 0
        with suppress(OSError):
            states = [(path.stat(), path) for path in self.folder.glob("*.slot")]
            for facts, path in sorted(states, key=lambda s: s[0].st_mtime_ns, reverse=True):
                kept += facts.st_size
                if kept > self._budget_bytes:
                    path.unlink(missing_ok=True)


def _ask(running: Running, slot: int, action: str, file_name: str, count: str) -> int:
    """Have a slot saved or restored; the number of its tokens, 0 if that failed."""
    import httpx

    try:
        answer = httpx.post(
            f"{running.url}/slots/{slot}",
            params={"action": action},
            json={"filename": file_name},
            headers=running.headers(),
            timeout=_TIMEOUT_S,
            trust_env=False,
        )
        return int(answer.json()[count]) if answer.status_code == 200 else 0
    except (httpx.HTTPError, ValueError, KeyError, TypeError):
        return 0
