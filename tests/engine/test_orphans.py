"""kill -9 of hotset at any moment: start, load, decode, stop. Nothing may stay behind."""

from __future__ import annotations

import random
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from enginekit import adopting, living_descendants, llama_server, real_engines, smollm2

ENGINES = [engine.name for engine in real_engines()]
# One round of the driver, start to stop, takes about a second and a half here.
_ROUND_S = 1.6
_LIMIT_S = 2.0


def listening_ports(processes: list[psutil.Process]) -> set[int]:
    ports = set()
    for process in processes:
        try:
            ports |= {c.laddr.port for c in process.net_connections() if c.status == "LISTEN"}
        except psutil.Error:
            continue
    return ports


def is_held(port: int) -> bool:
    return any(
        c.status == "LISTEN" and c.laddr and c.laddr.port == port
        for c in psutil.net_connections(kind="tcp")
    )


@pytest.mark.parametrize("engine", ENGINES)
def test_no_process_and_no_port_outlives_a_killed_hotset(engine: str) -> None:
    moments = random.Random(20260101)
    program = "embedded" if engine == "embedded" else str(llama_server())
    driver = Path(__file__).with_name("orphan_driver.py")
    num_rounds = 25
    num_with_engine = 0
    with adopting():
        for round_ in range(num_rounds):
            hotset = subprocess.Popen(
                [sys.executable, str(driver), str(smollm2()), program],
                env={"PYTHONPATH": str(driver.parent.parent), "PATH": "/usr/bin:/bin"},
                stdout=subprocess.DEVNULL,
                stderr=subprocess.PIPE,
            )
            time.sleep(0.3 + moments.random() * _ROUND_S)
            assert hotset.poll() is None, hotset.stderr and hotset.stderr.read().decode()
            family = psutil.Process(hotset.pid).children(recursive=True)
            ports = listening_ports(family)
            num_with_engine += bool(family)
            hotset.kill()
            hotset.communicate()
            deadline = time.monotonic() + _LIMIT_S
            while (left := living_descendants()) and time.monotonic() < deadline:
                time.sleep(0.02)
            assert left == [], f"round {round_}"
            assert not any(map(is_held, ports)), f"round {round_}"
    assert num_with_engine > num_rounds // 2, "the moments missed the engines"
