"""`hotset store`, and `--trace`: a routing trace from a real answer to a table."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from clikit import assert_refused, background, environment, hotset
from enginekit import can_run_llama_server, llama_server, smollm2
from hotset.lab.locality import summarize
from hotset.store import TraceBatch, find_native, read_trace
from store import tracekit
from store.tinymoe import NUM_LAYERS

NUM_EXPERTS = 512  # of the fixture `moe`
LITTLE_RAM = ("--ram", "300MiB", "--ctx", "256")
ASKED = ("hello", "--temp", "0", "--max-tokens", "5", "--threads", "1")


@pytest.fixture(name="needs_native")
def _needs_native() -> None:
    """A test that cannot be where there was no compiler."""
    try:
        find_native()
    except Exception as problem:
        pytest.skip(str(problem))


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("engine", ["embedded", "llama-server"])
def test_an_answer_leaves_the_trace_of_all_its_steps(
    tmp_path: Path, moe: Path, engine: str
) -> None:
    if engine == "llama-server":
        if not can_run_llama_server():
            pytest.skip("this processor lacks AVX-512")
        engine = str(llama_server())
    words = ("run", moe, *ASKED, *LITTLE_RAM, "--engine", engine)
    traced = hotset(*words, "--trace", "routing.trace", home=tmp_path)
    assert traced.code == 0, traced.err
    assert traced.out == hotset(*words, home=tmp_path).out
    trace = tmp_path / "routing.trace"
    assert trace.stat().st_mode & 0o777 == 0o600
    batches = [record for record in read_trace(trace) if isinstance(record, TraceBatch)]
    # Of a whole answer all is there, to the last layer of the last step.
    assert batches[-1].layer == NUM_LAYERS - 1
    prompt = max(batches, key=lambda batch: batch.batch_tokens)
    assert batches[-1].batch - prompt.batch == 4

    shown = hotset("trace", "show", trace, home=tmp_path)
    assert (shown.code, shown.err) == (0, "")
    head, *rows = shown.out.splitlines()
    assert head.split()[:5] == ["LAYER", "EXPERT", "BATCHES", "STEPS", "TOKENS"]
    layers = summarize(read_trace(trace))
    assert [row.split()[0] for row in rows] == [summary.layer.name for summary in layers]
    for row, summary in zip(rows, layers, strict=True):
        assert f" {summary.num_batches} " in row
        assert f" {summary.num_distinct} of {NUM_EXPERTS} " in row
        assert summary.overlap is not None
        assert f" {summary.overlap:.0%} " in row
    told = json.loads(hotset("trace", "show", trace, "--json", home=tmp_path).out)
    assert [layer["num_tokens"] for layer in told] == [summary.num_tokens for summary in layers]
    assert told[0]["layer"]["name"] == "blk.0"


@pytest.mark.usefixtures("needs_native")
def test_a_trace_never_replaces_a_file(tmp_path: Path, moe: Path) -> None:
    precious = tmp_path / "precious.gguf"
    precious.write_text("all my work")
    ended = hotset("run", moe, *ASKED, *LITTLE_RAM, "--trace", precious, "--json", home=tmp_path)
    assert ended.code == 4
    assert ended.out == ""
    assert ended.err_lines[-1] == (
        f"hotset: {precious}: is there already; name a new file for the trace"
    )
    assert precious.read_text() == "all my work"


@pytest.mark.usefixtures("needs_native")
@pytest.mark.parametrize("command", ["run", "serve"])
def test_a_trace_that_cannot_be_made_is_said_before_the_start(
    tmp_path: Path, moe: Path, command: str
) -> None:
    words = (*ASKED[:1], "--json") if command == "run" else ("--port", "0")
    ended = hotset(
        command, moe, *words, *LITTLE_RAM, "--trace", "missing/routing.trace", home=tmp_path
    )
    assert ended.code == 4
    assert ended.err_lines[-1].endswith(
        "missing/routing.trace: the trace cannot be made: No such file or directory"
    )
    assert "starting" not in ended.err


@pytest.mark.usefixtures("needs_native")
def test_nothing_is_left_of_a_trace_when_the_engine_does_not_start(
    tmp_path: Path, moe: Path
) -> None:
    ended = hotset(
        *("run", moe, *ASKED, *LITTLE_RAM, "--trace", "routing.trace"),
        *("--chat-template", "missing.jinja"),
        home=tmp_path,
    )
    assert ended.code == 2
    assert not (tmp_path / "routing.trace").exists()


@pytest.mark.parametrize("command", ["run", "serve"])
def test_without_the_store_there_is_no_trace(tmp_path: Path, moe: Path, command: str) -> None:
    words = ASKED[:1] if command == "run" else ("--port", "0")
    for model, reason in (
        (moe, "this model fits into RAM without it; a smaller --ram brings it in"),
        (smollm2(), "this model has no experts"),
    ):
        ended = hotset(command, model, *words, "--trace", "routing.trace", home=tmp_path)
        assert (ended.code, ended.out) == (4, "")
        assert ended.err_lines[-1] == (
            f"hotset: --trace routing.trace: only the expert store sees the routing; {reason}"
        )
    assert not (tmp_path / "routing.trace").exists()


def test_a_damaged_trace_is_one_line_with_the_place(tmp_path: Path) -> None:
    trace = tmp_path / "routing.trace"
    whole = tracekit.trace([tracekit.layer(0, "blk.0", 4)])
    trace.write_bytes(whole + tracekit.batch(0, 0, [[1, 2]])[:-1])
    for options in ((), ("--json",)):
        ended = hotset("trace", "show", trace, *options, home=tmp_path)
        assert_refused(ended, 2, str(trace), f"damaged at offset {len(whole)}", "cut off")
    assert_refused(hotset("trace", "show", tmp_path, home=tmp_path), 2, "cannot be read")


def test_a_layers_name_cannot_drive_the_terminal(tmp_path: Path) -> None:
    trace = tmp_path / "routing.trace"
    trace.write_bytes(tracekit.trace([tracekit.layer(0, "a\x1b[2Jb", 4)]))
    ended = hotset("trace", "show", trace, home=tmp_path)
    assert ended.code == 0
    assert "\x1b" not in ended.out
    assert ended.out.splitlines()[1].startswith("a[2Jb ")


@pytest.mark.usefixtures("needs_native")
def test_the_status_names_the_plugin_of_each_engine(tmp_path: Path) -> None:
    programs = tmp_path / "bin"
    programs.mkdir()
    (programs / "llama-server").write_text("#!/bin/sh\necho no such option >&2\nexit 3\n")
    (programs / "llama-server").chmod(0o755)
    env = environment(tmp_path, PATH=f"{programs}:/usr/bin:/bin")
    native = find_native()
    shown = hotset("store", "status", home=tmp_path, env=env)
    assert (shown.code, shown.err) == (0, "")
    for path in (*native.plugins.values(), native.preload):
        assert shown.out.count(str(path)) == 1
    assert "engine embedded: loads the plugin for interface 3\n" in shown.out
    assert f"engine {programs}/llama-server: works without the store: " in shown.out
    told = json.loads(hotset("store", "status", "--json", home=tmp_path, env=env).out)
    assert told["native"]["preload"] == str(native.preload)
    assert [(engine["works"], engine["api_version"]) for engine in told["engines"]] == [
        (True, 3),
        (False, None),
    ]
    assert "no such option" in told["engines"][1]["reason"]


@pytest.mark.parametrize(("group", "command"), [("store", "status"), ("trace", "record")])
def test_a_group_alone_shows_its_commands(tmp_path: Path, group: str, command: str) -> None:
    alone = hotset(group, home=tmp_path)
    assert (alone.code, alone.err) == (0, "")
    assert alone.out == hotset(group, "--help", home=tmp_path).out
    assert command in alone.out


@pytest.mark.usefixtures("needs_native")
def test_status_tells_of_a_running_engine_layer_by_layer(tmp_path: Path, moe: Path) -> None:
    with background("serve", moe, *LITTLE_RAM, "--port", "0", home=tmp_path) as serve:
        serve.await_note("ready in ")
        told = json.loads(hotset("store", "status", "--json", home=tmp_path).out)["running"]
        # Others of this user may run beside this test.
        (counters,) = (each["counters"] for each in told if each["pid"] == serve.process.pid)
        lines = hotset("store", "status", "--layers", home=tmp_path).out.splitlines()
    assert counters["state"] == "open"
    layers = counters["layers"]
    assert [layer["name"] for layer in layers] == [f"blk.{i}" for i in range(NUM_LAYERS)]
    for number in ("num_requests", "read_bytes", "resident_bytes"):
        assert 0 < counters[number] == sum(layer[number] for layer in layers)
    title = f"running with the store: process {serve.process.pid}, "
    (at,) = (i for i, line in enumerate(lines) if line.startswith(title))
    assert lines[at + 1].endswith(f" {counters['num_evictions']:,} out")
    assert lines[at + 2].split() == [
        *("LAYER", "EXPERTS", "IN", "RAM", "ASKED", "HITS", "READ", "WAITED", "OUT")
    ]
    for row, layer in zip(lines[at + 3 :], layers, strict=False):
        assert row.split()[0] == layer["name"]
        assert f" {layer['num_requests']:,} " in row
    again = json.loads(hotset("store", "status", "--json", home=tmp_path).out)["running"]
    assert serve.process.pid not in [each["pid"] for each in again]
