"""Text to tokens, for calibration: byte pair encoding as GPT-2's, by the file's own tables.

Close to the engine's: letters and digits beyond the usual may be cut at other places, which a
calibration does not mind.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import pairwise

from hotset.core.errors import FileProblem
from hotset.gguf.reader import Header

__all__ = ["Tokenizer"]

_WORDS = re.compile(r"'(?:s|t|re|ve|m|ll|d)| ?[^\W\d_]+|\d| ?(?:[^\s\w]|_)+|\s+(?!\S)|\s+")
_CONTROL = re.compile(r"(<\|\w+\|>)")


class Tokenizer:
    """Args:
        header: of a model file with a `gpt2` vocabulary, read with its tokens and merges.

    Raises:
        FileProblem: another kind of vocabulary.
    """

    def __init__(self, header: Header) -> None:
        tokens, merges = (
            header.metadata.get(f"tokenizer.ggml.{name}") for name in ("tokens", "merges")
        )
        if not isinstance(tokens, tuple) or not isinstance(merges, tuple):
            raise FileProblem(f"{header.path.name}: no byte pair vocabulary; use another file")
        self._ids = {str(token): number for number, token in enumerate(tokens)}
        self._ranks = {tuple(str(pair).split(" ")): rank for rank, pair in enumerate(merges)}
        self._letters = _byte_letters()
        self._known: dict[str, list[int]] = {}

    def encode(self, text: str) -> list[int]:
        """Tokens of `text`; names of control tokens stand for them."""
        tokens: list[int] = []
        for part in _CONTROL.split(text):
            if part in self._ids and _CONTROL.fullmatch(part):
                tokens.append(self._ids[part])
                continue
            for word in _WORDS.findall(part):
                if word not in self._known:
                    self._known[word] = self._encode_word(word)
                tokens += self._known[word]
        return tokens

    def _encode_word(self, word: str) -> list[int]:
        parts = [self._letters[byte] for byte in word.encode()]
        while len(parts) > 1:
            pairs = list(pairwise(parts))
            best = min(pairs, key=lambda pair: self._ranks.get(pair, len(self._ranks)))
            if best not in self._ranks:
                break
            parts = _merged(parts, best)
        return [self._ids[part] for part in parts if part in self._ids]


def _merged(parts: Sequence[str], pair: tuple[str, str]) -> list[str]:
    merged: list[str] = []
    at = 0
    while at < len(parts):
        if tuple(parts[at : at + 2]) == pair:
            merged.append("".join(pair))
            at += 2
        else:
            merged.append(parts[at])
            at += 1
    return merged


def _byte_letters() -> list[str]:
    """The letters that stand for the 256 bytes in a GPT-2 vocabulary."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(byte) if byte in printable else chr(next(others)) for byte in range(256)]
