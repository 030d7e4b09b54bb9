"""Requests for the tests of the dialects."""

from __future__ import annotations

import copy
from typing import Any

from hotset.gateway.dialects.base import Dialect

USER = {"role": "user", "content": "Hi"}
TOOL = {
    "type": "function",
    "function": {"name": "look", "parameters": {"type": "object", "properties": {}}},
}
CALL = {"id": "c1", "type": "function", "function": {"name": "look", "arguments": "{}"}}
USE = {"type": "tool_use", "id": "c1", "name": "look", "input": {}}
RESULT = {"type": "tool_result", "tool_use_id": "c1", "content": "seen"}
IMAGE = {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}}
PICTURE = {
    "type": "image",
    "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"},
}


def prepared(dialect: Dialect, body: dict[str, Any], **more: bool) -> dict[str, Any]:
    """What the engine would get; the given body stays as it is."""
    mended = copy.deepcopy(body)
    changed = dialect.prepare(mended, has_vision=more.get("has_vision", False))
    assert changed == (mended != body)
    return mended


def chat_with(**more: Any) -> dict[str, Any]:
    return {"messages": [USER], **more}


def message(*blocks: Any, role: str = "user") -> dict[str, Any]:
    return {"messages": [{"role": role, "content": list(blocks)}]}
