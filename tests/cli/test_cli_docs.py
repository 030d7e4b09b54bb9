"""The documents say what the program does: commands, families, and where things are."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from hotset.core.families import FAMILIES

ROOT = Path(__file__).resolve().parents[2]
DOCUMENTS = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").glob("*.md")])
COMMANDS = ("inspect", "plan", "run", "serve", "doctor", "demo")
LINK = re.compile(r"\]\((?!https?:)([^)#]+)")
MODULE_ROW = re.compile(r"^\| (`[\w./]+`(?:, `[\w./]+`)*) \|", re.MULTILINE)


def make_docs(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    script = ROOT / "scripts" / "make_cli_docs.py"
    return subprocess.run(
        [sys.executable, str(script), *map(str, arguments)],
        capture_output=True,
        text=True,
        check=False,
    )


@pytest.fixture
def copied_docs(tmp_path: Path) -> Path:
    for name in ("cli.md", "gguf.md"):
        shutil.copy(ROOT / "docs" / name, tmp_path)
    return tmp_path


def test_the_documents_are_what_the_program_says_now() -> None:
    done = make_docs("--check")

    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.parametrize(
    ("name", "was", "becomes"),
    [("cli.md", "--max-tokens", "--most-tokens"), ("gguf.md", "| `gpt-oss` |", "| `gpt-osx` |")],
)
def test_a_document_that_differs_is_stale_until_it_is_written_again(
    copied_docs: Path, name: str, was: str, becomes: str
) -> None:
    document = copied_docs / name
    good = document.read_text()
    document.write_text(good.replace(was, becomes))
    assert document.read_text() != good

    checked = make_docs("--check", copied_docs)
    assert checked.returncode == 1
    assert checked.stderr == f"{document}: stale; run `make docs`\n"

    assert make_docs(copied_docs).returncode == 0
    assert document.read_text() == good


def test_checking_writes_nothing(copied_docs: Path) -> None:
    (copied_docs / "cli.md").unlink()

    assert make_docs("--check", copied_docs).returncode == 1
    assert not (copied_docs / "cli.md").exists()


def test_a_document_without_its_marks_is_refused_and_left_alone(copied_docs: Path) -> None:
    document = copied_docs / "gguf.md"
    document.write_text("no marks here\n")

    done = make_docs(copied_docs)

    assert done.returncode == 1
    assert "marks" in done.stderr
    assert document.read_text() == "no marks here\n"


@pytest.mark.parametrize("command", COMMANDS)
def test_every_option_that_a_command_takes_is_documented(command: str) -> None:
    sections = (ROOT / "docs" / "cli.md").read_text().split("\n## ")
    (section,) = [s for s in sections if s.startswith(f"hotset {command}\n")]
    source = (ROOT / "src" / "hotset" / "cli" / f"{command}.py").read_text()

    options = re.findall(r"typer\.Option\(\s*\"(--[\w-]+)\"", source)

    assert [option for option in options if f" {option} " not in section] == []


def test_every_known_architecture_is_documented() -> None:
    text = (ROOT / "docs" / "gguf.md").read_text()
    rows = [line for line in text.splitlines() if line.startswith("| `")]
    documented = [name for row in rows for name in re.findall(r"`([^`]+)`", row.split("|")[1])]

    assert sorted(documented) == sorted(name for f in FAMILIES for name in f.architectures)


@pytest.mark.parametrize("document", DOCUMENTS, ids=lambda path: path.name)
def test_every_link_between_documents_leads_somewhere(document: Path) -> None:
    links = LINK.findall(document.read_text())

    assert [link for link in links if not (document.parent / link).exists()] == []


def test_every_module_on_the_map_exists() -> None:
    text = (ROOT / "docs" / "architecture.md").read_text()
    room = ""
    missing, found = [], 0
    for line in text.splitlines():
        heading = re.match(r"\*\*`(\w+)/`\*\*", line)
        room = heading[1] if heading else room
        row = MODULE_ROW.match(line)
        for name in re.findall(r"`([\w./]+)`", row[1]) if row and room else ():
            if name.endswith((".py", "/")):
                found += 1
                if not (ROOT / "src" / "hotset" / room / name).exists():
                    missing.append(f"{room}/{name}")

    assert missing == []
    assert found > 25
