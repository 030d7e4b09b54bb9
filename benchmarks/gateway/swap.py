"""`python -m benchmarks.gateway swap`: from one model's last byte to another one's first token.

Two models of about 4 GB, of which memory is granted to one at a time. While one answers, the other
is asked for; none of its file is in the page cache then. With reading ahead and without, two swaps
each in turn; the second of them counts, since a model stays the longer the longer its start took.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import median
from typing import Any

import httpx
from benchmarks.store.models import DIMS, MIXES, QUICK_DIMS
from benchmarks.store.pagecache import drop, resident_bytes

from hotset.core.units import GIB
from hotset.gguf.synth import write_sized

__all__ = ["main"]

_TIMEOUT_S = 170.0
_MODELS = ("first", "second")


@dataclass(frozen=True, slots=True)
class _Gap:
    """One swap.

    Attributes:
        gap_s: from the last byte of the leaving model's answer to the first token of the other's.
        load_s: of it, the start of the engine.
        ahead_bytes: of the file, in memory when the last byte came.
    """

    is_ahead: bool
    gap_s: float
    load_s: float
    ahead_bytes: int
    answer_s: float


def _models(folder: Path, *, is_quick: bool) -> dict[str, Path]:
    """Two files with the same weights: to the page cache they are strangers."""
    folder.mkdir(parents=True, exist_ok=True)
    first, second = (folder / f"{name}.gguf" for name in _MODELS)
    if not first.exists():
        write_sized("qwen3moe", first, QUICK_DIMS if is_quick else DIMS, MIXES["q4_0"])
    if not second.exists():
        shutil.copyfile(first, second)
    return {"first": first, "second": second}


@contextmanager
def _gateway(folder: Path, ram_bytes: int, switch: Path) -> Iterator[str]:
    process = subprocess.Popen(
        [sys.executable, "-m", "benchmarks.gateway.swapping", folder, str(ram_bytes), switch],
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stderr is not None
        for line in process.stderr:
            if match := re.match(r"(http://\S+)/v1 ", line):
                break
        else:
            raise SystemExit("the gateway did not start")
        # Its later lines are nobody's business, but the pipe must not fill.
        threading.Thread(target=process.stderr.read, daemon=True).start()
        yield match[1]
    finally:
        process.send_signal(signal.SIGTERM)
        process.wait()


def _stream(url: str, model: str, tokens: int) -> Iterator[float]:
    """The moments at which tokens come, and last the end."""
    body = {"model": model, "prompt": "to be or", "max_tokens": tokens, "ignore_eos": True}
    with httpx.stream(
        "POST", f"{url}/v1/completions", json=body | {"stream": True}, timeout=_TIMEOUT_S
    ) as answer:
        for line in answer.iter_lines():
            if line.startswith("data: {"):
                yield time.monotonic()
    yield time.monotonic()


def _swap(url: str, files: dict[str, Path], leaving: str, coming: str, tokens: int) -> _Gap:
    """The leaving model answers; once it has begun, the other is asked for."""
    next(_stream(url, leaving, 1))
    drop(files[coming])
    began: list[float] = []
    asking: threading.Thread | None = None
    stamp = begin = time.monotonic()
    for stamp in _stream(url, leaving, tokens):
        if asking is None:
            begin = stamp
            asking = threading.Thread(target=lambda: began.append(next(_stream(url, coming, 1))))
            asking.start()
    ahead_bytes = resident_bytes(files[coming])
    assert asking is not None
    asking.join()
    rows: list[dict[str, Any]] = httpx.get(f"{url}/api/models").json()["models"]
    load_s = next(row["load_s"] for row in rows if row["id"] == coming)
    return _Gap(False, began[0] - stamp, load_s, ahead_bytes, stamp - begin)


def main(words: Sequence[str]) -> None:
    parser = argparse.ArgumentParser(prog="benchmarks.gateway swap", description=__doc__)
    parser.add_argument("--folder", type=Path, default=Path("~/.cache/hotset/benchmarks/swap"))
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--tokens", type=int, default=60, help="of the leaving model's answer")
    parser.add_argument("--ram", type=float, default=6.5, help="GiB for all engines together")
    parser.add_argument("--quick", action="store_true", help="tiny models, to try the benchmark")
    parser.add_argument("--json", type=Path)
    args = parser.parse_args(words)
    files = _models(args.folder.expanduser(), is_quick=args.quick)
    ram_bytes = int((0.45 if args.quick else args.ram) * GIB)
    gaps: list[_Gap] = []
    with (
        tempfile.TemporaryDirectory() as temporary,
        _gateway(files["first"].parent, ram_bytes, switch := Path(temporary) / "on") as url,
    ):
        for _ in range(args.rounds):
            for is_ahead in (False, True):
                switch.touch() if is_ahead else switch.unlink(missing_ok=True)
                for models in (_MODELS, _MODELS[::-1]):
                    gap = _swap(url, files, *models, args.tokens)
                gap = replace(gap, is_ahead=is_ahead)
                gaps.append(gap)
                print(_row(gap), flush=True)
    for is_ahead in (False, True):
        mine = [gap for gap in gaps if gap.is_ahead is is_ahead]
        print(
            f"median {'with' if is_ahead else 'without'} reading ahead:"
            f" gap {median(g.gap_s for g in mine):.2f} s,"
            f" load {median(g.load_s for g in mine):.2f} s"
        )
    if args.json:
        rows = [{name: getattr(g, name) for name in _Gap.__slots__} for g in gaps]
        args.json.write_text(json.dumps(rows, indent=1) + "\n")


def _row(gap: _Gap) -> str:
    return (
        f"{'with   ' if gap.is_ahead else 'without'}  gap {gap.gap_s:5.2f} s"
        f"  load {gap.load_s:5.2f} s  answer {gap.answer_s:5.2f} s"
        f"  in memory at its end {gap.ahead_bytes / GIB:4.2f} GiB"
    )
