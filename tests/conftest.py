"""What more than one room's tests share."""

from __future__ import annotations

import os
from pathlib import Path

import pytest
from hypothesis import settings

from enginekit import smollm2

# No test asserts a time: a busy machine would make it fail.
settings.register_profile("hotset", deadline=None)
# For tests that look for rare histories: `pytest --hypothesis-profile=long tests/gateway/...`.
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile("hotset")

# Kept between runs: it takes a minute to fill. A changed recipe fills it anew.
_CACHE = Path(__file__).parents[1] / "build" / "demo-cache"


@pytest.fixture(scope="session")
def cache_home() -> Path:
    """An XDG_CACHE_HOME in which the demo's model with experts has been made."""
    from hotset.cli.converting import demo_moe_model

    before = os.environ.get("XDG_CACHE_HOME")
    os.environ["XDG_CACHE_HOME"] = str(_CACHE)
    try:
        demo_moe_model(smollm2())
    finally:
        del os.environ["XDG_CACHE_HOME"]
        if before is not None:
            os.environ["XDG_CACHE_HOME"] = before
    return _CACHE


@pytest.fixture(scope="session")
def smollm2_moe(cache_home: Path) -> Path:
    """The demo's model with experts."""
    return next((cache_home / "hotset").glob("smollm2-*.gguf"))
