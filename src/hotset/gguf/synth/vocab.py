"""Vocabularies for synthetic models: byte-level BPE in the manner of GPT-2.

Any text tokenizes, because all 256 bytes are tokens; a few merges make words of several bytes;
the special tokens and a ChatML template make chat requests work.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass

from hotset.core.errors import ConfigProblem
from hotset.gguf.synth.writer import Typed, Value, ValueType

__all__ = ["CHAT_TEMPLATE", "MIN_VOCABULARY", "Vocabulary", "make_vocabulary"]

CHAT_TEMPLATE = (
    "{% for message in messages %}"
    "{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>\\n' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}"
)

_SPECIALS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")
_WORDS = (
    "the", "of", "and", "to", "in", "is", "that", "for", "it", "as", "was", "with", "on",
    "be", "by", "at", "this", "from", "are", "or", "an", "have", "not", "which", "you",
    "but", "one", "all", "can", "has", "been", "more", "will", "time", "about", "some",
    "out", "into", "other", "new", "only",
)  # fmt: skip
_SYLLABLES = tuple(c + v for c in "bdfgklmnprstvz" for v in "aeiou")
_NORMAL, _CONTROL = 1, 3


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """Tokens in the order of their numbers.

    Attributes:
        tokens: as the file spells them.
        merges: pairs for BPE, "left right", by rank.
        n_special: control tokens, at the end of `tokens`.
        silent: tokens that a synthetic model should never choose: control tokens (the answer
            would end at once) and bytes outside printable ASCII (it would be no text).
    """

    tokens: tuple[str, ...]
    merges: tuple[str, ...]
    n_special: int
    silent: frozenset[int]

    def metadata(self, *, pre: str = "gpt-2", with_template: bool = True) -> dict[str, Value]:
        """The `tokenizer.*` keys.

        Args:
            pre: the splitting rule, by its name in llama.cpp (src/llama-vocab.cpp).
            with_template: whether there is a chat template.
        """
        n_normal = len(self.tokens) - self.n_special
        end_of_text, im_end = n_normal, n_normal + 2
        values: dict[str, Value] = {
            "tokenizer.ggml.model": "gpt2",
            "tokenizer.ggml.pre": pre,
            "tokenizer.ggml.tokens": self.tokens,
            "tokenizer.ggml.token_type": Typed(
                ValueType.INT32, [_NORMAL] * n_normal + [_CONTROL] * self.n_special
            ),
            "tokenizer.ggml.merges": self.merges,
            "tokenizer.ggml.bos_token_id": end_of_text,
            "tokenizer.ggml.eos_token_id": im_end,
            "tokenizer.ggml.padding_token_id": end_of_text,
            "tokenizer.ggml.add_bos_token": False,
        }
        if with_template:
            values["tokenizer.chat_template"] = CHAT_TEMPLATE
        return values


def make_vocabulary(n_tokens: int) -> Vocabulary:
    """`n_tokens` tokens: bytes, merged words, made-up words as filling, control tokens.

    Raises:
        ConfigProblem: below `MIN_VOCABULARY`.
    """
    if n_tokens < MIN_VOCABULARY:
        raise ConfigProblem(
            f"vocabulary of {n_tokens} tokens: bytes, words and control tokens alone are "
            f"{MIN_VOCABULARY}; ask for at least that many"
        )
    tokens = list(_BYTE_TOKENS)
    merges = []
    for left, right in _word_merges():
        tokens.append(left + right)
        merges.append(f"{left} {right}")
    n_filling = n_tokens - len(tokens) - len(_SPECIALS)
    filling = list(itertools.islice(_made_up_words(frozenset(tokens)), n_filling))
    # A made-up word merges from its halves. Most halves are no tokens themselves, so these
    # merges never fire; they give the file the size and the shape of a real vocabulary.
    merges += [f"{word[:-2]} {word[-2:]}" for word in filling]
    silent = {i for i, token in enumerate(_BYTE_TOKENS) if not ("!" <= token <= "~")}
    silent.discard(_BYTE_TOKENS.index(_SPACE))
    silent.update(range(n_tokens - len(_SPECIALS), n_tokens))
    return Vocabulary(
        tokens=(*tokens, *filling, *_SPECIALS),
        merges=tuple(merges),
        n_special=len(_SPECIALS),
        silent=frozenset(silent),
    )


def _byte_tokens() -> tuple[str, ...]:
    """GPT-2's spelling of the bytes: printable ones as they are, the others from U+0100 on."""
    printable = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [b for b in range(256) if b not in printable]
    return (*map(chr, printable), *(chr(0x100 + i) for i in range(len(others))))


_BYTE_TOKENS = _byte_tokens()
_SPACE = "\u0120"


def _word_merges() -> Iterator[tuple[str, str]]:
    """The merges that build each word, with its leading space, letter by letter."""
    seen = set()
    for word in _WORDS:
        left = _SPACE
        for letter in word:
            if left + letter not in seen:
                seen.add(left + letter)
                yield left, letter
            left += letter


def _made_up_words(taken: frozenset[str]) -> Iterator[str]:
    words = (
        _SPACE + "".join(syllables)
        for n_syllables in itertools.count(1)
        for syllables in itertools.product(_SYLLABLES, repeat=n_syllables)
    )
    return (word for word in words if word not in taken)


MIN_VOCABULARY = 256 + sum(1 for _ in _word_merges()) + len(_SPECIALS)
"""Tokens of the smallest vocabulary."""
