"""`python -m benchmarks.gateway`: the gateway against asking the engine directly, in turn.

`python -m benchmarks.gateway swap` measures swaps (see `benchmarks.gateway.swap`).
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psutil
import uvloop
from benchmarks.gateway import swap
from benchmarks.gateway.client import Seen, ask, ask_many

__all__ = ["main"]

_STREAMS = (1, 8, 64)
_MESSAGES = [{"role": "user", "content": "Why is the sky blue?"}]


@contextmanager
def _child(core: int | None, *arguments: str) -> Iterator[tuple[int, psutil.Process]]:
    """A process of the benchmark's own: its port, and itself for its processor time."""
    process = subprocess.Popen(
        [sys.executable, "-m", *arguments],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        if core is not None:
            os.sched_setaffinity(process.pid, {core})
        assert process.stdout is not None
        yield int(process.stdout.readline()), psutil.Process(process.pid)
    finally:
        process.communicate()


@contextmanager
def _awake(cores: Sequence[int]) -> Iterator[None]:
    """Keep these cores from sleeping, by work that gives way to any other.

    A virtual machine takes milliseconds to wake a core, and the way through a gateway has twice as
    many wakings: without this their time is measured, not the gateway's.
    """
    idlers = []
    for core in cores:
        idler = subprocess.Popen([sys.executable, "-I", "-S", "-c", "while True: pass"])
        os.sched_setaffinity(idler.pid, {core})
        os.sched_setscheduler(idler.pid, os.SCHED_IDLE, os.sched_param(0))
        idlers.append(idler)
    try:
        yield
    finally:
        for idler in idlers:
            idler.kill()
            idler.wait()


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def _cpu_s(process: psutil.Process) -> float:
    times = process.cpu_times()
    return float(times.user + times.system)


async def _in_turn(rounds: int, sides: dict[str, Callable[[], Any]]) -> dict[str, list[list[Seen]]]:
    """Each side once per round, so that a noisy moment hits both."""
    seen: dict[str, list[list[Seen]]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seen[name].append(await side())
    return seen


def _row(name: str, seen: dict[str, list[list[Seen]]]) -> dict[str, Any]:
    """Medians and 99th percentiles of both sides, and what the gateway added."""
    row: dict[str, Any] = {"case": name}
    for what, pick in (
        ("first", lambda s: [s.first_s]),
        ("event", lambda s: s.delays_s[1:]),
    ):
        both = {}
        for side, rounds in seen.items():
            values = [v for group in rounds for s in group for v in pick(s)]
            if values:
                both[side] = {q: _quantile(values, q) * 1e3 for q in (0.5, 0.99)}
        if len(both) == 2:
            row[what] = {
                f"p{int(q * 100)}": {
                    "direct_ms": round(both["direct"][q], 3),
                    "added_ms": round(both["gateway"][q] - both["direct"][q], 3),
                }
                for q in (0.5, 0.99)
            }
    return row


async def _latency(
    port: int, direct: int, gateway: psutil.Process, args: argparse.Namespace
) -> list[dict[str, Any]]:
    return [await _latency_of(n, port, direct, gateway, args) for n in _STREAMS]


async def _latency_of(
    num_streams: int, port: int, direct: int, gateway: psutil.Process, args: argparse.Namespace
) -> dict[str, Any]:
    body = {
        "model": "bench",
        "stream": True,
        "messages": _MESSAGES,
        "events": args.events,
        "pause_s": args.pause_s,
    }

    def side(to: int) -> Callable[[], Any]:
        return lambda: ask_many(to, body, num_streams=num_streams)

    await side(port)()  # the first request of a process pays for what it loads
    before = _cpu_s(gateway)
    rounds = max(args.rounds, 24 // num_streams)
    seen = await _in_turn(rounds, {"direct": side(direct), "gateway": side(port)})
    row = _row(f"{num_streams} streams", seen)
    num_events = sum(s.num_events for group in seen["gateway"] for s in group)
    row["cpu_per_event_us"] = round((_cpu_s(gateway) - before) / num_events * 1e6, 1)
    return row


async def _throughput(
    port: int, gateway: psutil.Process, args: argparse.Namespace
) -> list[dict[str, Any]]:
    cases = [(n, 0.0, f"{n} streams, as fast as they come") for n in _STREAMS]
    # Each of these events is read and written alone, as long as the gateway keeps up.
    cases.append((_STREAMS[-1], 0.005, f"{_STREAMS[-1]} streams of at most 200 events per second"))
    rows = []
    for num_streams, pause_s, name in cases:
        body = {
            "model": "bench",
            "stream": True,
            "messages": _MESSAGES,
            "events": args.flood // num_streams,
            "pause_s": pause_s,
        }
        before, began = _cpu_s(gateway), time.monotonic()
        seen = await ask_many(port, body, num_streams=num_streams)
        wall_s = time.monotonic() - began
        num_events = sum(s.num_events for s in seen)
        rows.append(
            {
                "case": name,
                "events_per_s": round(num_events / wall_s),
                "gateway_core": round((_cpu_s(gateway) - before) / wall_s, 2),
            }
        )
    return rows


async def _real(port: int, direct: int, key: str, rounds: int) -> dict[str, Any]:
    body = {
        "model": "bench",
        "stream": True,
        "messages": _MESSAGES,
        "max_tokens": 1,
        "temperature": 0,
    }

    async def one(to: int, with_key: str) -> list[Seen]:
        return [await ask(to, body, with_key)]

    await one(direct, key)
    seen = await _in_turn(
        rounds, {"direct": lambda: one(direct, key), "gateway": lambda: one(port, "")}
    )
    return _row("real engine, 1 stream", seen)


def main() -> None:
    if sys.argv[1:2] == ["swap"]:
        swap.main(sys.argv[2:])
        return
    parser = argparse.ArgumentParser(prog="benchmarks.gateway", description=__doc__)
    parser.add_argument("--rounds", type=int, default=8)
    parser.add_argument("--events", type=int, default=40, help="per stream")
    parser.add_argument("--pause-s", type=float, default=0.03, help="between events")
    parser.add_argument("--flood", type=int, default=40_000, help="events of a throughput run")
    parser.add_argument("--asleep", action="store_true", help="let idle cores sleep")
    parser.add_argument("--model", type=Path, help="a GGUF file, for the added time with an engine")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args()
    cores = sorted(os.sched_getaffinity(0))
    own, other = (cores[0], cores[1]) if len(cores) > 1 else (None, None)
    rows: list[dict[str, Any]] = []
    with ExitStack() as stack:
        if not args.asleep:
            stack.enter_context(_awake(cores))
        direct, _ = stack.enter_context(_child(other, "benchmarks.gateway.upstream"))
        url = f"http://127.0.0.1:{direct}"
        port, gateway = stack.enter_context(_child(own, "benchmarks.gateway.served", url, ""))
        if other is not None:
            os.sched_setaffinity(0, {other})
        rows += uvloop.run(_latency(port, direct, gateway, args))
        rows += uvloop.run(_throughput(port, gateway, args))
    os.sched_setaffinity(0, set(cores))
    if args.model:
        rows.append(_with_engine(args.model, args.rounds * 5))
    for row in rows:
        print(json.dumps(row))
    if args.json:
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def _with_engine(model: Path, rounds: int) -> dict[str, Any]:
    from hotset.core.settings import Settings  # noqa: PLC0415 - only where an engine is asked for
    from hotset.engine.embedded import EmbeddedEngine  # noqa: PLC0415
    from hotset.engine.start import start  # noqa: PLC0415

    settings = Settings(model=model, alias="bench", context_tokens=512)
    with start(EmbeddedEngine(), settings, os.environ) as running:
        key = running.api_key.reveal() if running.api_key else ""
        direct = int(running.url.rpartition(":")[2])
        with _child(None, "benchmarks.gateway.served", running.url, key) as (port, _):
            return uvloop.run(_real(port, direct, key, rounds))


if __name__ == "__main__":
    main()
