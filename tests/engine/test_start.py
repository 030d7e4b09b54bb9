"""Starting an engine: every way it can go wrong is one clear line and leaves nothing behind."""

from __future__ import annotations

import os
import resource
import signal
import socket
import subprocess
import threading
from contextlib import suppress
from pathlib import Path

import psutil
import pytest

from enginekit import (
    fake_engine,
    free_port,
    living_descendants,
    real_engines,
    settings_for,
    smollm2,
)
from hotset.core.errors import (
    ConfigProblem,
    EngineProblem,
    FileProblem,
    HotsetError,
    MachineProblem,
)
from hotset.core.settings import Secret
from hotset.engine import engine_named
from hotset.engine.embedded import EmbeddedEngine
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.start import start
from hotset.engine.watch import Patience, Progress

ENVIRONMENT = dict(os.environ)
ENGINES = [pytest.param(engine, id=engine.name) for engine in real_engines()]


def fake_start(folder: Path, behaviour: str, patience: Patience | None = None) -> None:
    """Start a misbehaving engine, and make sure that nothing of it is left afterwards."""
    model = folder / "model.gguf"
    model.touch()
    settings = settings_for(model, port=free_port())
    try:
        start(fake_engine(folder, behaviour), settings, ENVIRONMENT, patience=patience).stop()
    finally:
        assert living_descendants() == []


def test_an_engine_that_hangs_is_given_up_once_it_shows_no_sign_of_life(tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match=r"model.gguf.*made no progress.*it was ended"):
        fake_start(tmp_path, "time.sleep(600)", Patience(idle_s=0.5))


def test_a_start_can_be_called_off_from_another_thread_and_leaves_nothing(tmp_path: Path) -> None:
    model = tmp_path / "model.gguf"
    model.touch()
    cancel, pids, lines = threading.Event(), list[int](), list[str]()

    def hear(line: str) -> None:
        lines.append(line)
        cancel.set()

    engine = fake_engine(tmp_path, 'say("on my way"); time.sleep(600)')
    with pytest.raises(EngineProblem, match=r"model.gguf: the start was called off"):
        start(
            engine,
            settings_for(model, port=free_port()),
            ENVIRONMENT,
            on_line=hear,
            on_pid=pids.append,
            cancel=cancel,
        )
    assert lines == ["on my way"]
    assert not psutil.pid_exists(pids[0])
    assert living_descendants() == []


def test_an_engine_that_is_busy_without_any_other_sign_is_given_up_later(tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match="made no progress"):
        fake_start(tmp_path, "while True: pass", Patience(idle_s=0.5, busy_s=1.5))


def test_a_slow_start_that_moves_is_waited_for(tmp_path: Path) -> None:
    slow = "for i in range(8):\n    say(f'step {i}')\n    time.sleep(0.3)\nserve()"
    fake_start(tmp_path, slow, Patience(idle_s=1.0))


def test_the_phase_at_which_it_hung_is_named(tmp_path: Path) -> None:
    behaviour = "say('0.00.1.2 I cmn  x: warming up the model with an empty run'); time.sleep(600)"
    with pytest.raises(EngineProblem, match="while warming up"):
        fake_start(tmp_path, behaviour, Patience(idle_s=0.5))


LOADING = "E llama_model_load: error loading model: "
NO_VRAM = "E ggml_backend_cuda_buffer_type_alloc_buffer: cudaMalloc failed: out of memory"


@pytest.mark.parametrize(
    ("last_words", "kind", "message"),
    [
        (f"{LOADING}unknown model architecture: 'new'", EngineProblem, "architecture 'new' is unk"),
        (f"{LOADING}missing tensor 'output.weight'", FileProblem, "missing tensor 'output.weight'"),
        (NO_VRAM, MachineProblem, "not enough memory"),
        ("E start: couldn't bind HTTP server socket", MachineProblem, "port"),
        ("E something nobody has seen before failed", EngineProblem, "nobody has seen before"),
    ],
)
def test_the_engines_last_words_decide_what_kind_of_problem_it_is(
    tmp_path: Path, last_words: str, kind: type[HotsetError], message: str
) -> None:
    with pytest.raises(kind, match=message):
        fake_start(tmp_path, f"say({'0.00.1.2 ' + last_words!r}); sys.exit(1)")


