"""A `llama-server` program that the user has: any build, any graphics card."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path

from hotset.core.devices import Device
from hotset.core.errors import ConfigProblem, EngineProblem
from hotset.core.settings import Settings
from hotset.engine.base import Engine, EngineInfo, Launch, file_identity, scrubbed

__all__ = ["LlamaServerEngine", "find_llama_server", "planned_arguments"]

_PROBE_TIMEOUT_S = 60.0
_VERSION = re.compile(r"^version: (?P<version>.+)$", re.MULTILINE)
_DEVICE = re.compile(
    r"^\s+(?P<name>\w+): (?P<what>.+?)"
    r"(?: \((?P<mib>\d+) MiB(?:, (?P<free>\d+) MiB free)?[^()]*\))?$",
    re.MULTILINE,
)
_LOAD_MODES = {"mmap": "mmap", "none": "none", "mlock": "mmap+mlock"}


def find_llama_server(path: str) -> Path | None:
    """The first `llama-server` on the search path."""
    found = shutil.which("llama-server", path=path)
    return Path(found) if found else None


class LlamaServerEngine(Engine):
    """One program. Its capabilities are read from its own `--help`, once.

    Args:
        program: the executable.
    """

    name = "llama-server"

    def __init__(self, program: Path) -> None:
        self.program = program.absolute()

    @cached_property
    def _help(self) -> str:
        return self._ask("--help", {})

    @cached_property
    def build(self) -> str:
        match = _VERSION.search(self._ask("--version", {}))
        if match is None:
            raise EngineProblem(
                f"engine {self.program}: it states no version, so it is no llama-server;"
                " name another with --engine"
            )
        return f"llama-server {match['version']}"

    @property
    def identity(self) -> str:
        return f"llama-server {file_identity(self.program)}"

    @property
    def library(self) -> Path | None:
        beside = self.program.resolve().with_name("libggml.so")
        return beside if beside.is_file() else None

    def describe(self, environ: Mapping[str, str]) -> EngineInfo:
        listed = self._ask("--list-devices", environ)
        devices = tuple(
            Device(
                match["name"],
                match["what"],
                int(match["mib"] or 0) << 20,
                int(match["free"]) << 20 if match["free"] else None,
            )
            for match in _DEVICE.finditer(listed)
        )
        return EngineInfo(
            name=str(self.program),
            build=self.build,
            cpu="",
            devices=devices,
            has_moe_cache="--moe-cache-mib" in self._help,
            backend_api=_backend_api(self.library, environ),
        )

    def launch(self, settings: Settings, environ: Mapping[str, str]) -> Launch:
        self._check_program()
        self._check_capabilities(settings)
        env = scrubbed(environ)
        if settings.api_key:
            env["LLAMA_API_KEY"] = settings.api_key.reveal()
        arguments = self._arguments(settings)
        if settings.expert_store:
            env |= settings.expert_store.environment
            env |= settings.expert_store.server_environment
            arguments += settings.expert_store.server_arguments
        return Launch((str(self.program), *arguments), env, "")

    def _arguments(self, settings: Settings) -> list[str]:
        words = planned_arguments(settings)
        own = {
            "--alias": settings.alias,
            "--host": settings.host,
            "--port": settings.port,
            "--log-verbosity": 4,
            "--log-colors": "off",
        }
        if settings.slot_folder is not None:
            own["--slot-save-path"] = f"{settings.slot_folder}/"
        if settings.chat_template is not None:
            own["--chat-template"] = settings.chat_template
        words += [word for name, value in own.items() for word in (name, str(value))]
        words += self._load_mode(settings.load_mode)
        # Older and newer builds differ in these; each is given where the build knows it.
        for known in (
            ["--no-kv-unified"],
            ["--jinja"],
            ["--metrics"],
            ["--offline"],
            ["--no-ui"],
            ["--cors-origins", ""],
            ["--no-cors-credentials"],
        ):
            words += known if re.search(rf"{known[0]}\b", self._help) else []
        for name, is_wanted in (
            ("--embedding", settings.is_embedding),
            ("--no-warmup", not settings.is_warmed_up),
        ):
            words += [name] if is_wanted else []
        return words

    def _check_capabilities(self, settings: Settings) -> None:
        """Refuse what this build would not know."""
        if settings.moe_cache_mib and "--moe-cache-mib" not in self._help:
            raise ConfigProblem(
                f"moe_cache_mib is {settings.moe_cache_mib}, but {self.program.name} has no expert"
                " cache (--moe-cache-mib); use a newer build, or leave it out"
            )

    def _load_mode(self, mode: str) -> list[str]:
        if "--load-mode" in self._help:
            return ["--load-mode", _LOAD_MODES[mode]]
        return {"mmap": ["--mmap"], "none": ["--no-mmap"], "mlock": ["--mmap", "--mlock"]}[mode]

    def _check_program(self) -> None:
        if self.program.is_dir():
            raise EngineProblem(
                f"engine {self.program}: this is a folder; name the program in it with --engine"
            )
        if not self.program.exists():
            raise EngineProblem(f"engine {self.program}: there is no such file")
        if not self.program.is_file():
            raise EngineProblem(
                f"engine {self.program}: it is a device or a pipe; name a program with --engine"
            )
        if not os.access(self.program, os.X_OK):
            raise EngineProblem(
                f"engine {self.program}: it is not executable; `chmod +x` it, or name another"
            )

    def _ask(self, option: str, environ: Mapping[str, str]) -> str:
        """The program's answer to an option that makes it print and leave."""
        self._check_program()
        try:
            done = subprocess.run(
                [str(self.program), option],
                env=scrubbed(environ),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            reason = error.strerror if isinstance(error, OSError) else "it does not answer"
            raise EngineProblem(f"engine {self.program}: `{option}` failed: {reason}") from error
        if done.returncode != 0:
            last = (done.stderr or done.stdout).strip().splitlines()[-1:]
            raise EngineProblem(
                f"engine {self.program}: `{option}` ended with status {done.returncode}:"
                f" {last[0] if last else 'it said nothing'}"
            )
        return done.stdout + done.stderr


def planned_arguments(settings: Settings) -> list[str]:
    """The part of the command line that a plan decides, in words that builds of several years know;
    the load mode is not among them."""
    arguments = {
        "--model": str(settings.model),
        "--ctx-size": settings.context_tokens * settings.slots,
        "--parallel": settings.slots,
        "--batch-size": settings.batch_tokens,
        "--ubatch-size": settings.ubatch_tokens,
        "--cache-type-k": settings.kv_type_k,
        "--cache-type-v": settings.kv_type_v,
        "--flash-attn": settings.flash_attention,
        "--cache-ram": settings.prompt_cache_mib,
        "--ctx-checkpoints": settings.checkpoints,
        # With the context and the layers given it changes nothing: it measures, and prints.
        "--fit": "on" if settings.tells_memory_first else "off",
    }
    optional = {
        "--threads": settings.threads or None,
        "--n-gpu-layers": settings.gpu_layers,
        "--device": _devices(settings),
        "--tensor-split": ",".join(map(str, settings.device_layers)) or None,
        "--n-cpu-moe": settings.cpu_moe_layers or None,
        "--override-tensor": _override(settings.cpu_moe_blocks),
        "--moe-cache-mib": settings.moe_cache_mib or None,
        "--mmproj": settings.projector,
    }
    arguments |= {name: value for name, value in optional.items() if value is not None}
    words = [word for name, value in arguments.items() for word in (name, str(value))]
    for name, is_wanted in (
        ("--no-repack", not settings.is_repacked),
        ("--no-mmproj-offload", settings.projector and not settings.is_projector_on_card),
    ):
        words += [name] if is_wanted else []
    return words


def _devices(settings: Settings) -> str | None:
    """The cards to use. A card that is not named would still compute large batches."""
    if settings.gpu_layers == 0:
        return "none"
    return ",".join(settings.devices) or None


def _override(blocks: tuple[int, ...]) -> str | None:
    """A pattern for the routed experts of these blocks, as `--n-cpu-moe` writes them."""
    if not blocks:
        return None
    numbers = "|".join(map(str, blocks))
    return rf"blk\.({numbers})\.ffn_(up|down|gate|gate_up)_(ch|)exps=CPU"


# First field of any backend's registration, asked in a process of its own: a foreign library may
# do anything when it is loaded.
_API_SCRIPT = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.ggml_backend_reg_get.restype = ctypes.c_void_p
library.ggml_backend_reg_get.argtypes = [ctypes.c_size_t]
library.ggml_backend_reg_count.restype = ctypes.c_size_t
if not library.ggml_backend_reg_count():
    library.ggml_backend_load_all()
registration = library.ggml_backend_reg_get(0)
print(ctypes.cast(registration, ctypes.POINTER(ctypes.c_int))[0] if registration else 0)
"""


def _backend_api(library: Path | None, environ: Mapping[str, str]) -> int:
    """Plugin interface of a build with loadable libraries; 0 for one that is a single file."""
    if library is None:
        return 0
    try:
        done = subprocess.run(
            [sys.executable, "-I", "-S", "-c", _API_SCRIPT, str(library)],
            env=scrubbed(environ),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=_PROBE_TIMEOUT_S,
            check=False,
        )
        return int(done.stdout.strip().splitlines()[-1])
    except (OSError, subprocess.TimeoutExpired, ValueError, IndexError):
        return 0
