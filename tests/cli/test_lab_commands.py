"""`hotset trace` and `hotset simulate`: from prompts to a table of policies."""

from __future__ import annotations

import csv
import io
import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from clikit import assert_refused, hotset
from enginekit import smollm2
from hotset.core.errors import EngineProblem
from hotset.core.hits import prior_curve
from hotset.core.modelspec import Experts
from hotset.gguf.shards import open_model
from hotset.gguf.spec import model_spec
from hotset.gguf.synth import write_fullscale
from hotset.lab.hitcurve import recorded_curve
from hotset.lab.policies import POLICIES
from hotset.lab.routing import load_routing
from hotset.lab.simulate import simulate
from hotset.store import find_native, write_trace
from lab.routingkit import skewed_records
from store.tinymoe import NUM_LAYERS, write_tiny_moe


@pytest.fixture(name="recording", scope="module")
def _recording(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("traces") / "made-up.trace"
    records = skewed_records([16] * 4, [1 << 20] * 4, used=2, batches=[20, *[1] * 60], seed=9)
    write_trace(path, records)
    return path


def has_native() -> bool:
    try:
        find_native()
    except EngineProblem:
        return False
    return True


@pytest.mark.skipif(not has_native(), reason="no native part")
def test_prompts_of_a_file_are_recorded_one_by_one(tmp_path: Path) -> None:
    model = write_tiny_moe(tmp_path / "moe.gguf")
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("first line\nsecond line\n---\nanother\n")
    words = ("trace", "record", model, "--prompts", prompts, "--max-tokens", "5")
    ended = hotset(*words, "--threads", "1", home=tmp_path)
    assert ended.code == 0, ended.err
    assert ended.out == ""
    assert [line for line in ended.err_lines if line.startswith("prompt ")] == [
        "prompt 1 of 2: 5 tokens",
        "prompt 2 of 2: 5 tokens",
    ]
    routing = load_routing(tmp_path / "moe.trace")
    assert len(routing.layers) == NUM_LAYERS
    prompts_seen = {event.batch for event in routing.events if not event.is_decode}
    assert len(prompts_seen) == 2
    # Never over a file that is there.
    assert "is there already" in hotset(*words, home=tmp_path).err


@pytest.mark.skipif(not has_native(), reason="no native part")
def test_a_trace_that_breaks_off_is_no_success(tmp_path: Path) -> None:
    """160 blocks of 512 bytes have room for the store's counters, and not for the routing."""
    model = write_tiny_moe(tmp_path / "moe.gguf")
    (tmp_path / "prompts.txt").write_text("a\nb\n")
    words = ("trace", "record", model, "--prompts", "prompts.txt", "--max-tokens", "900")
    shell = 'ulimit -f 160; exec "$@"'
    ended = hotset(*words, "-o", "out.trace", home=tmp_path, through=shell)
    assert ended.code == 3, ended.err
    assert ended.err_lines[-1].startswith(f"hotset: routing trace {tmp_path}/out.trace: ")
    assert "File too large" in ended.err_lines[-1]


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (b"", "holds no prompt"),
        (b"---\n---\n", "holds no prompt"),
        (b"\xff", "not a text in UTF-8"),
    ],
)
def test_a_file_without_prompts_is_refused_before_any_start(
    tmp_path: Path, content: bytes, said: str
) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_bytes(content)
    ended = hotset("trace", "record", "smollm2", "--prompts", prompts, home=tmp_path)
    assert_refused(ended, 2, said)
    missing = hotset("trace", "record", "smollm2", "--prompts", "missing", home=tmp_path)
    assert_refused(missing, 2, "missing: cannot be read")


def test_a_model_without_experts_has_no_routing_to_record(tmp_path: Path) -> None:
    prompts = tmp_path / "prompts.txt"
    prompts.write_text("hello\n")
    ended = hotset("trace", "record", smollm2(), "--prompts", prompts, home=tmp_path)
    assert_refused(ended, 4, "this model has no experts")
    assert [path.name for path in tmp_path.iterdir()] == ["prompts.txt"]


def test_a_map_has_a_row_per_layer_and_the_picture_is_xml(tmp_path: Path, recording: Path) -> None:
    shown = hotset("trace", "show", recording, "--map", "--svg", "map.svg", home=tmp_path)
    assert (shown.code, shown.err) == (0, "")
    lines = shown.out.splitlines()
    rows = lines[-4:]
    assert all(row.startswith("blk.") and len(row.split(maxsplit=1)[1]) <= 16 for row in rows)
    assert any("█" in row for row in rows)
    picture = ElementTree.parse(tmp_path / "map.svg").getroot()  # noqa: S314 - our own file
    assert picture.tag.endswith("svg")


def test_the_same_numbers_come_as_table_json_and_csv(tmp_path: Path, recording: Path) -> None:
    words = ("simulate", recording, "--policy", "quota,lru,bound", "--capacity", "25%,32MiB")
    told = json.loads(hotset(*words, "--json", home=tmp_path).out)
    rows = list(csv.DictReader(io.StringIO(hotset(*words, "--csv", home=tmp_path).out)))
    table = hotset(*words, "--plot", "hits.svg", home=tmp_path)
    assert (table.code, table.err) == (0, "")
    assert [(cell["policy"], cell["share"]) for cell in told] == [
        (policy, share) for policy in ("quota", "lru", "bound") for share in (0.25, 0.5)
    ]
    assert [int(row["num_hits"]) for row in rows] == [cell["num_hits"] for cell in told]
    counts = simulate(load_routing(recording), POLICIES["quota"], share=0.25).decode
    assert told[0]["num_hits"] == counts.num_hits
    assert told[0]["num_tokens"] == 60
    lines = table.out.splitlines()
    hits = lines[lines.index("hits, %") + 1].split()
    assert hits == ["quota", f"{100 * counts.hit_rate:.1f}", f"{100 * told[1]['hit_rate']:.1f}"]
    ElementTree.parse(tmp_path / "hits.svg")  # noqa: S314 - our own file


