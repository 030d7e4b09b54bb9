"""The activity's table, and the events' hub."""

from __future__ import annotations

import asyncio
import json
import sqlite3
from pathlib import Path
from typing import Any

import pytest

from hotset.core.errors import FileProblem
from hotset.gateway.activity import Activity, ActivityStore
from hotset.gateway.events import EventHub

DAY_S = 86_400.0


def row(number: int, **changes: Any) -> Activity:
    fields: dict[str, Any] = {
        "request_id": f"r{number}",
        "started_s": 1000.0 * DAY_S + number,
        "client": "127.0.0.1",
        "model": "small",
        "endpoint": "chat",
        "is_stream": True,
        "status": 200,
        "code": "",
        "wait_s": 0.5,
        "first_byte_s": None,
        "duration_s": 1.0,
    }
    return Activity(**(fields | changes))


def ids(store: ActivityStore, **more: Any) -> list[object]:
    return [found["request_id"] for found in store.recent(**more)]


def test_rows_outlive_the_store_newest_first(tmp_path: Path) -> None:
    path = tmp_path / "new" / "activity.sqlite"
    first = ActivityStore(path, days=30, rows=100)
    for number in range(3):
        first.add(row(number, model=f"m{number % 2}"))
    first.close()
    again = ActivityStore(path, days=30, rows=100)
    assert ids(again) == ["r2", "r1", "r0"]
    assert ids(again, limit=1) == ["r2"]
    assert ids(again, model="m0") == ["r2", "r0"]
    found = again.recent(limit=1)[0]
    assert (found["is_stream"], found["first_byte_s"], found["id"]) == (True, None, 3)
    again.close()


def test_old_rows_and_too_many_rows_leave(tmp_path: Path) -> None:
    path = tmp_path / "activity.sqlite"
    store = ActivityStore(path, days=2, rows=3)
    store.add(row(0, started_s=990.0 * DAY_S))
    for number in range(1, 6):
        store.add(row(number))
    store.close()
    again = ActivityStore(path, days=2, rows=3)
    again.add(row(6))
    again.close()
    reading = sqlite3.connect(path)
    kept = [each[0] for each in reading.execute("SELECT request_id FROM activity ORDER BY id")]
    reading.close()
    assert kept[-1] == "r6"
    assert len(kept) <= 3
    assert "r0" not in kept


def test_a_file_that_is_no_table_is_a_file_problem(tmp_path: Path) -> None:
    damaged = tmp_path / "damaged"
    damaged.write_bytes(b"not a database" * 100)
    with pytest.raises(FileProblem, match="cannot be used for the activity"):
        ActivityStore(damaged, days=1, rows=1)
    newer = tmp_path / "newer"
    base = sqlite3.connect(newer)
    base.execute("PRAGMA user_version=9")
    base.close()
    with pytest.raises(FileProblem, match="version 9"):
        ActivityStore(newer, days=1, rows=1)


def test_a_slow_reader_of_events_loses_some_and_is_told() -> None:
    async def run() -> list[dict[str, Any]]:
        hub = EventHub()
        stream = hub.stream(lambda: {"type": "models", "models": []}, keep_alive_s=5)
        got = [await anext(stream)]
        for number in range(300):
            hub.publish("model", model={"number": number})
        async for data in stream:
            got.append(data)
            if b"event: lost" in data:
                hub.close()
        return [json.loads(data.decode().split("data: ")[1]) for data in got]

    events = asyncio.run(run())
    assert [e["type"] for e in events] == ["models"] + ["model"] * 256 + ["lost"]
    assert events[-1]["count"] == 300 - 256
    assert [e["model"]["number"] for e in events[1:-1]] == list(range(256))


def test_a_silent_event_stream_gets_comments_and_ends_with_the_hub() -> None:
    async def run() -> list[bytes]:
        hub = EventHub()
        got = []
        async for data in hub.stream(lambda: {"type": "models"}, keep_alive_s=0.01):
            got.append(data)
            if len(got) == 3:
                hub.close()
        return got

    got = asyncio.run(run())
    assert got[1:3] == [b": keep-alive\n\n"] * 2
