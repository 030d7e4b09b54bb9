"""Regular expressions in JSON schemas, in the form that the engine can hold an answer to.

llama.cpp's grammar takes an anchored `^...$` of literals, classes, groups and counts; for anything
else it lets every text through with a warning in its log (`_pattern_to_rule` in its
common/json-schema-to-grammar.cpp). So what can be said in those words is, and the rest is refused
where an answer was to have exactly this form.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

from hotset.gateway.dialects.failure import BadRequest

__all__ = ["mend_patterns"]

_CLASSES = {"d": "0-9", "w": "A-Za-z0-9_", "s": " \\t\\n\\r"}
_MAX_DEPTH = 64
# Look-around, back references, word borders, properties, lazy and possessive counts.
_BEYOND = re.compile(r"\(\?(?!:)|\\[1-9bBDWSpPkAZzGQEXR]|[*+?}][?+]")
_INNER_ANCHOR = re.compile(r"(?<!\\)[$]|(?<![\\\[])\^")


def mend_patterns(schema: Any, path: str, *, is_strict: bool) -> bool:
    """Rewrite the patterns of a schema in place. Returns whether one changed.

    Args:
        is_strict: refuse what the engine cannot hold an answer to. Otherwise it stays as it is,
            for a tool that checks its arguments itself.

    Raises:
        BadRequest: with the pattern's place.
    """

    def mend(pattern: str, at: str) -> str:
        better = _spelled_out(pattern)
        if is_strict and not _is_held(better):
            raise BadRequest(
                f"'{pattern}' is an expression that answers cannot be held to here; begin with ^"
                " and end with $, and use neither look-around, \\b, references nor lazy counts",
                at,
                code="schema_not_supported",
            )
        return better

    return _walk(schema, path, mend, 0)


def _walk(schema: Any, path: str, mend: Callable[[str, str], str], depth: int) -> bool:
    if depth > _MAX_DEPTH:
        raise BadRequest("is nested too deeply", path)
    changed = False
    if isinstance(schema, list):
        for i, each in enumerate(schema):
            changed = _walk(each, f"{path}[{i}]", mend, depth + 1) or changed
    elif isinstance(schema, dict):
        pattern = schema.get("pattern")
        if isinstance(pattern, str):
            schema["pattern"] = mend(pattern, f"{path}.pattern")
            changed = schema["pattern"] != pattern
        for key, value in schema.items():
            # In these places stand values, not schemas.
            if key not in ("enum", "const", "default", "examples", "required"):
                changed = _walk(value, f"{path}.{key}", mend, depth + 1) or changed
    return changed


def _spelled_out(pattern: str) -> str:
    """Short classes (`\\d`, `\\w`, `\\s`) as ranges, inside brackets and out."""
    out = []
    in_class = False
    i = 0
    while i < len(pattern):
        two = pattern[i : i + 2]
        if two[0] == "\\" and two[1:] in _CLASSES:
            out.append(_CLASSES[two[1]] if in_class else f"[{_CLASSES[two[1]]}]")
            i += 2
        elif two[0] == "\\":
            out.append(two)
            i += 2
        else:
            in_class = two[0] != "]" if in_class else two[0] == "["
            out.append(two[0])
            i += 1
    return "".join(out)


def _is_held(pattern: str) -> bool:
    if len(pattern) < 2 or pattern[0] != "^" or pattern[-1] != "$" or pattern.endswith("\\$"):
        return False
    inner = pattern[1:-1]
    outside = re.sub(r"\[(?:\\.|[^\]\\])*\]", "[]", inner)
    return not _BEYOND.search(outside) and not _INNER_ANCHOR.search(outside)
