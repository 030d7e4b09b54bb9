"""The routing that policies are decided on: public recordings, the demo's model on four kinds of
text, synthetic models of three localities."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from hotset.gguf.synth.locality import Locality
from hotset.lab.routing import Routing, load_routing

__all__ = ["Recordings", "make_recordings"]

PROMPTS = Path(__file__).with_name("prompts")
_KINDS = ("prose", "code", "chat", "chinese")
_MOE = "smollm2-moe"
_SYNTHETIC = (
    *("--width", "256", "--heads", "4", "--kv-heads", "2", "--head-dim", "64", "--layers", "16"),
    *("--expert-width", "64", "--experts", "64", "--used", "6", "--vocabulary", "4000"),
)


@dataclass(frozen=True, slots=True)
class Recordings:
    """What a rule is chosen on, and what it is then judged by: no prompt is in both."""

    choosing: tuple[Routing, ...]
    judging: tuple[Routing, ...]


def make_recordings(folder: Path, public: Sequence[Path], *, max_tokens: int) -> Recordings:
    """Record what is not in `folder` yet, and read all of it.

    The public recordings have one prompt each and can only judge.
    """
    folder.mkdir(parents=True, exist_ok=True)
    choosing: list[Routing] = []
    judging: list[Routing] = []
    for kind in _KINDS:
        prompts = (PROMPTS / f"{kind}.txt").read_text(encoding="utf-8").splitlines()
        for name, half, into in (("a", prompts[::2], choosing), ("b", prompts[1::2], judging)):
            into.append(_recorded(folder, f"demo-{kind}-{name}", _MOE, half, max_tokens))
    chat = (PROMPTS / "chat.txt").read_text(encoding="utf-8").splitlines()
    for locality in Locality:
        model = folder / f"synthetic-{locality}.gguf"
        if not model.exists():
            _write_synthetic(model, locality)
        name = f"synthetic-{locality}"
        judging.append(_recorded(folder, name, str(model), chat[:3], max_tokens))
    judging += [load_routing(path) for path in public]
    return Recordings(tuple(choosing), tuple(judging))


def _recorded(
    folder: Path, name: str, model: str, prompts: Sequence[str], max_tokens: int
) -> Routing:
    trace = folder / f"{name}.trace"
    if not trace.exists():
        text = folder / f"{name}.txt"
        text.write_text("\n".join(prompts), encoding="utf-8")
        part = folder / f"{name}.part"
        part.unlink(missing_ok=True)
        command = [
            *(sys.executable, "-m", "hotset", "trace", "record", model, "--prompts", str(text)),
            # One thread: what is recorded is the same, and a busy machine matters less.
            *("--out", str(part), "--max-tokens", str(max_tokens), "--threads", "1"),
        ]
        subprocess.run(command, check=True)
        part.replace(trace)
    return load_routing(trace)


def _write_synthetic(path: Path, locality: Locality) -> None:
    command = [sys.executable, "-m", "hotset.gguf.synth", "sized", str(path), *_SYNTHETIC]
    subprocess.run([*command, "--locality", locality], check=True)
