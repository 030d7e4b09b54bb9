"""The store is refused with one clear line, and never a crash, where it does not fit."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.core.errors import ConfigProblem, EngineProblem
from hotset.store import (
    NativeStore,
    check_embedded,
    check_llama_server,
    child_settings,
    find_native,
)
from store.engines import Engine


def test_a_plugin_for_another_interface_is_refused_by_what_differs(
    engine: Engine, native: NativeStore
) -> None:
    fitting = engine.check().api_version
    others = {version: path for version, path in native.plugins.items() if version != fitting}
    check = engine.check(NativeStore(others, native.preload))
    assert not check.works
    assert "differs from ggml backend interface" in check.reason
    assert "\n" not in check.reason


def test_a_process_without_ggml_is_refused_by_the_function_it_lacks(native: NativeStore) -> None:
    for plugin in native.plugins.values():
        code = "import ctypes, sys; print(ctypes.CDLL(sys.argv[1]).ggml_backend_init())"
        child = subprocess.run(
            [sys.executable, "-c", code, str(plugin)], capture_output=True, text=True, check=True
        )
        assert child.stdout == "0\n"
        assert child.stderr.splitlines() == [
            "hotset: expert store refused: this engine does not offer ggml_init"
        ]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("#!/bin/sh\necho no such option >&2\nexit 3\n", "status 3: no such option"),
        ("#!/bin/sh\nexit 0\n", "status 0: no output"),
        ("not a program", "does not start"),
    ],
)
def test_a_program_that_is_no_engine_is_named_with_what_it_did(
    native: NativeStore, tmp_path: Path, content: str, said: str
) -> None:
    program = tmp_path / "llama-server"
    program.write_text(content, encoding="utf-8")
    program.chmod(0o755)
    check = check_llama_server(program, os.environ, native)
    assert check.plugin is None
    assert check.api_version is None
    assert check.reason.count(said) == 1
    assert str(program) in check.reason


def test_without_the_native_part_the_remedy_is_named(tmp_path: Path) -> None:
    (tmp_path / "libhotset-ggml3.so").touch()
    with pytest.raises(EngineProblem, match=r"no native part in .* install a C\+\+20 compiler"):
        find_native([tmp_path, tmp_path / "missing"])


def test_the_first_directory_with_a_whole_native_part_is_taken(tmp_path: Path) -> None:
    names = ["libhotset-ggml2.so", "libhotset-ggml10.so", "libhotset-preload.so"]
    for name in [*names, "libhotset-ggml3.so.old", "libhotset-ggmlx.so"]:
        (tmp_path / name).touch()
    found = find_native([tmp_path / "missing", tmp_path])
    assert [version for version, _ in found.newest_first()] == [10, 2]
    assert found.preload == tmp_path / "libhotset-preload.so"


def test_paths_that_the_settings_cannot_carry_are_refused(tmp_path: Path) -> None:
    plugin = tmp_path / "plugin.so"
    native = NativeStore({3: plugin}, tmp_path / "preload.so")
    with pytest.raises(ConfigProblem, match="':'"):
        child_settings(
            native, plugin, [Path("/models/a.gguf"), Path("/models/b:c.gguf")], ram_bytes=0
        )
    spaced = NativeStore({3: plugin}, Path("/my programs/preload.so"))
    with pytest.raises(ConfigProblem, match="' '"):
        child_settings(spaced, plugin, [Path("/a.gguf")], ram_bytes=0)


def test_an_engine_that_is_tried_gets_the_given_environment_and_no_more(
    native: NativeStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOTSET_API_KEY", "a secret")
    program = tmp_path / "llama-server"
    seen = tmp_path / "seen"
    program.write_text(f"#!/bin/sh\n/usr/bin/env > {seen}\n", encoding="utf-8")
    program.chmod(0o755)
    check_llama_server(program, {"GIVEN": "1"}, native)
    names = {line.partition("=")[0] for line in seen.read_text().splitlines()}
    assert {"GIVEN", "GGML_BACKEND_PATH"} <= names
    assert "HOTSET_API_KEY" not in names


def test_the_embedded_engine_without_a_native_part_says_so() -> None:
    check = check_embedded(
        os.environ, NativeStore({3: Path("/missing/plugin.so")}, Path("/missing"))
    )
    assert not check.works
    assert "does not take the expert store /missing/plugin.so" in check.reason
