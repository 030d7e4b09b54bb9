"""A driver that quietly moves a model off a card: seen after the first answer, told, planned with.

The card, its driver's files and the engine are made up; nothing here says what a real driver does.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from functools import partial
from pathlib import Path
from typing import Any

import httpx
import pytest

from enginekit import fake_engine
from hotset.cli import spilling
from hotset.cli.alone import Alone
from hotset.cli.launching import prepare
from hotset.cli.run import run
from hotset.core.plan import Plan, Wishes
from hotset.core.units import GIB, MIB
from hotset.engine import start as starting
from hotset.engine.running import Running
from hotset.gateway.offers import StartWatch
from hotset.gguf.synth import write_fullscale
from hotset.probe import this_machine
from sysfskit import AMD, CARD_BUS_ID, add_card, add_metrics, add_user, amd_files, write

_CARD = "Vulkan0: AMD Radeon RX 9070 XT (RADV GFX1201) (16304 MiB, 14900 MiB free)"
_TOOK_MIB, _PINNED_MIB, _DESKTOP_MIB = 9000, 300, 1024
_ENGINE = f"""
if "--list-devices" in sys.argv:
    print("Available devices:")
    print("  {_CARD}")
    sys.exit(0)
say("0.00.1.1 I load_tensors:  Vulkan0 model buffer size = {_TOOK_MIB}.00 MiB")
say("0.00.1.2 I sched_reserve:  Vulkan_Host compute buffer size = {_PINNED_MIB}.00 MiB")
def on_post(handler):
    import json
    say("0.01.1.0 I slot launch_slot_: id  0 | task 1 | processing task, is_child = 0")
    say("0.02.1.0 I slot      release: id  0 | task 1 | stop processing: n_tokens = 9, tru")
    word = {{"choices": [{{"delta": {{"content": "yes"}}, "finish_reason": "stop"}}]}}
    handler.answer(200, f"data: {{json.dumps(word)}}\\n\\n".encode(), "text/event-stream")
serve()
"""


@pytest.fixture(name="model", scope="module")
def _model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """6.9 GiB of it, in a file that is nearly empty."""
    folder = tmp_path_factory.mktemp("model")
    return write_fullscale("olmoe-1b-7b", folder / "olmoe.gguf", mix="Q8_0")


@pytest.fixture(name="system")
def _system(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The root of a made-up system, and a cache of the test's own."""
    root = tmp_path / "root"
    write(root, {"proc/meminfo": "MemTotal:  33554432 kB\nMemAvailable:  25165824 kB"})
    files = amd_files(16 * GIB, _DESKTOP_MIB * MIB)
    add_metrics(add_card(root, 0, AMD, "amdgpu", files), 1)
    monkeypatch.setattr(this_machine, "this_machine", partial(this_machine.this_machine, root=root))
    monkeypatch.setattr(spilling, "_ROOT", root)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    with Path(os.devnull).open() as nothing:
        monkeypatch.setattr(sys, "stdin", nothing)
        yield root


def use(root: Path, vram_mib: int) -> None:
    folder = (root / "sys/class/drm/card0/device").resolve()
    write(folder, {"mem_info_vram_used": str(vram_mib * MIB)})


def drive(root: Path, pid: int, moved_mib: int, others_mib: int) -> None:
    """The driver, once the engine is up: so much of the engine's lies in RAM."""
    own, hosted = _TOOK_MIB + 150 - moved_mib, _PINNED_MIB + moved_mib
    write(root, {f"proc/{pid}/stat": f"{pid} (llama server) S 1 {pid} {pid} 0"})
    lines = {
        "drm-pdev": CARD_BUS_ID,
        "drm-client-id": "7",
        "drm-memory-vram": f"{own << 10} KiB",
        "drm-memory-gtt": f"{hosted << 10} KiB",
    }
    add_user(root, pid, "llama-server", lines)
    use(root, _DESKTOP_MIB + own + others_mib)


@pytest.fixture(name="driver")
def _driver(system: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Sets what the driver will have moved by the time the engine answers."""
    plain = starting.start

    def set_up(moved_mib: int, others_mib: int = 0) -> None:
        def start(*args: Any, **named: Any) -> Running:
            running = plain(*args, **named)
            drive(system, running.pid, moved_mib, others_mib)
            return running

        monkeypatch.setattr(starting, "start", start)

    return set_up


def at_rest(root: Path, model: Path, engine: str) -> Plan:
    """The plan for the card when nothing but the desktop is on it."""
    use(root, _DESKTOP_MIB)
    return prepare(str(model), Wishes(), engine).plan


def budget(root: Path, model: Path, engine: str) -> int:
    (card,) = at_rest(root, model, engine).footprint.devices
    return card.budget_bytes


def test_run_tells_a_spill_once_and_the_next_plan_leaves_as_much_alone(
    model: Path,
    tmp_path: Path,
    system: Path,
    driver: Callable[[int, int], None],
    capsys: pytest.CaptureFixture[str],
) -> None:
    engine = str(fake_engine(tmp_path, _ENGINE).program)
    before = budget(system, model, engine)
    driver(1150, 0)
    run(str(model), "hello", engine=engine, as_json=True)
    said = capsys.readouterr()
    lines = [line for line in said.err.splitlines() if "lie in RAM" in line]
    (line,) = lines
    assert line == (
        "1000.0 MiB of what belongs on Vulkan0 lie in RAM: its driver moved them. Answers are"
        " slower than they need be; the next start leaves 1000.0 MiB of Vulkan0 alone"
    )
    assert json.loads(said.out)["remarks"][-1:] == lines
    assert budget(system, model, engine) == before - 1000 * MIB
    plan = at_rest(system, model, engine)
    assert any(reason.startswith("1000.0 MiB of Vulkan0 are left alone") for reason in plan.reasons)
    driver(0, 0)
    run(str(model), "hello", engine=engine, as_json=True)
    assert "lie in RAM" not in capsys.readouterr().err
    assert budget(system, model, engine) == before - 1000 * MIB


def test_serve_tells_a_spill_after_its_first_answer_and_blames_who_came_later(
    model: Path, tmp_path: Path, system: Path, driver: Callable[[int, int], None]
) -> None:
    engine = str(fake_engine(tmp_path, _ENGINE).program)
    before = budget(system, model, engine)
    driver(1150, 2000)
    heard: list[str] = []
    watch = StartWatch(heard.append, lambda _: None, lambda _: None, threading.Event())
    with ExitStack() as stack:
        alone = Alone(str(model), Wishes(is_serving=True), engine)
        stack.callback(alone.close)
        handle = alone.start(alone.id, alone.room(()), watch)
        stack.callback(handle.stop, grace_s=0)
        for _ in range(2):
            httpx.post(f"{handle.url}/v1/chat/completions", json={}, timeout=20)
    said = [line for line in heard if "lie in RAM" in line]
    assert len(said) == 1, heard
    assert "as other programs took 1000.0 MiB since the start" in said[0]
    assert "the next start plans with what is free then" in said[0]
    assert f"`hotset unload {alone.id}`" in said[0]
    assert budget(system, model, engine) == before


def test_a_card_whose_driver_tells_nothing_is_not_spoken_of(
    model: Path, tmp_path: Path, system: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    folder = (system / "sys/class/drm/card0/device").resolve()
    for name in ("total", "used"):
        (folder / f"mem_info_vram_{name}").unlink()
    engine = str(fake_engine(tmp_path, _ENGINE).program)
    run(str(model), "hello", engine=engine, as_json=True)
    assert "lie in RAM" not in capsys.readouterr().err
