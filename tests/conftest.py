"""Fixtures and settings that more than one room's tests share."""

from __future__ import annotations

from hypothesis import settings

# For tests that look for rare histories: `pytest --hypothesis-profile=long tests/gateway/...`.
settings.register_profile("long", max_examples=10_000, deadline=None)
