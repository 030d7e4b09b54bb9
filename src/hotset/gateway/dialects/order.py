"""Conversations in an order that strict chat templates take. No text is lost.

Templates refuse, each in its own way: a system message that is not the first or not the only one,
the role "developer", two messages of one role in a row, an assistant's message at the end. What a
template takes is left as it is: these functions are used only after the engine has refused.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

__all__ = [
    "join_contents",
    "with_one_system_message",
    "without_empty_end",
    "without_repeated_roles",
]

Message = dict[str, Any]

_SYSTEM_ROLES = ("system", "developer")


def join_contents(first: object, second: object) -> object:
    """Two contents as one: texts with a blank line between, parts in a row."""
    if not first:
        return second
    if not second:
        return first
    if isinstance(first, str) and isinstance(second, str):
        return f"{first}\n\n{second}"
    return [*_parts(first), *_parts(second)]


def _parts(content: object) -> list[Any]:
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    return list(content) if isinstance(content, list) else []


def with_one_system_message(messages: Sequence[Message]) -> list[Message]:
    """System texts before the first answer in one leading message; later ones stay in their place,
    as the user's.

    Moving a late one to the front would change the beginning of the conversation, and everything
    after it would have to be read again in each turn.
    """
    system: object = ""
    others: list[Message] = []
    has_answer = False
    for message in messages:
        role = message.get("role")
        has_answer = has_answer or role == "assistant"
        if role not in _SYSTEM_ROLES:
            others.append(message)
        elif has_answer:
            others.append({**message, "role": "user"})
        else:
            system = join_contents(system, message.get("content"))
    return ([{"role": "system", "content": system}] if system else []) + others


def without_repeated_roles(messages: Sequence[Message]) -> list[Message]:
    """Neighbours of the same role as one message; tool results stay apart."""
    joined: list[Message] = []
    for message in messages:
        role = message.get("role")
        before = joined[-1] if joined else {}
        if role in ("user", "assistant") and before.get("role") == role:
            joined[-1] = _joined(before, message)
        else:
            joined.append(message)
    return joined


def _joined(first: Mapping[str, Any], second: Mapping[str, Any]) -> Message:
    both: Message = {**first, **second}
    both["content"] = join_contents(first.get("content"), second.get("content")) or ""
    for key in ("tool_calls", "reasoning_content"):
        if first.get(key) and second.get(key):
            both[key] = first[key] + second[key]
        elif first.get(key):
            both[key] = first[key]
    return both


def without_empty_end(messages: Sequence[Message]) -> list[Message]:
    """An empty last message of the assistant is dropped: there is nothing in it to go on from."""
    last = messages[-1] if messages else {}
    is_empty = last.get("role") == "assistant" and not (
        last.get("content") or last.get("tool_calls") or last.get("reasoning_content")
    )
    return list(messages[:-1] if is_empty else messages)