def test_a_crash_is_reported_with_its_signal_and_without_the_command_line(tmp_path: Path) -> None:
    with pytest.raises(EngineProblem, match="killed by signal 11") as caught:
        fake_start(tmp_path, "os.kill(os.getpid(), 11)")
    assert "--ctx-size" not in caught.value.message


def test_a_program_that_is_missing_or_no_program_is_named(tmp_path: Path) -> None:
    plain = tmp_path / "plain"
    plain.write_text("not a program")
    refused = (
        (tmp_path / "absent", "no such file"),
        (plain, "not executable"),
        (Path(os.devnull), "a device or a pipe"),
        (tmp_path, "this is a folder"),
        (Path("/bin/true"), "states no version"),
    )
    for program, reason in refused:
        with pytest.raises(EngineProblem, match=reason):
            start(LlamaServerEngine(program), settings_for(smollm2()), ENVIRONMENT)
    plain.chmod(0o755)
    with pytest.raises(EngineProblem, match=r"plain: .*(Exec format|version)"):
        start(LlamaServerEngine(plain), settings_for(smollm2()), ENVIRONMENT)
    with pytest.raises(EngineProblem, match="none on the PATH"):
        engine_named("llama-server", str(tmp_path))


def test_the_key_is_not_on_the_command_line_and_the_environment_is_scrubbed(
    tmp_path: Path,
) -> None:
    secret = "very-secret-key"
    environment = {"PATH": "/usr/bin", "LLAMA_ARG_CTX_SIZE": "7", "OPENAI_API_KEY": "other"}
    for engine in (EmbeddedEngine(), fake_engine(tmp_path, "")):
        settings = settings_for(smollm2(), api_key=Secret(secret))
        launch = engine.launch(settings, environment)
        assert secret not in " ".join(launch.argv)
        assert secret in launch.stdin + "".join(launch.env.values())
        assert not {"LLAMA_ARG_CTX_SIZE", "OPENAI_API_KEY"} & set(launch.env)
        assert secret not in repr(settings)


def test_threads_that_wait_sleep_soon_unless_the_user_decides(tmp_path: Path) -> None:
    settings = settings_for(smollm2())
    for given, expected in (
        ({}, {"GOMP_SPINCOUNT": "10000"}),
        ({"GOMP_SPINCOUNT": "7"}, {"GOMP_SPINCOUNT": "7"}),
        ({"OMP_WAIT_POLICY": "passive"}, {"OMP_WAIT_POLICY": "passive"}),
    ):
        env = fake_engine(tmp_path, "").launch(settings, given).env
        names = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY")
        assert {name: env[name] for name in names if name in env} == expected


def test_a_port_in_use_is_refused_before_the_start_and_its_holder_named() -> None:
    with socket.socket() as holder:
        holder.bind(("127.0.0.1", 0))
        holder.listen()
        port = holder.getsockname()[1]
        settings = settings_for(smollm2(), port=port)
        with pytest.raises(MachineProblem, match=rf"port {port} is in use by pid {os.getpid()} "):
            start(EmbeddedEngine(), settings, ENVIRONMENT)
    assert living_descendants() == []


@pytest.mark.parametrize("host", ["m\u00fcnchen..example", "\u00fc" * 64])
def test_a_host_that_is_no_name_is_refused(host: str) -> None:
    settings = settings_for(smollm2(), host=host, port=4, api_key=Secret("k"))
    with pytest.raises(ConfigProblem, match="no host name"):
        start(EmbeddedEngine(), settings, ENVIRONMENT)


def test_a_machine_that_gives_no_more_files_is_named_as_the_cause() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    engine, settings = EmbeddedEngine(), settings_for(smollm2())
    assert engine.build
    resource.setrlimit(resource.RLIMIT_NOFILE, (len(os.listdir("/proc/self/fd")) + 2, hard))
    try:
        with pytest.raises(MachineProblem, match="cannot be made: Too many open files"):
            start(engine, settings, ENVIRONMENT)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert living_descendants() == []


