"""What was asked of which model, how it went and how long it took: a table in SQLite.

No prompts, no answers, no keys: who asked (an address), for which model, when, how many tokens.
Rows leave after some days, and the oldest when there are too many.
"""

from __future__ import annotations

import queue
import sqlite3
import threading
from dataclasses import dataclass, fields
from pathlib import Path

from hotset.core.errors import FileProblem

__all__ = ["Activity", "ActivityStore"]

_DAY_S = 86_400.0
_PRUNE_EVERY = 500
_MAX_BATCH = 200


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """One request that has ended.

    Attributes:
        started_s: seconds since 1970.
        endpoint: "chat", "messages" ...
        status: HTTP; 499 if the client left before the end.
        code: of the error; empty without one.
        wait_s: until the model was ready for it, queue and load included.
        first_byte_s: from the start to the first byte of the answer; None if there was none.
        duration_s: from the start to the end.
        prompt_tokens: all of the prompt's, the cached ones included.
        prompt_per_s, completion_per_s: the engine's own speeds; 0 where it did not say.
    """

    request_id: str
    started_s: float
    client: str
    model: str
    endpoint: str
    is_stream: bool
    status: int
    code: str
    wait_s: float
    first_byte_s: float | None
    duration_s: float
    prompt_tokens: int = 0
    cached_tokens: int = 0
    completion_tokens: int = 0
    prompt_per_s: float = 0.0
    completion_per_s: float = 0.0

    def as_row(self) -> dict[str, object]:
        """The fields by name."""
        return {name: getattr(self, name) for name in _COLUMNS}


_COLUMNS = tuple(field.name for field in fields(Activity))
_VERSION = 1
_SCHEMA = f"""
CREATE TABLE IF NOT EXISTS activity (
  id INTEGER PRIMARY KEY AUTOINCREMENT,
  {", ".join(_COLUMNS)}
);
CREATE INDEX IF NOT EXISTS activity_started ON activity (started_s);
"""
_INSERT = (
    f"INSERT INTO activity ({', '.join(_COLUMNS)})"  # noqa: S608 - our own column names
    f" VALUES ({', '.join(':' + name for name in _COLUMNS)})"
)


class ActivityStore:
    """The table. `add` never waits: a thread of its own writes; `recent` may be called from any.

    Args:
        path: the file, made if it is not there; None keeps the rows in memory.
        days, rows: what is kept.

    Raises:
        FileProblem: the file cannot be opened, or is not such a table.
    """

    def __init__(self, path: Path | None, *, days: float, rows: int) -> None:
        self._days = days
        self._rows = rows
        self._lock = threading.Lock()
        self._waiting: queue.SimpleQueue[Activity | None] = queue.SimpleQueue()
        try:
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
            self._base = sqlite3.connect(path or ":memory:", check_same_thread=False)
            version = self._base.execute("PRAGMA user_version").fetchone()[0]
            if version not in (0, _VERSION):
                self._base.close()
                raise FileProblem(
                    f"{path}: activity of version {version}, but this hotset reads"
                    f" {_VERSION}; move the file away"
                )
            self._base.execute("PRAGMA journal_mode=WAL")
            self._base.execute("PRAGMA synchronous=NORMAL")
            self._base.executescript(_SCHEMA)
            self._base.execute(f"PRAGMA user_version={_VERSION}")
        except (sqlite3.Error, OSError) as error:
            raise FileProblem(
                f"{path}: cannot be used for the activity ({error}); give another file"
            ) from error
        self._writer = threading.Thread(target=self._write, name="activity", daemon=True)
        self._writer.start()

    def add(self, activity: Activity) -> None:
        self._waiting.put(activity)

    def recent(self, *, limit: int = 100, model: str | None = None) -> list[dict[str, object]]:
        """The latest rows, newest first, as objects with the names above and `id`."""
        where = "WHERE model = ?" if model is not None else ""
        values = [] if model is None else [model]
        with self._lock:
            found = self._base.execute(
                f"SELECT id, {', '.join(_COLUMNS)} FROM activity {where}"  # noqa: S608 - our own
                " ORDER BY id DESC LIMIT ?",
                (*values, limit),
            ).fetchall()
        rows = [dict(zip(("id", *_COLUMNS), row, strict=True)) for row in found]
        for row in rows:
            row["is_stream"] = bool(row["is_stream"])
        return rows

    def close(self) -> None:
        """Write what waits, then end."""
        self._waiting.put(None)
        self._writer.join()
        self._base.close()

    def _write(self) -> None:
        num_written = 0
        while (first := self._waiting.get()) is not None:
            batch: list[Activity | None] = [first]
            while len(batch) < _MAX_BATCH and not self._waiting.empty():
                batch.append(self._waiting.get())
            rows = [activity.as_row() for activity in batch if activity is not None]
            with self._lock, self._base:
                self._base.executemany(_INSERT, rows)
                if num_written % _PRUNE_EVERY < len(rows):
                    self._prune(max(a.started_s for a in batch if a is not None))
            num_written += len(rows)
            if batch[-1] is None:
                return

    def _prune(self, now_s: float) -> None:
        self._base.execute(
            "DELETE FROM activity WHERE started_s < ?", (now_s - self._days * _DAY_S,)
        )
        self._base.execute(
            "DELETE FROM activity WHERE id <= (SELECT max(id) FROM activity) - ?", (self._rows,)
        )