def test_a_faster_memory_and_a_threshold_change_what_is_moved(
    tmp_path: Path, recording: Path
) -> None:
    words = ("simulate", recording, "--policy", "decayed", "--capacity", "50%", "--vram", "12.5%")
    careful = hotset(*words, "--threshold", "1.5", home=tmp_path)
    assert "moved into the memory at hand" in careful.out
    (cell,) = json.loads(hotset(*words, "--threshold", "1.5", "--json", home=tmp_path).out)
    (eager,) = json.loads(hotset(*words, "--json", home=tmp_path).out)
    assert cell["num_in_place"] > 0
    assert cell["num_uploads"] < eager["num_uploads"]
    assert cell["vram_share"] == 0.125


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("--policy", "fifo"), "choose among quota"),
        (("--policy", ","), "choose among quota"),
        (("--capacity", "0%"), "more than 0"),
        (("--capacity", "ten%"), "like 10% or 8GiB"),
        (("--capacity", "8TiB"), "at most 100%"),
        (("--capacity", "1%"), "holds no expert"),
        (("--capacity", ","), "--capacity is empty"),
        (("--half-life", "0"), "half-life of 0"),
        (("--half-life", "nan"), "half-life of nan"),
        (("--threshold", "nan"), "threshold of nan"),
        (("--threshold", "-1"), "threshold of -1"),
        (("--csv", "--json"), "choose one"),
    ],
)
def test_a_wish_that_makes_no_sense_is_one_line(
    tmp_path: Path, recording: Path, options: tuple[str, ...], said: str
) -> None:
    assert_refused(hotset("simulate", recording, *options, home=tmp_path), 4, said)


SMALL_PC = ("--gpu", "none", "--ram", "10GiB", "--ram-used", "1GiB", "--cores", "8",
            "--ram-bw", "50GB/s", "--disk", "2GB/s")  # fmt: skip
MISSES = "disk: reads of misses"


def experts_of(model: Path) -> Experts:
    experts = model_spec(open_model(model)).experts
    assert experts is not None
    return experts


def test_a_plan_takes_the_hit_rates_of_the_models_own_routing(tmp_path: Path) -> None:
    """Qwen3-30B-A3B on a computer whose RAM holds a part of its experts."""
    model = write_fullscale("qwen3-30b-a3b", tmp_path / "qwen.gguf", mix="Q4_K_M")
    trace = tmp_path / "qwen.trace"
    sizes, n_bytes = [128] * 48, [3_000_000] * 48
    write_trace(trace, skewed_records(sizes, n_bytes, used=8, batches=[1] * 12, seed=3))

    def plan(*words: str) -> tuple[str, str]:
        ended = hotset("plan", model, *SMALL_PC, *words, home=tmp_path)
        assert ended.code == 0, ended
        return ended.out, ended.err

    def missed_bytes() -> int:
        terms = json.loads(plan("--json")[0])["decode_terms"]
        (n_bytes,) = [term["n_bytes"] for term in terms if term["what"] == MISSES]
        return int(n_bytes)

    prior_bytes = missed_bytes()
    assert "a prior for qwen3moe" in plan("--explain")[0]
    words = ("simulate", trace, "--policy", "quota", "--capacity", "10%", "--plan", model)
    kept = hotset(*words, home=tmp_path)
    assert kept.code == 0, kept
    (file,) = (tmp_path / ".cache" / "hotset" / "hits").iterdir()
    assert f"in {file}" in kept.err
    told, notes = plan("--explain")
    assert "this model's own routing: one recording, 12 decoded tokens" in told
    assert notes == ""
    # What is missed changes as the two curves say.
    own, prior = recorded_curve([load_routing(trace)]), prior_curve("qwen3moe", 128)
    held = json.loads(plan("--json")[0])["footprint"]["expert_cache_bytes"]
    share = held / experts_of(model).n_bytes
    expected = (1 - own.rate(share)) / (1 - prior.rate(share))
    assert missed_bytes() / prior_bytes == pytest.approx(expected, rel=0.02)
    assert abs(expected - 1) > 0.2
    # Damaged: one note, and the prior.
    file.write_text("{")
    told, notes = plan("--explain")
    assert "a prior for qwen3moe" in told
    assert notes.startswith(f"note: {file}: no hit rates of hotset (")
    assert len(notes.splitlines()) == 1
    assert missed_bytes() == prior_bytes


def test_recordings_of_another_model_are_kept_for_nobody(tmp_path: Path, recording: Path) -> None:
    model = write_tiny_moe(tmp_path / "moe.gguf")
    words = ("simulate", recording, "--plan")
    assert_refused(hotset(*words, model, home=tmp_path), 4, "4 layers with 16 experts")
    assert_refused(hotset(*words, smollm2(), home=tmp_path), 4, "has no experts")
    assert not (tmp_path / ".cache" / "hotset" / "hits").exists()
