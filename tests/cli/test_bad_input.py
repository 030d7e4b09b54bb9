"""Files, ports and machines that will not do: one clear line, the right code, nothing left."""

from __future__ import annotations

import os
import shutil
import socket
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

import ggufkit
from clikit import assert_refused, hotset
from hotset.gguf.synth.models import write_tiny

FILE, MACHINE, CONFIG, ENGINE = 2, 3, 4, 5
_LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:" + b"a" * 64 + b"\nsize 99\n"


def _missing(folder: Path) -> Path:
    return folder / "missing.gguf"


def _empty(folder: Path) -> Path:
    path = folder / "empty.gguf"
    path.touch()
    return path


def _truncated(folder: Path) -> Path:
    (path,) = write_tiny("qwen3moe", folder / "cut.gguf")
    os.truncate(path, path.stat().st_size - 1000)
    return path


def _cut_in_the_header(folder: Path) -> Path:
    (path,) = write_tiny("qwen3moe", folder / "cut.gguf")
    os.truncate(path, 1000)
    return path


def _containing(data: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        path = folder / "model.gguf"
        path.write_bytes(data)
        return path

    return write


def _f64_router(folder: Path) -> Path:
    model = ggufkit.chat_model("qwen3moe")
    router = ggufkit.Tensor("blk.0.ffn_gate_inp.weight", (64, 8), ggufkit.F64)
    return replace(model, tensors=(*model.tensors, router)).write(folder / "router.gguf")


def _wrong_second_shard(folder: Path) -> Path:
    """The second file belongs to another set: one more block, so other tensors."""
    first, second, *_ = write_tiny("qwen3moe", folder / "model", n_shards=2)
    (folder / "other").mkdir()
    _, other, *_ = write_tiny("llama", folder / "other" / "model", n_shards=2)
    shutil.copy(other, second)
    return first


def _lost_second_shard(folder: Path) -> Path:
    first, second = write_tiny("qwen3moe", folder / "model", n_shards=2)
    second.unlink()
    return first


def _fifo(folder: Path) -> Path:
    path = folder / "fifo.gguf"
    os.mkfifo(path)
    return path


def _loop(folder: Path) -> Path:
    path = folder / "loop.gguf"
    path.symlink_to(path)
    return path


def _long_name(folder: Path) -> Path:
    return folder / ("x" * 300)


UNUSABLE: list[tuple[Callable[[Path], Path], str]] = [
    (_missing, "missing.gguf: no such file"),
    (_empty, "empty"),
    (_truncated, "incomplete file"),
    (_cut_in_the_header, "cut.gguf: "),
    (_containing(_LFS), "LFS"),
    (_containing(b"<!DOCTYPE html>\n<html><body>404</body></html>"), "a web page"),
    (_containing(b"\x89PNG\r\n\x1a\n" + bytes(4000)), "model.gguf: "),
    (_containing(b"GGUF" + b"\xff" * 4000), "model.gguf: "),
    (_f64_router, "F64"),
    (_wrong_second_shard, "00002"),
    (_lost_second_shard, "00002"),
    (_fifo, "fifo.gguf: "),
    (_loop, "loop.gguf: "),
    (_long_name, "name too long"),
]


@pytest.mark.parametrize(("make", "reason"), UNUSABLE)
def test_a_file_that_cannot_be_used_is_one_line_whatever_reads_it(
    tmp_path: Path, make: Callable[[Path], Path], reason: str
) -> None:
    path = make(tmp_path)
    inspected = hotset("inspect", path, home=tmp_path)
    ran = hotset("run", path, "hi", home=tmp_path)
    assert_refused(ran, FILE, reason)
    if inspected.out:  # it can be read, so that it is described; the reason is among the facts
        assert (inspected.code, inspected.err) == (FILE, "")
        assert reason in inspected.out
    else:
        assert inspected == ran


@pytest.mark.parametrize("command", ["inspect", "run"])
def test_an_unreadable_file_says_so(tmp_path: Path, command: str) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    path.chmod(0)
    # The rights of root reach everywhere; without these two they do not.
    drop = 'exec setpriv --bounding-set -dac_override,-dac_read_search "$@"'
    if os.getuid() == 0 and shutil.which("setpriv") is None:
        pytest.skip("runs as root, who may read every file, and there is no setpriv")
    through = drop if os.getuid() == 0 else ""
    words = (command, path, *(("hi",) if command == "run" else ()))
    refused = hotset(*words, home=tmp_path, through=through)
    assert_refused(refused, FILE, "tiny.gguf: ", "ermission denied")


def test_a_folder_without_a_model_or_with_several_says_so(tmp_path: Path) -> None:
    assert_refused(hotset("inspect", tmp_path, home=tmp_path), FILE, "no .gguf file")
    assert_refused(hotset("run", tmp_path, "hi", home=tmp_path), FILE, "no chat model")
    for name in ("one.gguf", "two.gguf"):
        write_tiny("qwen3moe", tmp_path / name, seed=len(name))
    several = hotset("run", tmp_path, "hi", home=tmp_path)
    assert_refused(several, CONFIG, "one.gguf, two.gguf", "name one")
    assert hotset("inspect", tmp_path, home=tmp_path).out.count("chat model") == 2


def test_a_folder_of_damaged_files_has_no_chat_model(tmp_path: Path) -> None:
    _truncated(tmp_path)
    assert_refused(hotset("run", tmp_path, "hi", home=tmp_path), FILE, "no chat model")


def test_an_architecture_that_nobody_knows_is_described_and_not_run(tmp_path: Path) -> None:
    path = ggufkit.chat_model("zyxwv").write(tmp_path / "new.gguf")
    inspected = hotset("inspect", path, home=tmp_path)
    assert inspected.code == 0
    assert "zyxwv" in inspected.out
    ran = hotset("run", path, "hi", home=tmp_path)
    assert (ran.code, ran.out) == (ENGINE, "")
    complaint = ran.err_lines[-1]
    assert complaint.startswith("hotset: new.gguf: architecture 'zyxwv' is unknown to the engine")
    assert sum(line.startswith("hotset: ") for line in ran.err_lines) == 1


@pytest.mark.parametrize("kind", ["nomic-bert", "mmproj"])
def test_a_file_of_another_kind_is_named_as_what_it_is(tmp_path: Path, kind: str) -> None:
    (path,) = write_tiny(kind, tmp_path / "other.gguf")
    assert_refused(hotset("run", path, "hi", home=tmp_path), FILE, "other.gguf: ", "no chat model")


def test_a_port_in_use_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    with socket.create_server(("127.0.0.1", 0)) as holder:
        port = holder.getsockname()[1]
        refused = hotset("serve", path, "--port", str(port), home=tmp_path)
    assert_refused(refused, MACHINE, f"port {port} is in use")


def test_memory_that_the_plan_lacks_is_refused_before_the_engine_starts(tmp_path: Path) -> None:
    (path,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    for command in (("run", path, "hi"), ("serve", path, "--port", "0")):
        refused = hotset(*command, "--ctx", "2000000000", "--kv", "f32", home=tmp_path)
        assert_refused(refused, MACHINE, "of RAM", "--ctx")


def test_memory_that_the_engine_is_denied_is_a_machine_problem(tmp_path: Path) -> None:
    """A limit on address space, which no plan can see: the load itself fails."""
    words = ("run", "smollm2", "hi", "--threads", "1")
    refused = hotset(*words, home=tmp_path, through='ulimit -v 400000; exec "$@"')
    assert (refused.code, refused.out) == (MACHINE, ""), refused
    assert refused.err_lines[-1].startswith("hotset: SmolLM2-135M-Instruct.Q4_1.gguf: not enough")
    assert sum(line.startswith("hotset: ") for line in refused.err_lines) == 1
    assert "Traceback" not in refused.err
