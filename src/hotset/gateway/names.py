"""How clients name models: ids from file names, aliases, and the model that a name means."""

from __future__ import annotations

import difflib
import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from hotset.core.errors import ClientProblem, ConfigProblem
from hotset.gguf.shards import ShardName

__all__ = ["Name", "Names", "given_names", "model_id"]

# The last words of a file name that say how it is quantized: `-Q4_K_M`, `.IQ4_XS`, `-UD-Q4_K_XL`,
# `-bf16`, `-MXFP4_MOE`, in the spelling of llama.cpp's file types and of the usual publishers.
_QUANTIZATION = re.compile(
    r"[-._](?:ud[-._])?(?:i1[-._])?"
    r"(?:i?q\d(?:_[a-z0-9]+)*|tq\d_\d|b?f16|f32|fp(?:16|32)|mxfp4(?:_moe)?|nvfp4)$",
    re.IGNORECASE,
)
_UNUSUAL = re.compile(r"[^\w.+:/@-]+")
# What clients add to a name: Ollama's default tag, and a file's ending.
_ADDITIONS = (":latest", ".gguf")
_NUM_NEAREST = 3


@dataclass(frozen=True, slots=True)
class Name:
    """The names of one model; `id` is the canonical one."""

    id: str
    aliases: tuple[str, ...] = ()


def model_id(path: Path) -> str:
    """After its file, in small letters, without the shard number."""
    shard = ShardName.parse(path.name)
    return _plain(shard.prefix if shard else path.stem)


def given_names(models: Sequence[tuple[Path, str]]) -> list[Name]:
    """Names for the models of one folder, each unique, whatever their order.

    An id is the file's name; where two files have the same, the folder's name stands before it.
    Aliases are the name without its quantization and the model's own name (`general.name`), each
    where one model alone would have it. Another file beside changes no id of another name.

    Args:
        models: the file (of a shard set, the first) and `general.name`, empty if there is none.
    """
    ids = _unique_ids([path for path, _ in models])
    taken = set(ids)
    wished = [_short_names(path, own_name) for path, own_name in models]
    claims = Counter(alias for aliases in wished for alias in aliases)
    return [
        Name(id_, tuple(a for a in aliases if claims[a] == 1 and a not in taken))
        for id_, aliases in zip(ids, wished, strict=True)
    ]


def _unique_ids(paths: Sequence[Path]) -> list[str]:
    ids = [model_id(path) for path in paths]
    depth = 0
    while len(set(ids)) < len(ids):
        counts = Counter(ids)
        depth += 1
        if depth > max(len(path.parts) for path in paths):
            raise ConfigProblem(
                f"models: two files would both be called '{max(ids, key=lambda i: counts[i])}';"
                " rename one, or name them in a configuration file"
            )
        ids = [
            _plain("/".join((*path.parent.parts[-depth:], model_id(path))))
            if counts[id_] > 1
            else id_
            for id_, path in zip(ids, paths, strict=True)
        ]
    return ids


def _short_names(path: Path, own_name: str) -> list[str]:
    names = (_QUANTIZATION.sub("", model_id(path)), _plain(own_name))
    return [name for name in dict.fromkeys(names) if name]


def _plain(text: str) -> str:
    """Small letters, and nothing that needs quoting in a URL's path or a shell."""
    return _UNUSUAL.sub("-", text.casefold()).strip("-/.:")


class Names:
    """The model that a client's name means.

    Args:
        names: ids and aliases.
        default: the id that no name at all means; None for "the only one, if there is one".

    Raises:
        ConfigProblem: a name that two models have, or a default that there is not.
    """

    def __init__(self, names: Iterable[Name], default: str | None = None) -> None:
        self._ids: dict[str, str] = {}
        for name in (names := list(names)):
            self._add(name.id, name.id)
        for name in names:
            for alias in name.aliases:
                self._add(alias, name.id)
        self._folded = _without_doubles(self._ids)
        ids = [name.id for name in names]
        self._default = default or (ids[0] if len(ids) == 1 else None)
        if default is not None and default not in ids:
            raise ConfigProblem(f"the default model '{default}' is none of {', '.join(ids)}")

    def _add(self, name: str, id_: str) -> None:
        owner = self._ids.setdefault(name, id_)
        if owner != id_:
            raise ConfigProblem(f"the name '{name}' means both {owner} and {id_}; change one")

    def resolve(self, name: str) -> str:
        """The id that `name` means: as written, then in any case, then without a usual ending.

        Raises:
            ClientProblem: 404, naming the nearest that there are.
        """
        if not name and self._default:
            return self._default
        forms = [name, *(name.removesuffix(added) for added in _ADDITIONS)]
        for form in forms:
            found = self._ids.get(form) or self._folded.get(form.casefold())
            if found:
                return found
        raise ClientProblem(self._unknown(name), 404)

    def _unknown(self, name: str) -> str:
        near = difflib.get_close_matches(name.casefold(), self._folded, _NUM_NEAREST, 0.5)
        ids = list(dict.fromkeys(self._folded[form] for form in near))
        ids = ids or sorted(set(self._ids.values()))[:_NUM_NEAREST]
        what = f"there is no model '{name[:100]}'" if name else "the request names no model"
        if not ids:
            return f"{what}: none is served"
        return f"{what}; did you mean {' or '.join(ids)}? GET /v1/models lists all"


def _without_doubles(ids: Mapping[str, str]) -> dict[str, str]:
    """Names in small letters, without those that then mean more than one model."""
    folded: dict[str, str] = {}
    counts = Counter((name.casefold(), id_) for name, id_ in ids.items())
    owners = Counter(name for name, _ in counts)
    for name, id_ in ids.items():
        if owners[name.casefold()] == 1:
            folded[name.casefold()] = id_
    return folded