@pytest.mark.parametrize("template", ["{% if x %} never closed", "{{ raise_exception('boom') }}"])
@pytest.mark.parametrize("engine", ENGINES)
def test_a_broken_template_is_named_as_the_cause(
    engine: EmbeddedEngine | LlamaServerEngine, template: str
) -> None:
    with pytest.raises(FileProblem, match="chat template") as caught:
        start(engine, settings_for(smollm2(), chat_template=template), ENVIRONMENT)
    assert ("boom" in caught.value.message) == ("boom" in template)


def test_an_address_of_another_machine_is_refused() -> None:
    settings = settings_for(smollm2(), host="192.0.2.1", port=4, api_key=Secret("k"))
    with pytest.raises(MachineProblem, match=r"cannot listen on 192\.0\.2\.1"):
        start(EmbeddedEngine(), settings, ENVIRONMENT)


@pytest.mark.parametrize("engine", ENGINES)
def test_a_context_larger_than_memory_is_a_machine_problem(
    engine: EmbeddedEngine | LlamaServerEngine,
) -> None:
    settings = settings_for(smollm2(), context_tokens=100_000_000)
    with pytest.raises(MachineProblem, match="not enough memory"):
        start(engine, settings, ENVIRONMENT)
    assert living_descendants() == []


@pytest.mark.parametrize("engine", ENGINES)
def test_a_truncated_file_that_reaches_the_engine_is_no_success(
    engine: EmbeddedEngine | LlamaServerEngine, tmp_path: Path
) -> None:
    cut = tmp_path / "cut.gguf"
    cut.write_bytes(smollm2().read_bytes()[:3_000_000])
    with pytest.raises(HotsetError, match=r"cut\.gguf"):
        start(engine, settings_for(cut), ENVIRONMENT)
    assert living_descendants() == []


def test_the_embedded_engine_refuses_what_it_cannot_honour() -> None:
    with pytest.raises(ConfigProblem, match="gpu_layers"):
        start(EmbeddedEngine(), settings_for(smollm2(), gpu_layers=3), ENVIRONMENT)


def test_interrupting_a_start_leaves_nothing() -> None:
    """Ctrl-C at the first sign of progress, when the engine is in the middle of loading."""

    def interrupt(progress: Progress) -> None:
        del progress
        os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        start(EmbeddedEngine(), settings_for(smollm2()), ENVIRONMENT, on_progress=interrupt)
    assert living_descendants() == []


def test_many_engines_at_once_each_get_a_port_and_a_key_of_their_own() -> None:
    running = []
    failed: list[BaseException] = []

    def one() -> None:
        try:
            running.append(start(EmbeddedEngine(), settings_for(smollm2()), ENVIRONMENT))
        except BaseException as error:
            failed.append(error)

    threads = [threading.Thread(target=one) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    try:
        assert failed == []
        assert len({r.url for r in running}) == 4
        keys = {r.api_key.reveal() for r in running if r.api_key}
        assert len(keys) == 4
    finally:
        for one_running in running:
            one_running.stop(grace_s=10)
    assert living_descendants() == []
    assert not any(psutil.pid_exists(r.pid) for r in running)


def test_the_cause_of_a_failure_is_written_even_where_nobody_reads_yet(tmp_path: Path) -> None:
    """The engine's log has a thread of its own; the process must not end before that thread has."""
    model = tmp_path / "model.gguf"
    model.write_bytes(b"no model")
    launch = EmbeddedEngine().launch(settings_for(model, port=free_port()), ENVIRONMENT)
    reading, writing = os.pipe()
    os.set_blocking(writing, False)
    filled = 0
    with suppress(BlockingIOError):
        while True:
            filled += os.write(writing, b"\n" * 512)
    os.set_blocking(writing, True)
    worker = subprocess.Popen(
        launch.argv, env=dict(launch.env), stdin=subprocess.PIPE, stderr=writing, text=True
    )
    os.close(writing)
    with suppress(subprocess.TimeoutExpired):
        worker.communicate(launch.stdin, timeout=2)
    with open(reading, "rb") as log:
        said = log.read()[filled:]
    assert worker.wait() == 1
    assert b"failed to load model" in said
