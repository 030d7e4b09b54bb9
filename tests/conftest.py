"""What more than one room's tests share."""

from __future__ import annotations

from hypothesis import settings

# No test asserts a time: a busy machine would make it fail.
settings.register_profile("hotset", deadline=None)
# For tests that look for rare histories: `pytest --hypothesis-profile=long tests/gateway/...`.
settings.register_profile("long", max_examples=10_000, deadline=None)
settings.load_profile("hotset")
