"""docs/gateway.md lists what people report of other gateways, and the test for each."""

from __future__ import annotations

import re
from pathlib import Path

TESTS = Path(__file__).parents[1]


def test_every_test_that_the_docs_name_is_there() -> None:
    text = (TESTS.parent / "docs" / "gateway.md").read_text()
    named = re.findall(r"`(?:(test_\w+)\.py::)?(test_\w+)`", text)
    assert len(named) > 30
    texts = {path.stem: path.read_text() for path in TESTS.rglob("test_*.py")}
    for module, name in named:
        places = [texts[module]] if module else list(texts.values())
        assert any(f"def {name}(" in place for place in places), (module, name)
