"""Messages of Anthropic's form: their content blocks, checked and put in order."""

from __future__ import annotations

from typing import Any

from hotset.gateway.dialects.checks import (
    check_image_url,
    check_kind,
    need_list,
    need_object,
    need_text,
    refuse_images,
    shown,
)
from hotset.gateway.dialects.failure import BadRequest

__all__ = ["has_results", "mend_messages"]

# Thinking of another model comes encrypted; there is nothing in it that this one could read.
_UNREADABLE = ("redacted_thinking",)


def mend_messages(body: dict[str, Any], *, has_vision: bool) -> bool:
    """Check the messages and put them into the engine's words and order, in place.

    Returns whether anything was changed.

    Raises:
        BadRequest: with the place in the JSON.
    """
    if "messages" not in body:
        raise BadRequest("is missing; it must be a list of messages", "messages")
    messages = need_list(body["messages"], "messages")
    if not messages:
        raise BadRequest("is empty; give at least one message", "messages")
    called: set[str] = set()
    mended: list[dict[str, Any]] = []
    for i, message in enumerate(messages):
        path = f"messages[{i}]"
        role = need_text(need_object(message, path), "role", path)
        if role not in ("user", "assistant", "system", "developer"):
            raise BadRequest(f"is {shown(role)}; it must be 'user' or 'assistant'", f"{path}.role")
        content = message.get("content")
        if isinstance(content, str):
            mended.append(message)
            continue
        for j, block in enumerate(need_list(content, f"{path}.content")):
            at = f"{path}.content[{j}]"
            _check_block(need_object(block, at), at, called, role, has_vision=has_vision)
        mended += _in_order({**message, "content": [_readable(block) for block in content]})
    changed = mended != messages
    body["messages"] = mended
    return changed


def _check_block(
    block: dict[str, Any], path: str, called: set[str], role: str, *, has_vision: bool
) -> None:
    kind = need_text(block, "type", path)
    if kind == "text":
        check_kind(block.get("text"), "a text", f"{path}.text")
    elif kind == "thinking":
        check_kind(block.get("thinking"), "a text", f"{path}.thinking")
    elif kind == "image":
        _check_image(block, path, has_vision=has_vision)
    elif kind == "document":
        _document_text(block, path)
    elif kind == "tool_use" and role == "assistant":
        called.add(need_text(block, "id", path))
        need_text(block, "name", path)
        if "input" in block:
            need_object(block["input"], f"{path}.input")
    elif kind == "tool_result" and role == "user":
        if need_text(block, "tool_use_id", path) not in called:
            raise BadRequest(
                f"is {shown(block['tool_use_id'])}, but no message before has a tool_use of that"
                " id",
                f"{path}.tool_use_id",
            )
        content = block.get("content")
        if content is not None and not isinstance(content, str):
            for i, part in enumerate(need_list(content, f"{path}.content")):
                at = f"{path}.content[{i}]"
                inner = need_text(need_object(part, at), "type", at)
                if inner not in ("text", "image", "document"):
                    raise BadRequest(
                        f"is {shown(inner)}; a result is made of 'text' and 'image'", f"{at}.type"
                    )
                _check_block(part, at, called, role, has_vision=has_vision)
    elif kind not in _UNREADABLE:
        raise BadRequest(
            f"is {shown(kind)}; a message of the {role} cannot have it here", f"{path}.type"
        )


def _check_image(block: dict[str, Any], path: str, *, has_vision: bool) -> None:
    refuse_images(path, has_vision=has_vision)
    source = need_object(block.get("source"), f"{path}.source")
    kind = need_text(source, "type", f"{path}.source")
    if kind == "url":
        check_image_url(source.get("url"), f"{path}.source.url")
    elif kind == "base64":
        need_text(source, "data", f"{path}.source")
    else:
        raise BadRequest(f"is {shown(kind)}; it must be 'base64'", f"{path}.source.type")


def _document_text(block: dict[str, Any], path: str) -> str:
    """The words of a document that is plain text; others cannot be read here."""
    source = need_object(block.get("source"), f"{path}.source")
    if source.get("type") != "text":
        raise BadRequest(
            f"is {shown(source.get('type'))}; only documents of plain text can be read here",
            f"{path}.source.type",
            code="not_supported",
        )
    title = block.get("title")
    text = need_text(source, "data", f"{path}.source")
    return f"{title}\n\n{text}" if isinstance(title, str) and title else text


def _readable(block: dict[str, Any]) -> dict[str, Any]:
    """A block as the engine knows it: documents become text, in results too."""
    if block["type"] == "document":
        return {"type": "text", "text": _document_text(block, "document")}
    if block["type"] == "tool_result" and isinstance(block.get("content"), list):
        return {**block, "content": [_readable(part) for part in block["content"]]}
    return block


def _in_order(message: dict[str, Any]) -> list[dict[str, Any]]:
    """A message with tool results and words as two: the engine would put the words first."""
    if not has_results(message):
        return [message]
    results = [b for b in message["content"] if b["type"] == "tool_result"]
    others = [b for b in message["content"] if b["type"] != "tool_result"]
    parts = [{**message, "content": results}]
    return [*parts, {**message, "content": others}] if others else parts


def has_results(message: dict[str, Any]) -> bool:
    """Whether a message brings results of tools."""
    content = message.get("content")
    return isinstance(content, list) and any(b.get("type") == "tool_result" for b in content)
