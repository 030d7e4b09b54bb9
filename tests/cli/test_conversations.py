"""Saved conversations: never lost without need, never trusted without proof, never in the way."""

from __future__ import annotations

import json
import os
import stat
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from enginekit import settings_for
from hotset.cli.conversations import Conversations, state_name
from hotset.core.settings import ExpertStore, Secret, Settings
from hotset.engine.running import Running

BUILD = "build 1"


class SlotEngine:
    """An engine's slots: saved to files and restored from them, as llama.cpp does it.

    Attributes:
        states: what each slot holds.
        restored: what it was given back, by slot.
        missing_bytes: of a save that the disk does not take.
        is_slow: a save writes on and on until the engine is ended.
    """

    def __init__(self, folder: Path, *states: bytes) -> None:
        self.folder, self.states = folder, list(states)
        self.restored: dict[int, bytes] = {}
        self.settings = settings_for(Path("m.gguf"), slots=max(1, len(states)))
        self.missing_bytes = 0
        self.is_slow = self.is_refusing = False
        self.ended = threading.Event()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), _handler_of(self))
        self._server.daemon_threads = True
        self.url = f"http://127.0.0.1:{self._server.server_address[1]}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.01,))
        self._thread.start()

    def headers(self) -> dict[str, str]:
        return {"Authorization": "Bearer secret"}

    def stop(self, *, grace_s: float) -> None:
        del grace_s
        self.ended.set()

    def close(self) -> None:
        self.ended.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    def slots(self) -> list[dict[str, int]]:
        used = [{"id": i, "n_prompt_tokens": len(s)} for i, s in enumerate(self.states)]
        return [slot | ({"id_task": 7} if slot["n_prompt_tokens"] else {}) for slot in used]

    def save(self, slot: int, file: Path) -> dict[str, int] | None:
        state = self.states[slot]
        while self.is_slow and not self.ended.wait(0.01):
            with file.open("ab") as grown:
                grown.write(state)
        if self.is_refusing or self.ended.is_set():
            return None
        file.write_bytes(state[: len(state) - self.missing_bytes])
        return {"n_saved": len(state), "n_written": len(state)}

    def restore(self, slot: int, file: Path) -> dict[str, int] | None:
        if self.is_refusing:
            return None
        self.restored[slot] = file.read_bytes()
        return {"n_restored": len(self.restored[slot])}


def _handler_of(engine: SlotEngine) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self._say(200, engine.slots())

        def do_POST(self) -> None:
            path, _, action = self.path.partition("?action=")
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            act = engine.save if action == "save" else engine.restore
            answer = act(int(path.rpartition("/")[2]), engine.folder / body["filename"])
            self._say(200 if answer else 500, answer or {"error": "no"})

        def _say(self, status: int, answer: object) -> None:
            data = json.dumps(answer).encode()
            self.send_response(status)
            self.send_header("Content-Length", str(len(data)))
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *_: object) -> None:
            return

    return Handler


Opened = Callable[..., SlotEngine]


@pytest.fixture(name="engine")
def _engine(folder: Path) -> Iterator[Opened]:
    """Makes engines whose slots hold these states."""
    opened: list[SlotEngine] = []

    def open_one(*states: bytes) -> SlotEngine:
        opened.append(SlotEngine(folder, *states))
        return opened[-1]

    yield open_one
    for engine in opened:
        engine.close()


@pytest.fixture(name="folder")
def _folder(tmp_path: Path) -> Path:
    return tmp_path / "deep" / "conversations"


def conversations(folder: Path, **changes: float) -> Conversations:
    kept = Conversations(folder, **({"least_free_bytes": 0} | changes))  # type: ignore[arg-type]  # keywords of one kind
    kept.open()
    return kept


def saved(kept: Conversations, engine: SlotEngine, name: str = "name") -> list[str]:
    """Save, wait until it is done, and return what was noted."""
    notes: list[str] = []
    kept.save(cast("Running", engine), name, notes.append)
    for thread in threading.enumerate():
        if thread.name == "sealing":
            thread.join()
    return notes


def restored(kept: Conversations, engine: SlotEngine, name: str = "name") -> list[str]:
    notes: list[str] = []
    kept.restore(cast("Running", engine), name, notes.append)
    return notes


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


TALK, OTHER = b"t" * 300, b"o" * 400


def test_each_slot_gets_back_what_it_held_also_in_another_gateway(
    folder: Path, engine: Opened
) -> None:
    saved(conversations(folder), engine(TALK, OTHER))
    later = engine(b"", b"")
    notes = restored(conversations(folder), later)
    assert later.restored == {0: TALK, 1: OTHER}
    assert "slot 1: conversation of 400 tokens restored" in notes


