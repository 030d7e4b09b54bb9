"""Checked access to the metadata of one file. A file is believed in nothing."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from hotset.core.errors import FileProblem

__all__ = ["MAX_BLOCKS", "Metadata"]

MAX_BLOCKS = 512
"""Blocks that the engine takes (LLAMA_MAX_LAYERS in llama.cpp src/llama-hparams.h)."""

_MAX_NUMBER = 2**32 - 1  # the engine reads these keys as unsigned 32-bit
_SHOWN_CHARACTERS = 40


@dataclass(frozen=True, slots=True)
class Metadata:
    """The keys of one architecture, e.g. ``llama.block_count`` as ``number("block_count")``.

    Attributes:
        values: the file's metadata. Text, integers, floats, booleans, tuples of numbers; any
            other object stands for something that was not read.
        architecture: the prefix of the keys.
        source: the file's name, first thing in every message.

    Every method raises `FileProblem`, naming key and value, for what the engine could not mean.
    """

    values: Mapping[str, object]
    architecture: str
    source: str

    def has(self, key: str) -> bool:
        return self._name(key) in self.values

    def number(
        self, key: str, default: int | None = None, *, low: int = 0, high: int = _MAX_NUMBER
    ) -> int:
        """A whole number from `low` to `high`; `default` where the key is absent.

        Without a default the key is required.
        """
        value = self.values.get(self._name(key))
        if value is None:
            if default is None:
                raise self.problem(key, "is missing, and the engine needs it")
            return default
        return self._checked(key, value, low, high)

    def per_block(self, key: str, n_blocks: int, default: tuple[int, ...]) -> tuple[int, ...]:
        """One number per block: an array of exactly that length, or one number for all.

        The engine insists on the length too (llama.cpp src/llama-model-loader.cpp,
        get_key_or_arr).
        """
        value = self.values.get(self._name(key))
        if value is None:
            return default
        if isinstance(value, tuple):
            if len(value) != n_blocks:
                raise self.problem(
                    key, f"has {len(value)} entries, but the model has {n_blocks} blocks"
                )
            return tuple(self._checked(key, v, 0, _MAX_NUMBER) for v in value)
        return (self._checked(key, value, 0, _MAX_NUMBER),) * n_blocks

    def flags(self, key: str, n_blocks: int) -> tuple[bool, ...] | None:
        """One flag per block, from an array of booleans or numbers; None where it is no array.

        Blocks behind the end of a short array have the flag off, as in the engine.
        """
        value = self.values.get(self._name(key))
        if not isinstance(value, tuple):
            return None
        if len(value) > MAX_BLOCKS:
            raise self.problem(key, f"has {len(value)} entries; at most {MAX_BLOCKS} make sense")
        on = tuple(
            self._checked(key, int(v) if isinstance(v, bool) else v, 0, _MAX_NUMBER) for v in value
        )
        return tuple(bool(v) for v in on[:n_blocks]) + (False,) * (n_blocks - len(on))

    def indices(self, key: str) -> tuple[int, ...]:
        """A list of block numbers; empty where the key is absent."""
        value = self.values.get(self._name(key), ())
        if not isinstance(value, tuple):
            raise self.problem(key, f"is {_shown(value)}, not a list of blocks")
        return tuple(self._checked(key, v, 0, MAX_BLOCKS - 1) for v in value)

    def problem(self, key: str, what: str) -> FileProblem:
        """The failure to raise about `key`: `what` starts with a verb and says value and reason."""
        return FileProblem(
            f"{self.source}: {self._name(key)} {what}; the file is damaged, or made for another "
            "engine: get a current one"
        )

    def _name(self, key: str) -> str:
        return f"{self.architecture}.{key}"

    def _checked(self, key: str, value: object, low: int, high: int) -> int:
        if type(value) is not int:
            raise self.problem(key, f"is {_shown(value)}, not a whole number")
        if not low <= value <= high:
            raise self.problem(key, f"is {value}; it must be from {low} to {high}")
        return value


def _shown(value: object) -> str:
    text = repr(value)
    return text if len(text) <= _SHOWN_CHARACTERS else text[: _SHOWN_CHARACTERS - 3] + "..."
