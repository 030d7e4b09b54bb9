"""Does the expert store load in this engine, and if not, why?"""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import EngineProblem
from hotset.store.child import BUFFER_TYPE
from hotset.store.locate import NativeStore, find_native

__all__ = ["StoreCheck", "check_embedded", "check_llama_server"]

_TIMEOUT_S = 60.0


@dataclass(frozen=True, slots=True)
class StoreCheck:
    """The answer for one engine.

    `plugin` and `api_version` name what loaded, or are None; `reason` is one line that says why
    nothing did, and empty otherwise.
    """

    engine: str
    plugin: Path | None
    api_version: int | None
    reason: str

    @property
    def works(self) -> bool:
        return self.plugin is not None


def check_embedded(environ: Mapping[str, str], native: NativeStore | None = None) -> StoreCheck:
    """Try the plugins in the embedded engine, each in a process of its own.

    `environ` is all that such a process gets of an environment: no keys of other services.
    """

    def attempt(plugin: Path) -> _Attempt:
        return _run([sys.executable, "-m", "hotset.store.embedded", str(plugin)], environ)

    return _check("embedded", native, attempt)


def check_llama_server(
    binary: Path, environ: Mapping[str, str], native: NativeStore | None = None
) -> StoreCheck:
    """Try the plugins in the llama-server at `binary`, by having it list its devices.

    `environ` as for `check_embedded`.
    """

    def attempt(plugin: Path) -> _Attempt:
        env = {**environ, "GGML_BACKEND_PATH": str(plugin)}
        return _run([str(binary), "--list-devices"], env)

    return _check(str(binary), native, attempt)


@dataclass(frozen=True, slots=True)
class _Attempt:
    loaded: bool
    reason: str


def _check(
    engine: str, native: NativeStore | None, attempt: Callable[[Path], _Attempt]
) -> StoreCheck:
    try:
        found = native or find_native()
    except EngineProblem as problem:
        return StoreCheck(engine, None, None, problem.message)
    reasons = []
    for version, plugin in found.newest_first():
        result = attempt(plugin)
        if result.loaded:
            return StoreCheck(engine, plugin, version, "")
        reasons.append(result.reason)
    # An engine that fails for a reason of its own says the same to every plugin.
    return StoreCheck(engine, None, None, "; ".join(dict.fromkeys(reasons)))


def _run(command: Sequence[str], environment: Mapping[str, str]) -> _Attempt:
    try:
        child = subprocess.run(
            command,
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            errors="replace",
            timeout=_TIMEOUT_S,
            check=False,
        )
    except OSError as error:
        return _Attempt(False, f"{command[0]} does not start: {error.strerror}")
    except subprocess.TimeoutExpired:
        return _Attempt(False, f"{command[0]} gave no answer within {_TIMEOUT_S:.0f} s")
    lines = [line.strip() for line in (child.stdout + "\n" + child.stderr).splitlines()]
    if child.returncode == 0 and any(_names_device(line) for line in lines):
        return _Attempt(True, "")
    for line in lines:
        # Not only at the beginning: the engine's logger may just have begun a line of its own.
        _, found, said = line.partition("hotset: ")
        if found:
            return _Attempt(False, said)
    last = next((line for line in reversed(lines) if line), "no output")
    return _Attempt(False, f"{command[0]} ended with status {child.returncode}: {last}")


def _names_device(line: str) -> bool:
    return line.partition(":")[0] == BUFFER_TYPE