def test_only_the_owner_can_read_them(folder: Path, engine: Opened) -> None:
    folder.mkdir(parents=True, mode=0o755)
    saved(conversations(folder), engine(TALK))
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700


def test_a_new_conversation_takes_the_place_of_the_slots_old_one(
    folder: Path, engine: Opened
) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK))
    saved(kept, engine(OTHER))
    assert len(names(folder)) == 1
    later = engine(b"")
    restored(kept, later)
    assert later.restored == {0: OTHER}


def test_a_long_conversation_outlives_a_short_one_in_its_slot_for_an_hour(
    folder: Path, engine: Opened
) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK * 10))
    (long_one,) = folder.iterdir()
    saved(kept, engine(TALK))
    saved(kept, engine(OTHER))
    assert len(names(folder)) == 2
    later = engine(b"")
    restored(kept, later)
    assert later.restored == {0: TALK * 10}
    os.utime(long_one, (time.time() - 4000,) * 2)
    restored(kept, later)
    assert later.restored == {0: OTHER}
    saved(kept, engine(TALK))
    assert not long_one.exists()


@pytest.mark.parametrize("state", [b"", b"short"])
def test_what_is_not_worth_saving_leaves_the_older_one_alone(
    folder: Path, engine: Opened, state: bytes
) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK))
    before = names(folder)
    saved(kept, engine(state))
    assert names(folder) == before


def test_the_oldest_go_first_when_all_are_more_than_the_budget(
    folder: Path, engine: Opened
) -> None:
    kept = conversations(folder, budget_bytes=700)
    for age_s, name in ((30, "oldest"), (20, "middle")):
        saved(kept, engine(TALK), name)
        (path,) = folder.glob(f"{name}-*")
        os.utime(path, (time.time() - age_s,) * 2)
    saved(kept, engine(OTHER), "newest")
    assert {name.partition("-")[0] for name in names(folder)} == {"newest", "middle"}


def damage_flip(path: Path) -> None:
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def damage_cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-1])


def damage_empty(path: Path) -> None:
    path.write_bytes(b"")


@pytest.mark.parametrize("damage", [damage_flip, damage_cut, damage_empty])
def test_a_damaged_state_never_reaches_an_engine(
    folder: Path, engine: Opened, damage: Callable[[Path], None]
) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK))
    (path,) = folder.iterdir()
    damage(path)
    later = engine(b"")
    assert "damaged" in restored(kept, later)[0]
    assert later.restored == {}
    assert names(folder) == []


def test_a_state_that_the_engine_refuses_is_not_offered_twice(folder: Path, engine: Opened) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK))
    later = engine(b"")
    later.is_refusing = True
    assert "refused by the engine" in restored(kept, later)[0]
    assert names(folder) == []


def test_what_a_killed_gateway_left_half_written_is_never_restored_and_goes_in_time(
    folder: Path, engine: Opened
) -> None:
    kept = conversations(folder)
    part = folder / "name-0.0123456789abcdef.part"
    part.write_bytes(TALK)
    later = engine(b"")
    restored(kept, later)
    assert later.restored == {}
    conversations(folder)
    assert part.exists()  # another gateway may just be writing it
    os.utime(part, (time.time() - 3600,) * 2)
    conversations(folder)
    assert not part.exists()


def test_a_called_off_start_leaves_the_state_for_the_next(folder: Path, engine: Opened) -> None:
    kept = conversations(folder)
    saved(kept, engine(TALK))
    cancel = threading.Event()
    cancel.set()
    kept.restore(cast("Running", engine(b"")), "name", lambda _: None, cancel)
    later = engine(b"")
    restored(kept, later)
    assert later.restored == {0: TALK}


def test_a_disk_that_does_not_take_all_of_it_keeps_nothing(folder: Path, engine: Opened) -> None:
    kept = conversations(folder)
    full = engine(TALK)
    full.missing_bytes = 1
    assert any("did not take all" in note for note in saved(kept, full))
    assert names(folder) == []


def test_an_engine_that_cannot_save_is_noted(folder: Path, engine: Opened) -> None:
    refusing = engine(TALK)
    refusing.is_refusing = True
    assert "did not save" in saved(conversations(folder), refusing)[0]
    assert names(folder) == []
    assert not refusing.ended.is_set()


