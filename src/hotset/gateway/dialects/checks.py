"""Checks of a request that the dialects share. Each names the place in the client's JSON.

Only what the engine would answer with an error of its own (status 500, or without the place), or
would silently ignore so that the answer is not what was asked for, is checked here.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from hotset.gateway.dialects.failure import BadRequest

__all__ = [
    "check_choice",
    "check_image_url",
    "check_kind",
    "check_limit",
    "check_schema",
    "check_word",
    "drop_nulls",
    "limits",
    "mend_stops",
    "need_list",
    "need_object",
    "need_text",
    "refuse_images",
    "steady_billing",
]

_KINDS: dict[str, tuple[type, ...]] = {
    "a number": (int, float),
    "a whole number": (int,),
    "true or false": (bool,),
    "a text": (str,),
    "an object": (dict,),
    "a list": (list,),
}
_SHOWN_CHARACTERS = 60
_MOST_TOKENS = 2**31 - 1  # the engine counts in 32 bits


def shown(value: object) -> str:
    """A value of the client's JSON, short enough for a message."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= _SHOWN_CHARACTERS else text[:_SHOWN_CHARACTERS] + "..."


def check_kind(value: object, kind: str, path: str) -> None:
    """Raises BadRequest unless the value is `kind`, a key of the table above."""
    is_flag = isinstance(value, bool) and kind != "true or false"
    if is_flag or not isinstance(value, _KINDS[kind]):
        raise BadRequest(f"is {shown(value)}; it must be {kind}", path)


def check_word(value: object, words: Sequence[str], path: str) -> None:
    """Raises BadRequest unless the value is one of `words`."""
    if value not in words:
        raise BadRequest(f"is {shown(value)}; it must be one of {', '.join(words)}", path)


def need_text(holder: Mapping[str, Any], key: str, path: str) -> str:
    """The text at `key`. Raises BadRequest if there is none, or it is empty."""
    value = holder.get(key)
    if not isinstance(value, str) or not value:
        found = f"is {shown(value)}" if key in holder else "is missing"
        raise BadRequest(f"{found}; it must be a text that is not empty", f"{path}.{key}")
    return value


def need_object(value: object, path: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadRequest(f"is {shown(value)}; it must be an object", path)
    return value


def need_list(value: object, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadRequest(f"is {shown(value)}; it must be a list", path)
    return value


def drop_nulls(body: dict[str, Any]) -> bool:
    """Null means absent. Returns whether there was one."""
    nulls = [key for key, value in body.items() if value is None]
    for key in nulls:
        del body[key]
    return bool(nulls)


def check_limit(body: Mapping[str, Any], *keys: str) -> None:
    """Token limits: whole numbers from 0; -1 is llama.cpp's word for no limit."""
    for key in keys:
        if key in body:
            check_kind(body[key], "a whole number", key)
            if not -1 <= body[key] <= _MOST_TOKENS:
                raise BadRequest(f"is {body[key]}; it must be 0 to {_MOST_TOKENS}", key)


def mend_stops(body: dict[str, Any], key: str) -> bool:
    """Texts to stop at. Some clients send an empty one for none: every answer would end with it.

    Returns whether there was one.
    """
    stops = body.get(key)
    if isinstance(stops, str):
        if not stops:
            del body[key]
        return not stops
    if stops is None:
        return False
    for i, stop in enumerate(need_list(stops, key)):
        check_kind(stop, "a text", f"{key}[{i}]")
    body[key] = [stop for stop in stops if stop]
    return len(body[key]) < len(stops)


def limits(body: Mapping[str, Any], table: Mapping[str, str]) -> None:
    """Check the kinds of plain fields: name to kind."""
    for key, kind in table.items():
        if key in body:
            check_kind(body[key], kind, key)


def check_schema(schema: Any, path: str) -> None:
    """The parameters of a tool: a JSON schema of an object.

    The engine's grammar would let anything through where a schema is not one.
    """
    schema = need_object(schema, path)
    kind = schema.get("type", "object")
    if kind != "object":
        raise BadRequest(f"is {shown(kind)}; a tool takes an 'object'", f"{path}.type")
    if "properties" in schema:
        properties = need_object(schema["properties"], f"{path}.properties")
        for name, value in properties.items():
            if not isinstance(value, dict | bool):
                raise BadRequest(
                    f"is {shown(value)}; it must be a schema", f"{path}.properties.{name}"
                )
    if "required" in schema:
        for i, name in enumerate(need_list(schema["required"], f"{path}.required")):
            check_kind(name, "a text", f"{path}.required[{i}]")


def check_choice(name: str, tools: Sequence[str], path: str) -> None:
    """A tool that must be called has to be among the tools."""
    if name not in tools:
        known = ", ".join(sorted(tools)) or "none"
        raise BadRequest(f"no tool is called '{name}'; the tools are: {known}", path)


def refuse_images(path: str, *, has_vision: bool) -> None:
    if not has_vision:
        raise BadRequest(
            "this model cannot see images; leave them out, or ask a model with vision",
            path,
            code="image_not_supported",
        )


def check_image_url(url: object, path: str) -> None:
    """Only images that the request carries: the gateway fetches nothing from elsewhere."""
    if not isinstance(url, str) or not url:
        raise BadRequest(f"is {shown(url)}; it must be a data: URL", path)
    if "://" in url[:16] and not url.startswith("data:"):
        raise BadRequest(
            "images are not fetched from other places; send it as a data: URL with base64",
            path,
            code="image_not_supported",
        )


_BILLING = "x-anthropic-billing-header:"
_STEADY = "x-anthropic-billing-header: -;"


def steady_billing(text: str) -> str:
    """A system text whose billing line, if it begins with one, is the same in every request.

    Claude Code puts `x-anthropic-billing-header: cc_version=...; cch=...;` before its system
    prompt. A value in it changes with each request, and everything after it would have
    to be read again. It says nothing to a model, so its `name=value;` pairs give way to a dash.
    """
    if not text.startswith(_BILLING):
        return text
    rest = text[len(_BILLING) :]
    while True:
        pair, mark, after = rest.lstrip(" ").partition(";")
        if not mark or "=" not in pair or any(c.isspace() for c in pair):
            return _STEADY + rest
        rest = after
