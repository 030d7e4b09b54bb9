"""What every engine offers, and what is known of one before it runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hotset.core.devices import Device
from hotset.core.settings import Settings

__all__ = ["Engine", "EngineInfo", "Launch", "file_identity", "scrubbed"]

# What an engine needs of our environment. Everything else stays out: `LLAMA_ARG_*` would change
# settings behind the plan's back, and keys of other services are none of its business.
_PASSED_NAMES = frozenset(
    {"PATH", "HOME", "USER", "LANG", "LANGUAGE", "TZ", "TMPDIR", "LD_LIBRARY_PATH"}
    | {"CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "GGML_VK_VISIBLE_DEVICES"}
    | {"HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES", "HSA_OVERRIDE_GFX_VERSION"}
    | {"ONEAPI_DEVICE_SELECTOR", "OMP_NUM_THREADS", "OMP_PROC_BIND", "OMP_PLACES"}
    | {"OMP_WAIT_POLICY", "GOMP_SPINCOUNT"}
)
_PASSED_PREFIXES = ("LC_", "XDG_", "VK_", "NVIDIA_", "MESA_", "DYLD_")


# Turns that a waiting thread of libgomp spins before it sleeps. With libgomp's own 300,000 the
# threads of an engine wait for each other through whole time slices as soon as anything else runs.
# Decode in tokens/s, 2 threads on 2 cores, idle / beside other work: 300,000 gave 73 / 2,
# 10,000 gave 68 / 6, 1,000 gave 57 / 12, sleeping at once gave 22 / 15.
_SPIN_COUNT = "10000"


def scrubbed(environ: Mapping[str, str]) -> dict[str, str]:
    """The part of the environment that a child gets, plus what every child needs.

    ggml starts a debugger on an abort where it finds one; a served model must just end.
    """
    kept = {
        name: value
        for name, value in environ.items()
        if name in _PASSED_NAMES or name.startswith(_PASSED_PREFIXES)
    }
    if "OMP_WAIT_POLICY" not in kept:
        kept.setdefault("GOMP_SPINCOUNT", _SPIN_COUNT)
    return kept | {"GGML_NO_BACKTRACE": "1"}


def file_identity(path: Path) -> str:
    """Name, size and time of a program or library; its name alone where it cannot be looked at."""
    try:
        found = path.stat()
    except OSError:
        return path.name
    return f"{path.name} {found.st_size} {found.st_mtime_ns}"


@dataclass(frozen=True, slots=True)
class EngineInfo:
    """What an installed engine is and can do.

    Attributes:
        name: "embedded", or the program's path.
        build: version or build number, as the engine states it.
        cpu: instruction sets that it was built for and found.
        devices: its own list; the CPU may or may not be among them.
        has_moe_cache: whether it has llama.cpp's own expert cache (`--moe-cache-mib`).
        backend_api: version of the plugin interface; 0 where it takes no plugins.
    """

    name: str
    build: str
    cpu: str
    devices: tuple[Device, ...]
    has_moe_cache: bool
    backend_api: int


@dataclass(frozen=True, slots=True)
class Launch:
    """A process to start. Secrets are in `env` or `stdin`, never in `argv`."""

    argv: tuple[str, ...]
    env: Mapping[str, str]
    stdin: str


class Engine(ABC):
    """One way to run models. Stateless; safe to use from any thread."""

    name: str

    @property
    @abstractmethod
    def build(self) -> str:
        """Version for messages; cheap. Raises EngineProblem if the engine is not there."""

    @property
    @abstractmethod
    def identity(self) -> str:
        """Tells builds apart, by their files; cheap. What was seen of another build means nothing
        for this one. Raises EngineProblem if the engine is not there."""

    @property
    @abstractmethod
    def library(self) -> Path | None:
        """A shared library with ggml's public functions, as this engine uses them; None where it
        has none that could be opened."""

    @abstractmethod
    def describe(self, environ: Mapping[str, str]) -> EngineInfo:
        """Ask the engine itself; may take a second.

        Raises:
            EngineProblem: it is not there, or does not run on this machine.
        """

    @abstractmethod
    def launch(self, settings: Settings, environ: Mapping[str, str]) -> Launch:
        """Translate settings that have passed `validate_settings`.

        Raises:
            ConfigProblem: for a setting that this engine cannot honour, by name.
            EngineProblem: the engine is not there.
        """