def test_nothing_is_written_on_a_disk_that_is_nearly_full_and_all_is_well_when_it_is_not(
    folder: Path, engine: Opened, monkeypatch: pytest.MonkeyPatch
) -> None:
    kept = conversations(folder, least_free_bytes=1000)
    leaving = engine(TALK)
    with monkeypatch.context() as patched:
        patched.setattr("shutil.disk_usage", lambda _: SimpleNamespace(free=999))
        assert "the disk is nearly full" in saved(kept, leaving)[0]
    assert names(folder) == []
    assert not leaving.ended.is_set()
    saved(kept, leaving)
    assert len(names(folder)) == 1


@pytest.mark.parametrize(
    ("limits", "reason"),
    [({"patience_s": 0.2}, "too slow"), ({"budget_bytes": 2000}, "larger than all")],
)
def test_a_save_beyond_its_bounds_ends_the_engine_and_is_not_tried_again(
    folder: Path, engine: Opened, limits: dict[str, float], reason: str
) -> None:
    kept = conversations(folder, **limits)
    slow = engine(TALK)
    slow.is_slow = True
    assert reason in saved(kept, slow)[0]
    assert slow.ended.is_set()
    assert names(folder) == []
    again = engine(TALK)
    assert saved(kept, again) == []
    assert not again.ended.is_set()
    # A shorter one may do.
    saved(kept, engine(TALK[:-1]))
    assert len(names(folder)) == 1


def test_a_folder_that_cannot_be_is_said_at_once_and_one_that_vanishes_harms_nothing(
    folder: Path, engine: Opened
) -> None:
    folder.parent.mkdir()
    folder.write_text("a file")
    with pytest.raises(OSError, match="exists"):
        Conversations(folder).open()
    folder.unlink()
    kept = conversations(folder)
    folder.rmdir()
    assert "No such file" in saved(kept, engine(TALK))[0]
    assert restored(kept, engine(b"")) == []


def test_two_gateways_that_save_at_once_leave_whole_states_only(
    folder: Path, engine: Opened
) -> None:
    contents = [bytes([65 + i]) * (300 + i) for i in range(8)]
    both = [conversations(folder), conversations(folder)]
    leaving = [engine(content) for content in contents]

    def save(turn: int) -> None:
        for engine_of_mine in leaving[turn::2]:
            saved(both[turn], engine_of_mine)

    threads = [threading.Thread(target=save, args=(turn,)) for turn in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    later = engine(b"")
    restored(both[0], later)
    assert later.restored[0] in contents
    assert len(names(folder)) <= 2


STORE = ExpertStore(
    plugin=Path("p"),
    ram_bytes=1,
    counters=Path("c"),
    environment={},
    server_environment={},
    server_arguments=(),
)
SETTINGS = settings_for(Path("m.gguf"))


@pytest.mark.parametrize(
    "change",
    [
        {"kv_type_k": "q8_0"},
        {"kv_type_v": "q8_0"},
        {"context_tokens": 1024},
        {"flash_attention": "off"},
        {"is_repacked": False},
        {"expert_store": STORE},
        {"gpu_layers": 3},
        {"ubatch_tokens": 256},
    ],
)
def test_a_state_of_other_settings_has_another_name(
    tmp_path: Path, change: dict[str, object]
) -> None:
    file = tmp_path / "m.gguf"
    file.write_bytes(b"model")
    other = replace(SETTINGS, **change)  # type: ignore[arg-type]  # fields of a dataclass
    assert state_name([file], BUILD, SETTINGS) != state_name([file], BUILD, other)


def test_a_name_outlives_a_restart_and_nothing_that_makes_it_another_model(tmp_path: Path) -> None:
    file, shard = tmp_path / "m.gguf", tmp_path / "n.gguf"
    file.write_bytes(b"model")
    shard.write_bytes(b"model")
    os.utime(file, ns=(1, 1))

    def name(files: list[Path], build: str = BUILD, settings: Settings = SETTINGS) -> str:
        return state_name(files, build, settings)

    first = name([file])
    restarted = replace(SETTINGS, port=4000, api_key=Secret("new"), threads=3, alias="renamed")
    assert name([file], settings=restarted) == first
    assert name([file], "build 2") != first
    assert name([shard]) != first
    assert name([file, shard]) != first
    file.write_bytes(b"MODEL")
    os.utime(file, ns=(1, 1))
    rewritten = name([file])  # same size, and its time set back
    assert rewritten != first
    os.utime(file, ns=(2, 2))
    assert name([file]) != rewritten
    file.unlink()
    with pytest.raises(OSError, match="No such file"):
        name([file])
