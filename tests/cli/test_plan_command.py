"""`hotset plan`: the screen, the same as JSON, a command line, the sums, and what is refused."""

from __future__ import annotations

import json
import os
import pty
import re
import shlex
import subprocess
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from clikit import COMMAND, assert_refused, environment, hotset
from enginekit import can_run_llama_server, llama_server
from ggufkit import Gguf, Tensor, number, text
from hotset.core.units import GIB, MIB, format_bytes, format_count
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_fullscale, write_tiny

CARD = ("--gpu", "16GiB,RX 9070 XT", "--gpu-used", "1.6GiB", "--pcie", "5x16")
PC = (
    "--ram",
    "32GiB",
    "--ram-used",
    "7GiB",
    "--ram-bw",
    "60GB/s",
    "--disk",
    "3GB/s",
    "--cores",
    "8",
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("models")


@pytest.fixture(scope="module")
def model(folder: Path) -> Path:
    """Qwen3.6-35B-A3B in 4 bits at full size, with a projector beside it."""
    path = write_fullscale("qwen3.6-35b-a3b", folder / "Qwen3.6-35B-A3B.gguf", mix="IQ4_XS")
    keys = {
        "general.architecture": text("clip"),
        "clip.projector_type": text("qwen3vl_merger"),
        "clip.vision.projection_dim": number("u32", 2048),
        "clip.vision.embedding_length": number("u32", 1152),
        "clip.vision.feed_forward_length": number("u32", 4304),
        "clip.vision.image_size": number("u32", 768),
        "clip.vision.patch_size": number("u32", 16),
    }
    tensors = (Tensor("v.patch_embd.weight", (1024, 1024)), Tensor("mm.2.weight", (2048, 2048)))
    Gguf(tuple(keys.items()), tensors).write(folder / "mmproj-F16.gguf")
    return path


def facts(home: Path, *words: str | Path) -> Any:
    ended = hotset("plan", *words, "--json", home=home)
    assert ended.code == 0, ended
    return json.loads(ended.out)


def test_the_screen_gives_the_answer_first_and_fits_on_one(model: Path, tmp_path: Path) -> None:
    ended = hotset("plan", model, *CARD, *PC, home=tmp_path)
    assert (ended.code, ended.err) == (0, "")
    lines = ended.out.splitlines()
    assert len(lines) <= 24
    assert all(len(line) <= 160 for line in lines)
    assert lines[0].startswith(
        "Qwen3.6-35B-A3B · mostly IQ4_XS · 17.4 GiB · 40 blocks, 256 experts"
    )
    assert "projector found" in lines[0]
    assert lines[1] == (
        "on RX 9070 XT 16.0 GiB (1.6 GiB in use) · 32.0 GiB RAM (25.0 GiB free) · "
        + lines[1].rsplit("· ", 1)[1]
    )
    assert "context 262,144 (all of it)   KV q8_0   1 slot   vision yes" in ended.out
    assert "ready in about 7 s from a cold disk" in ended.out  # 17.4 GiB at 3 GB/s
    assert "instead of f16, which would move" in ended.out
    assert "Other choices:" in ended.out
    assert "1.0 GiB of each card is left alone (--reserve)." in ended.out
    assert "█" not in ended.out  # bars are for terminals


def test_on_a_terminal_there_are_bars(model: Path, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with subprocess.Popen(
        [*COMMAND, "plan", str(model), *CARD, *PC], env=environment(tmp_path), stdout=theirs
    ) as process:
        os.close(theirs)
        shown = b""
        try:
            while piece := os.read(ours, 1 << 16):
                shown += piece
        except OSError:  # the other end is closed
            pass
        assert process.wait() == 0
    os.close(ours)
    assert "█ dense" in shown.decode()


def test_the_json_tells_the_same_as_the_screen(model: Path, tmp_path: Path) -> None:
    told = facts(tmp_path, model, *CARD, *PC)
    shown = hotset("plan", model, *CARD, *PC, home=tmp_path).out
    assert f"context {format_count(told['context_tokens'])}" in shown
    assert f"KV {told['kv_type']}" in shown
    assert f"ubatch {told['ubatch_tokens']}" in shown
    speed = told["decode_tokens_per_s"]
    assert f"decode {speed['low']:,.0f}-{speed['high']:,.0f} tok/s" in shown
    (taken,) = told["footprint"]["devices"]
    total, budget = taken["total_bytes"] / GIB, taken["budget_bytes"] / GIB
    assert re.search(rf"{taken['device']} +{total:.1f} of {budget:.1f} GiB", shown)
    for reason in told["reasons"]:
        assert reason in shown
    for other in told["alternatives"]:
        assert re.search(rf"{re.escape(other['option'])} +{re.escape(other['effect'])}", shown)
    assert 1 / speed["likely"] == pytest.approx(sum(t["seconds"] for t in told["decode_terms"]))
    assert told["projector"].endswith("mmproj-F16.gguf")


def test_without_options_the_plan_is_for_this_machine(tmp_path: Path) -> None:
    (tiny,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    told = facts(tmp_path, tiny, "--engine", "embedded")
    assert told["footprint"]["devices"] == []
    assert told["context_tokens"] == 2048
    assert told["threads"] <= (os.cpu_count() or 1)
    changed = facts(tmp_path, tiny, "--engine", "embedded", "--ram", "64GiB", "--ram-used", "60GiB")
    assert changed["ram_available_bytes"] == 4 * GIB


def test_a_model_larger_than_ram_goes_to_the_store_if_the_machine_is_only_described(
    model: Path, tmp_path: Path
) -> None:
    told = facts(tmp_path, model, "--gpu", "none", "--ram", "16GiB", "--ram-used", "3GiB")
    assert told["footprint"]["expert_cache_bytes"] > 5 * GIB
    assert told["is_larger_than_ram"]


def test_several_models_are_planned_one_after_the_other(model: Path, tmp_path: Path) -> None:
    (tiny,) = write_tiny("llama", tmp_path / "tiny.gguf")
    both = hotset("plan", model, tiny, *CARD, *PC, home=tmp_path)
    compared = both.out.split("compared\n")[1].splitlines()
    assert [line.split()[0] for line in compared] == ["Qwen3.6-35B-A3B", "tiny"]
    assert re.search(r"\(\+\d+%\)$", compared[1])
    assert len(facts(tmp_path, model, tiny, *CARD, *PC)) == 2
    assert "vision no" in hotset("plan", model, "--no-vision", *CARD, *PC, home=tmp_path).out


def test_a_name_that_would_break_the_screen_stays_in_its_line(tmp_path: Path) -> None:
    paths: list[Path] = []
    for stem in ("line\nbreak", "es\x1b[31mcape", "turned\N{RIGHT-TO-LEFT OVERRIDE}round"):
        paths += write_tiny("llama", tmp_path / f"{stem}.gguf")
    lines = hotset("plan", *paths, *CARD, *PC, home=tmp_path).out.splitlines()
    assert all(line.isprintable() for line in lines)
    for shown in (r"line\nbreak", r"es\x1b[31mcape", r"turned\u202eround"):
        named = [line for line in lines if shown in line]
        assert len(named) == 2, shown  # at its head, and in the comparison
    notes = hotset("run", paths[0], "hi", "--max-tokens", "1", home=tmp_path).err_lines
    assert notes[0].startswith(r"line\nbreak · llama")


def test_wishes_are_law(model: Path, tmp_path: Path) -> None:
    told = facts(
        tmp_path, model, *CARD, *PC, "--ctx", "32768", "--kv", "f16", "--slots", "2", "--ubatch",
        "256", "--cpu-moe", "40", "--no-vision", "--reserve", "2GiB", "--threads", "5",
    )  # fmt: skip
    assert (told["context_tokens"], told["kv_type"], told["slots"]) == (32_768, "f16", 2)
    assert (told["ubatch_tokens"], told["threads"], told["projector"]) == (256, 5, None)
    assert len(told["placement"]["host_moe_units"]) == 40
    (taken,) = told["footprint"]["devices"]
    assert taken["budget_bytes"] == pytest.approx((16 - 1.6 - 2) * GIB, abs=2)


def test_the_sums_are_explained_line_by_line(model: Path, tmp_path: Path) -> None:
    ended = hotset("plan", model, *CARD, *PC, "--explain", home=tmp_path)
    assert ended.code == 0
    assert "full KV, q8_0" in ended.out
    assert "2,720.00 MiB  1 x 262,144 cells" in ended.out
    assert ended.out.count("together") == 2


def test_the_command_line_says_what_the_plan_says(model: Path, tmp_path: Path) -> None:
    told = facts(tmp_path, model, *CARD, *PC)
    words = shlex.split(
        hotset("plan", model, *CARD, *PC, "--argv", "llama-server", home=tmp_path).out
    )
    assert words[0] == "llama-server"
    after = dict(pairwise(words))
    assert after["--model"] == str(model)
    assert after["--ctx-size"] == str(told["context_tokens"])
    assert after["--n-gpu-layers"] == "41"
    hosted = told["placement"]["host_moe_units"]
    assert after["--n-cpu-moe"] == str(len(hosted)) == str(hosted[-1] + 1)
    assert after["--mmproj"].endswith("mmproj-F16.gguf")
    assert ("--no-mmap" in words) == (told["load_mode"] == "none")
    assert "--api-key" not in words


def test_two_cards_are_told_apart_in_the_command_line(model: Path, tmp_path: Path) -> None:
    pair = ("--gpu", "16GiB,RTX 5080", "--gpu", "8GiB,RTX 3070")
    words = shlex.split(
        hotset("plan", model, *pair, *PC, "--argv", "llama-server", home=tmp_path).out
    )
    after = dict(pairwise(words))
    assert after["--device"] == "CUDA0,CUDA1"
    assert sum(map(int, after["--tensor-split"].split(","))) == 41
    none = shlex.split(
        hotset("plan", model, "--gpu", "none", *PC, "--argv", "llama-server", home=tmp_path).out
    )
    after = dict(pairwise(none))
    assert (after["--device"], after["--n-gpu-layers"]) == ("none", "0")


@pytest.mark.skipif(not can_run_llama_server(), reason="no llama-server runs here")
def test_a_stock_llama_server_takes_the_command_line(tmp_path: Path) -> None:
    """It reads every option and then the model, and finds that this one is not there any more."""
    (tiny,) = write_tiny("qwen3moe", tmp_path / "tiny.gguf")
    line = hotset("plan", tiny, "--gpu", "none", *PC, "--argv", "llama-server", home=tmp_path).out
    tiny.unlink()
    done = subprocess.run(
        [str(llama_server()), *shlex.split(line)[1:], "--port", "0"],
        capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    assert done.returncode != 0
    said = done.stdout + done.stderr
    assert "tiny.gguf" in said
    assert "invalid argument" not in said


@pytest.mark.parametrize(
    ("words", "code", "named"),
    [
        (("--argv", "ollama"), 4, ("--argv is 'ollama'", "llama-server")),
        (("--argv", "llama-server", "--json"), 4, ("choose one",)),
        (("--json", "--explain"), 4, ("choose one",)),
        (("--ubatch", "0"), 4, ("--ubatch is 0",)),
        (("--cpu-moe", "-1"), 4, ("--cpu-moe is -1",)),
        (("--slots", "0"), 4, ("--slots is 0",)),
        (("--slots", "257"), 4, ("--slots is 257", "at most 256")),
        (("--ctx", "lots"), 4, ("--ctx: 'lots'", "32k")),
        (("--reserve", "2"), 4, ("--reserve", "no unit")),
        (("--kv", "q9"), 4, ("--kv is 'q9'",)),
        (("--reserve", "much"), 4, ("--reserve", "'much'")),
        (("--gpu", "none", "--reserve", "2GiB"), 4, ("--reserve is 2GiB", "no card")),
        (("--gpu", "16"), 4, ("--gpu",)),
        (("--gpu", "16GiB", "--ram", "0GiB"), 4, ("--ram",)),
        (("--gpu", "16GiB", "--ram", "-4GiB"), 4, ("--ram",)),
        (("--machine", "nowhere.yaml"), 4, ("nowhere.yaml",)),
        (("--gpu", "1GiB", "--ram", "1GiB", "--ram-used", "900MiB"), 3, ("free RAM",)),
        (("--gpu", "8GiB", "--ram", "32GiB", "--cpu-moe", "4"), 3, ("--cpu-moe",)),
        (("--engine", "nowhere"), 5, ("nowhere",)),
    ],
)
def test_what_cannot_be_meant_or_met_is_refused_in_one_line(
    model: Path, tmp_path: Path, words: tuple[str, ...], code: int, named: tuple[str, ...]
) -> None:
    assert_refused(hotset("plan", model, *words, home=tmp_path), code, *named)


def test_a_file_that_is_no_model_is_refused(tmp_path: Path) -> None:
    (tmp_path / "x.gguf").write_text("<html>")
    assert_refused(hotset("plan", tmp_path / "x.gguf", home=tmp_path), 2, "x.gguf")
    assert_refused(hotset("plan", tmp_path / "none.gguf", home=tmp_path), 2, "none.gguf")


def test_an_unknown_family_is_planned_with_an_upper_bound_and_that_is_said(tmp_path: Path) -> None:
    path = Gguf(
        (
            ("general.architecture", text("newkind")),
            ("newkind.block_count", number("u32", 2)),
            ("newkind.embedding_length", number("u32", 64)),
            ("newkind.attention.head_count", number("u32", 2)),
            ("newkind.context_length", number("u32", 4096)),
            ("tokenizer.ggml.model", text("gpt2")),
        ),
        (Tensor("token_embd.weight", (64, 64)), Tensor("blk.0.attn_q.weight", (64, 64))),
    ).write(tmp_path / "new.gguf")
    ended = hotset("plan", path, *CARD, *PC, home=tmp_path)
    if ended.code == 0:
        assert "is not in hotset's table" in ended.out
    else:
        assert_refused(ended, 2, "new.gguf")


def test_the_bytes_of_an_mtp_head_are_named_as_unused_and_only_where_there_is_one(
    tmp_path: Path,
) -> None:
    with_head, without = (
        write_tiny(name, tmp_path / f"{name}.gguf")[0] for name in ("glm4moe-mtp", "glm4moe")
    )
    spec = model_spec(open_model(with_head))
    n_bytes = spec.layers[-1].n_bytes
    assert facts(tmp_path, with_head, *PC)["mtp_bytes"] == n_bytes > 0
    assert facts(tmp_path, without, *PC)["mtp_bytes"] == 0
    shown = hotset("plan", with_head, *PC, home=tmp_path).out
    assert f"  MTP layers: {format_bytes(n_bytes)} in the file, not used.\n" in shown
    told = hotset("plan", with_head, *PC, "--explain", home=tmp_path).out
    assert re.search(rf"MTP layers +{n_bytes / MIB:,.2f} MiB  in it, not used", told)
    for option in ((), ("--explain",)):
        assert "MTP" not in hotset("plan", without, *PC, *option, home=tmp_path).out
