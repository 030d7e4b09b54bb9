"""Routing traces for the tests, written from the description in docs/trace.md."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence

HEADER = b"HOTSETTR" + struct.pack("<II", 1, 0)


def record(kind: int, payload: bytes) -> bytes:
    return struct.pack("<HHI", kind, 0, len(payload)) + payload


def layer(number: int, name: str, num_experts: int, expert_bytes: int = 1000) -> bytes:
    return record(1, struct.pack("<IIQ", number, num_experts, expert_bytes) + name.encode())


def batch(
    number: int, of_layer: int, tokens: Sequence[Sequence[int]], batch_tokens: int | None = None
) -> bytes:
    """`tokens` holds each token's experts; all tokens use the same number of them."""
    began_with = len(tokens) if batch_tokens is None else batch_tokens
    head = struct.pack("<QIIII", number, of_layer, began_with, len(tokens), len(tokens[0]))
    ids = [expert for token in tokens for expert in token]
    return record(2, head + struct.pack(f"<{len(ids)}H", *ids))


def trace(records: Iterable[bytes]) -> bytes:
    return HEADER + b"".join(records)
