"""Decide the store's policy on recorded routing, or measure the converted model's quality.

python -m benchmarks.lab decision --public ../shared/traces/*.csv
python -m benchmarks.lab quality
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.lab import decision
from benchmarks.lab.recordings import make_recordings

from hotset.cli.demo_models import demo_model
from hotset.core.errors import HotsetError
from hotset.lab.matrix import hit_plot
from hotset.lab.moe.convert import (
    RECIPE,
    calibration_texts,
    dialogues,
    fit_experts,
    passages,
)
from hotset.lab.moe.dense import open_dense
from hotset.lab.moe.quality import measure_quality

DOCS = Path(__file__).parents[2] / "docs"
_DEFAULT_FOLDER = Path("~/.cache/hotset/benchmarks/lab")
_HELD_OUT = Path(__file__).with_name("held_out")
_USED = (6, 12, 16, 18, 24)
# As many as can be measured in some minutes; the table says how sure that makes it.
_MOST_CHATS, _MOST_TOKENS = 6, 110
_QUESTIONS = (
    "Why is the sky blue? Answer in two or three sentences.",
    "Write a Python function that adds two numbers.",
)


def main(arguments: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.lab", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True)
    deciding = commands.add_parser("decision", help="policies on recorded routing")
    deciding.add_argument("--public", type=Path, nargs="*", default=[], help="CSV recordings")
    deciding.add_argument("--folder", type=Path, default=_DEFAULT_FOLDER.expanduser())
    deciding.add_argument("--max-tokens", type=int, default=96, help="of each answer")
    deciding.add_argument("--write", action="store_true", help="into docs/policies.md and its plot")
    measuring = commands.add_parser("quality", help="the converted model against the dense one")
    measuring.add_argument("--write", action="store_true", help="into docs/lab.md")
    chosen = parser.parse_args(arguments)
    try:
        if chosen.command == "quality":
            _quality(is_written=chosen.write)
        else:
            _decide(chosen.public, chosen.folder, chosen.max_tokens, is_written=chosen.write)
    except HotsetError as problem:
        sys.stderr.write(f"{problem.message}\n")
        return problem.exit_code
    return 0


def _decide(public: Sequence[Path], folder: Path, max_tokens: int, *, is_written: bool) -> None:
    recordings = make_recordings(folder, public, max_tokens=max_tokens)
    cells, verdict = decision.judge(recordings)
    said = (
        f"Of {len(recordings.judging)} traces at {len(decision.SHARES)} capacities the default"
        f" leads recency by {verdict.mean_lead_points:.1f} points on average; its worst is"
        f" {verdict.worst_points:+.1f} points, on {verdict.worst_at}. The bound is"
        f" {verdict.mean_gap_points:.1f} points above it on average."
    )
    tables = {
        "verdict": [said],
        "leads": decision.lead_table(cells),
        "half-life": decision.half_life_table(recordings.choosing),
        "admission": decision.admission_table(recordings.judging),
        "tiers": decision.tier_table(recordings.judging),
        "hits": decision.hit_table(cells),
    }
    for name, lines in tables.items():
        print("\n".join([f"{name}:", *lines, ""]))
    if is_written:
        _fill(DOCS / "policies.md", tables)
        (DOCS / "policies.svg").write_text(hit_plot(cells), encoding="utf-8")


def _fill(page: Path, tables: dict[str, list[str]]) -> None:
    """Put each table between its marks on the page."""
    text = page.read_text(encoding="utf-8")
    for name, lines in tables.items():
        begin, end = f"<!-- {name} -->\n", f"<!-- end of {name} -->"
        before, _, rest = text.partition(begin)
        _, _, after = rest.partition(end)
        text = before + begin + "\n".join(lines) + "\n" + end + after
    page.write_text(text, encoding="utf-8")


def _quality(*, is_written: bool) -> None:
    """How close the converted model comes, on four kinds of text that it has not seen."""
    model = open_dense(demo_model())

    def read(name: str) -> str:
        return (_HELD_OUT / name).read_text(encoding="utf-8")

    texts = {
        "chat": [
            chat[:_MOST_TOKENS] for chat in dialogues(model, read("chat.jsonl"))[:_MOST_CHATS]
        ],
        **{kind: passages(model, read(f"{kind}.txt")) for kind in ("prose", "code", "chinese")},
    }
    blocks = fit_experts(model, calibration_texts(model), _tell, RECIPE)
    lines = [
        "| text | tokens | experts used | perplexity ratio | KL, nats | same token | overlap |",
        "|---|---|---|---|---|---|---|",
    ]
    for kind, tokens in texts.items():
        for found in measure_quality(model, blocks, tokens, _USED):
            lines.append(
                f"| {kind} | {sum(map(len, tokens)):,}"
                f" | {found.num_used} of {RECIPE.num_experts}"
                f" | {found.perplexity_ratio:.2f} ± {found.ratio_error:.2f}"
                f" | {found.divergence:.3f} ± {found.divergence_error:.3f}"
                f" | {found.agreement:.0%} | {found.overlap:.2f} |"
            )
            print(lines[-1], flush=True)
    samples = [line for question in _QUESTIONS for line in _sample(question)]
    print("\n".join(samples))
    if is_written:
        _fill(DOCS / "lab.md", {"quality": lines, "samples": samples[:-1]})


def _sample(question: str) -> list[str]:
    """What the published model answers, in the engine."""
    command = [sys.executable, "-m", "hotset", "run", "smollm2-moe", question, "--max-tokens", "90"]
    done = subprocess.run(
        [*command, "--temp", "0", "--seed", "1"], check=True, capture_output=True, text=True
    )
    return [
        f"> **{question}**",
        ">",
        *(f"> {line}".rstrip() for line in done.stdout.splitlines()),
        "",
    ]


def _tell(what: str, share: float) -> None:
    sys.stderr.write(f"\r{share:4.0%} {what}      ")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
