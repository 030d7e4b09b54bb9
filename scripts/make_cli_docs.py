#!/usr/bin/env python3
"""Write what the documentation takes from the program: `make docs`.

    .venv/bin/python scripts/make_cli_docs.py [--check] [FOLDER]

Two places in FOLDER (default: docs/): the whole of cli.md, from the commands themselves, and the
table of families in gguf.md, between its two marks. With --check nothing is written, and the exit
code is 1 if either is not what the program says now.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Iterator
from pathlib import Path

from typer import Context
from typer.core import TyperGroup
from typer.main import get_command

from hotset.cli.main import app
from hotset.core import errors
from hotset.core.families import FAMILIES, Family
from hotset.core.families.rules import Attention, Indexer, Where

WIDTH = 100
BEGIN = "<!-- families: written by scripts/make_cli_docs.py -->"
END = "<!-- families: end -->"


def main() -> int:
    """Exit code 0 when the documents are, or have been made, what the program says."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("--check", action="store_true", help="write nothing, exit 1 if stale")
    default = Path(__file__).resolve().parent.parent / "docs"
    parser.add_argument("folder", nargs="?", type=Path, default=default)
    options = parser.parse_args()
    cli, gguf = options.folder / "cli.md", options.folder / "gguf.md"
    texts = {cli: "\n".join(command_lines()) + "\n", gguf: with_families(read(gguf))}
    stale = [path for path, text in texts.items() if read(path) != text]
    for path in stale:
        if options.check:
            sys.stderr.write(f"{path}: stale; run `make docs`\n")
        else:
            path.write_text(texts[path], encoding="utf-8")
    return 1 if stale and options.check else 0


def read(path: Path) -> str:
    return path.read_text(encoding="utf-8") if path.exists() else ""


def command_lines() -> Iterator[str]:
    """cli.md: the help of every command, as the program prints it."""
    group = get_command(app)
    if not isinstance(group, TyperGroup):
        raise TypeError("the hotset command has no commands below it")
    yield "# Commands"
    yield ""
    yield "Written by `make docs` from the commands themselves. `hotset COMMAND --help` prints the"
    yield "same. What they print is described in [gguf.md](gguf.md) (`inspect`) and in the"
    yield "[README](../README.md)."
    # Resilient parsing: a context for help, without a complaint about missing arguments.
    with group.make_context("hotset", [], resilient_parsing=True, terminal_width=WIDTH) as context:
        yield from help_lines("hotset", group.get_help(context))
        yield from below("hotset", group, context)
    yield ""
    yield "## Exit codes"
    yield ""
    yield "| Code | Meaning |"
    yield "|---:|---|"
    yield "| 0 | done |"
    for kind in sorted(errors.HotsetError.__subclasses__(), key=lambda kind: kind.exit_code):
        yield f"| {kind.exit_code} | {kind.kind}: {summary(kind)} |"
    yield "| 129, 130, 143 | ended by SIGHUP, by Ctrl-C, by SIGTERM |"
    yield ""
    yield "Code 1 is an internal error, too. Every failure is one line on stderr."


def below(title: str, group: TyperGroup, context: Context) -> Iterator[str]:
    """The help of every command of a group, and of those below."""
    for name, command in group.commands.items():
        with command.make_context(
            name, [], parent=context, resilient_parsing=True, terminal_width=WIDTH
        ) as inner:
            yield from help_lines(f"{title} {name}", command.get_help(inner))
            if isinstance(command, TyperGroup):
                yield from below(f"{title} {name}", command, inner)


def help_lines(title: str, text: str) -> Iterator[str]:
    yield ""
    yield f"## {title}"
    yield ""
    yield "```text"
    yield from (line.rstrip() for line in text.splitlines())
    yield "```"


def summary(kind: type[errors.HotsetError]) -> str:
    first = (kind.__doc__ or "").splitlines()[0].rstrip(".")
    return first[0].lower() + first[1:]


def with_families(text: str) -> str:
    """gguf.md with the table between its marks as it is now."""
    if BEGIN not in text or END not in text:
        raise SystemExit(f"gguf.md: the marks '{BEGIN}' and '{END}' are not both there")
    before, _, rest = text.partition(BEGIN)
    return "\n".join([before + BEGIN, *family_lines(), END + rest.partition(END)[2]])


def family_lines() -> Iterator[str]:
    yield ""
    yield "| Architecture | What a block keeps | Worth knowing |"
    yield "|---|---|---|"
    for family in FAMILIES:
        names = ", ".join(f"`{name}`" for name in family.architectures)
        yield f"| {names} | {'; '.join(keeps(family))} | {' '.join(family.oddities)} |"
    yield ""


def keeps(family: Family) -> Iterator[str]:
    """What the blocks of a family keep of the tokens they have seen, in words."""
    where = family.recurrent.where if family.recurrent else None
    if where is not Where.EVERY:
        yield {
            Attention.CACHED: "K and V",
            Attention.LATENT: "one compressed K (MLA), or K and V in files from before MLA",
            Attention.UNCACHED: "nothing: it sees all its tokens at once",
        }[family.attention]
    if family.window:
        yield from window_words(family)
    if family.recurrent:
        rollback = ", with snapshots while drafting" if family.recurrent.can_roll_back else ""
        yield f"a recurrent state {recurrent_words(family)}{rollback}"
    if family.indexer:
        yield {
            Indexer.POOLED: "indexer keys in the attention blocks",
            Indexer.EVERY: "indexer keys in every block",
            Indexer.BY_TYPE: "indexer keys in every block, or in those that the file marks",
            Indexer.AFTER_DENSE: "indexer keys and values behind the leading dense blocks",
        }[family.indexer]
    if family.kv_blocks:
        yield f"only the first {family.kv_blocks} blocks have a KV cache"
    if family.has_shared_kv_key:
        yield "the last blocks use the KV of earlier ones"
    if family.has_conv_history:
        yield "the history of an n-gram convolution in the blocks that the file names"


def window_words(family: Family) -> Iterator[str]:
    window = family.window
    if window is None:
        return
    tokens = "a sliding window"
    if window.fixed_tokens:
        tokens += f" of {window.fixed_tokens:,} tokens"
    elif window.default_tokens:
        tokens += f" ({window.default_tokens:,} tokens unless the file says otherwise)"
    if window.default_tokens == 0:
        tokens += ", if the file names one"
    if window.period is None:
        blocks = "in the blocks that the file marks"
    elif window.period == 0:
        blocks = "in every attention block"
    else:
        kept = "first" if window.is_full_first else "last"
        blocks = f"in all but the {kept} of every {window.period} blocks"
    only = f", in models of {window.only_with_blocks} blocks" if window.only_with_blocks else ""
    yield f"{tokens}, {blocks}{only}"


def recurrent_words(family: Family) -> str:
    rule = family.recurrent
    interval = rule.interval if rule else 0
    return {
        Where.EVERY: "in every block, and nothing else",
        Where.BESIDE_ATTENTION: "beside the attention of every block",
        Where.INTERVAL: f"in all but the last of every {interval} blocks",
        Where.NO_KV_HEADS: "in the blocks without KV heads",
        Where.NO_KV_HEADS_NOR_FFN: "in the blocks with neither KV heads nor an FFN",
        None: "",
    }[rule.where if rule else None]


if __name__ == "__main__":
    sys.exit(main())
