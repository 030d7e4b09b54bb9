"""`python -m hotset.gguf.synth`: write synthetic GGUF files from a shell."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from hotset.core.errors import HotsetError
from hotset.core.units import format_bytes
from hotset.gguf.synth.families import FAMILIES, family_named
from hotset.gguf.synth.fullscale import MIXES, REAL_MODELS, write_fullscale
from hotset.gguf.synth.locality import Locality
from hotset.gguf.synth.models import write_sized, write_tiny
from hotset.gguf.synth.recipe import Dims, Mix

__all__ = ["main"]

# `sized` without options: 4.4 GB in Q4_0, experts as small as those of a 30B-A3B model.
_SIZED = Dims(
    n_layers=12, n_embd=2048, n_head=16, n_head_kv=4, head_dim=128, n_ff=6144, n_ff_exp=768,
    n_experts=128, n_used=8, n_vocab=32000, context_tokens=32768,
)  # fmt: skip
_SIZED_OPTIONS = {
    "layers": "n_layers",
    "width": "n_embd",
    "heads": "n_head",
    "kv-heads": "n_head_kv",
    "head-dim": "head_dim",
    "expert-width": "n_ff_exp",
    "experts": "n_experts",
    "used": "n_used",
    "vocabulary": "n_vocab",
    "context": "context_tokens",
}


def main(arguments: Sequence[str] | None = None) -> int:
    """Run one command; returns the exit code."""
    options = _parser().parse_args(arguments)
    try:
        lines = _run(options)
    except HotsetError as problem:
        sys.stderr.write(f"synth: {problem.message}\n")
        return problem.exit_code
    sys.stdout.write("".join(f"{line}\n" for line in lines))
    return 0


def _run(options: argparse.Namespace) -> list[str]:
    match options.command:
        case "list":
            return _listing()
        case "tiny":
            paths = write_tiny(
                options.family,
                options.out,
                experts_type=options.type,
                down_type=options.down_type,
                seed=options.seed,
                n_shards=options.shards,
                fused=options.fused,
                locality=options.locality,
            )
        case "sized":
            paths = write_sized(
                options.family,
                options.out,
                _sized_dims(options),
                replace(Mix(), experts=options.type, down=options.down_type or options.type),
                seed=options.seed,
                n_shards=options.shards,
                locality=options.locality,
            )
        case _:
            paths = (write_fullscale(options.model, options.out, mix=options.mix),)
    return [_written(path) for path in paths]


def _listing() -> list[str]:
    return [
        "families (tiny, sized):",
        *(f"  {name}" for name in FAMILIES),
        "models (fullscale):",
        *(f"  {name}" for name in REAL_MODELS),
        "mixes (fullscale):",
        *(f"  {name}" for name in MIXES),
    ]


def _sized_dims(options: argparse.Namespace) -> Dims:
    # A family's own structure (intervals, leading dense layers, state sizes) is that of its tiny
    # model; only the sizes named here grow.
    tiny = family_named(options.family).tiny
    sizes = {name: getattr(_SIZED, name) for name in _SIZED_OPTIONS.values()}
    for option, name in _SIZED_OPTIONS.items():
        given = getattr(options, option.replace("-", "_"))
        sizes[name] = sizes[name] if given is None else given
    return replace(tiny, n_ff=_SIZED.n_ff, is_fused=options.fused, **sizes)


def _written(path: Path) -> str:
    stat = path.stat()
    on_disk = stat.st_blocks * 512
    return f"{path}: {format_bytes(stat.st_size)}, {format_bytes(on_disk)} on disk"


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(
        prog="python -m hotset.gguf.synth", description="Write synthetic GGUF files."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    commands.add_parser("list", help="families, real models and mixes")

    tiny = commands.add_parser("tiny", help="a model of a few MB that loads and answers")
    tiny.add_argument("family")
    _add_common(tiny, default_type=None)

    sized = commands.add_parser("sized", help="a model of any size")
    sized.add_argument("--family", default="qwen3moe")
    _add_common(sized, default_type="Q4_0")
    for option, name in _SIZED_OPTIONS.items():
        sized.add_argument(f"--{option}", type=int, help=f"default {getattr(_SIZED, name)}")

    full = commands.add_parser("fullscale", help="a real model's header, its data a hole")
    full.add_argument("model")
    full.add_argument("out", type=Path)
    full.add_argument("--mix", default="Q4_K_M", help="default Q4_K_M")
    return parser


def _add_common(parser: argparse.ArgumentParser, *, default_type: str | None) -> None:
    parser.add_argument("out", type=Path)
    parser.add_argument("--type", default=default_type, help="of gate and up experts (Q4_0)")
    parser.add_argument("--down-type", help="of down experts (the same)")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--shards", type=int, default=1)
    parser.add_argument(
        "--locality", type=Locality, choices=list(Locality), help="of the routing (no pattern)"
    )
    parser.add_argument("--fused", action="store_true", help="gate and up experts as one tensor")


if __name__ == "__main__":
    sys.exit(main())
