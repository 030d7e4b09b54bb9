"""Starting an engine: checked before, watched until it answers, cleaned up if it does not."""

from __future__ import annotations

import secrets
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from hotset.core.errors import EngineProblem, MachineProblem
from hotset.core.settings import Secret, Settings, validate_settings
from hotset.engine import loadlog
from hotset.engine.base import Engine
from hotset.engine.ports import check_port, listening_port
from hotset.engine.process import EngineProcess
from hotset.engine.running import Running
from hotset.engine.shortage import FirstLook, MemoryRow, MemoryShort
from hotset.engine.watch import Patience, Progress, Watch

if TYPE_CHECKING:
    import httpx

__all__ = ["start"]

_POLL_S = 0.02
_HEALTH_TIMEOUT_S = 2.0


def start(
    engine: Engine,
    settings: Settings,
    environ: Mapping[str, str],
    *,
    on_progress: Callable[[Progress], None] | None = None,
    on_line: Callable[[str], None] | None = None,
    on_pid: Callable[[int], None] | None = None,
    cancel: threading.Event | None = None,
    patience: Patience | None = None,
    weights_bytes: int = 0,
    is_open: bool = False,
    refuses: Callable[[Sequence[MemoryRow]], MemoryShort | None] | None = None,
) -> Running:
    """Start `engine` and return once it answers.

    Args:
        environ: the environment to take the engine's from.
        on_progress: called on this thread, several times a second.
        on_line: called on a thread of its own with each line that the engine prints, ever.
        on_pid: called on this thread as soon as the engine has a process.
        cancel: once set, the start is called off.
        patience: limits for a start without progress.
        weights_bytes: size of the weights, for the fraction in `Progress`.
        is_open: leave the endpoints without a key if the settings have none. Otherwise a start
            without a key gets a random one of its own.
        refuses: called on a thread of its own with the engine's first table of the memory that it
            will take, if it prints one (`Settings.tells_memory_first`); what it returns ends the
            start, before any weight is read.

    Raises:
        ConfigProblem: settings out of range, or that this engine cannot honour.
        MachineProblem: the port is taken; `MemoryShort` where memory did not suffice.
        FileProblem: the engine found the model file damaged.
        EngineProblem: anything else that kept it from answering, `cancel` among it.

    Whatever ends this call early, Ctrl-C included, leaves no process behind.
    """
    validate_settings(settings)
    if settings.api_key is None and not is_open:
        settings = replace(settings, api_key=Secret(secrets.token_urlsafe(32)))
    launch = engine.launch(settings, environ)
    build = engine.build
    if settings.port:
        check_port(settings.host, settings.port)
    began = time.monotonic()
    watch = Watch(patience or Patience(), weights_bytes)
    first_look = FirstLook(refuses)

    def hear(line: str) -> None:
        watch.on_line(line)
        first_look.on_line(line)
        if on_line:
            on_line(line)

    try:
        process = EngineProcess(launch.argv, launch.env, launch.stdin, hear)
    except OSError as error:
        raise MachineProblem(
            f"the engine's process cannot be made: {error.strerror};"
            " close other programs, or raise the limit (`ulimit -a` shows them)"
        ) from error
    try:
        if on_pid:
            on_pid(process.pid)
        url = _await_ready(process, watch, first_look, settings, build, on_progress, cancel)
    except BaseException:
        process.end(grace_s=0)
        raise
    loaded = loadlog.loaded_from(list(process.lines), build=build, start_s=time.monotonic() - began)
    return Running(process, url, settings, loaded)


def _await_ready(
    process: EngineProcess,
    watch: Watch,
    first_look: FirstLook,
    settings: Settings,
    build: str,
    on_progress: Callable[[Progress], None] | None,
    cancel: threading.Event | None,
) -> str:
    """Poll until the health endpoint says yes. Returns the address."""
    import httpx

    model = settings.model.name
    with httpx.Client(timeout=_HEALTH_TIMEOUT_S, trust_env=False) as client:
        while True:
            if first_look.problem is not None:
                raise first_look.problem
            if process.wait(_POLL_S):
                process.settle()
                raise loadlog.failure(
                    list(process.lines), model=model, engine=build, status=process.exit_status
                )
            port = listening_port(process.pid, settings.port)
            if port and _is_healthy(client, url := _url(settings.host, port)):
                return url
            if cancel and cancel.is_set():
                raise EngineProblem(f"{model}: the start was called off")
            stalled = watch.look(process)
            if stalled:
                raise EngineProblem(
                    f"{model}: the engine {build} made no progress for {stalled:.0f} s"
                    f" while {watch.phase}; it was ended"
                )
            if on_progress:
                on_progress(watch.progress())


def _url(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


def _is_healthy(client: httpx.Client, url: str) -> bool:
    import httpx

    try:
        return client.get(f"{url}/health").status_code == 200
    except httpx.HTTPError:
        return False
