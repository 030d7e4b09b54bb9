"""The gateway's configuration file: YAML, every key known, every error with its line.

listen: 127.0.0.1:9292
api_keys: [{file: ~/.config/hotset/key}, {env: HOTSET_KEY_OF_BOB}]
models:
  qwen: {path: ~/models/Qwen3-30B-A3B-Q4_K_M.gguf, ctx: 64k, ttl: 30m, aliases: [default]}
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Any, TypeAlias

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.comments import CommentedMap, CommentedSeq
from ruamel.yaml.error import MarkedYAMLError, YAMLError

from hotset.core.errors import ConfigProblem
from hotset.core.machine_text import read_size
from hotset.core.settings import KV_TYPES
from hotset.core.units import MIB, parse_tokens

__all__ = ["Config", "KeySource", "ModelEntry", "load_config", "parse_duration"]

_MAX_FILE_BYTES = 4 * MIB
_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*([smhd]?)")
_UNIT_S = {"": 1, "s": 1, "m": 60, "h": 3600, "d": 86400}
_LISTEN = re.compile(r"(?:(?P<host>\[[0-9a-f:.%]+\]|[^:]+):)?(?P<port>\d+)", re.IGNORECASE)
_NOT_FOR_PEOPLE = ("Value error, ", "Input should be ")


def parse_duration(value: object) -> float | None:
    """`90`, `90s`, `30m`, `1.5h` as seconds; `never` as None.

    Raises:
        ValueError: for anything else.
    """
    if value is None or value == "never":
        return None
    match = _DURATION.fullmatch(str(value).strip().lower())
    if match is None or isinstance(value, bool):
        raise ValueError("is no time; write it like 90s, 30m, 1h or never")
    return float(match[1]) * _UNIT_S[match[2]]


def _parse_tokens(value: object) -> int:
    return _without_subject(lambda: parse_tokens(str(value), what="ctx"))


def _parse_ram(value: object) -> int:
    return _without_subject(lambda: read_size(str(value), "ram"))


def _without_subject(read: Callable[[], int]) -> int:
    """The file's own messages name the key and the value."""
    try:
        return read()
    except ConfigProblem as problem:
        raise ValueError(problem.message.partition("' ")[2]) from None


def _check_kv(value: object) -> object:
    if value not in KV_TYPES:
        raise ValueError(f"is no KV cache type; choose one of {', '.join(KV_TYPES)}")
    return value


def _expand(value: object) -> object:
    return Path(value).expanduser() if isinstance(value, str) and value else value


Duration: TypeAlias = Annotated[float | None, BeforeValidator(parse_duration)]
Tokens: TypeAlias = Annotated[int, BeforeValidator(_parse_tokens), Field(ge=2)]
HomePath: TypeAlias = Annotated[Path, BeforeValidator(_expand)]


class _Table(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, strict=True)


class KeySource(_Table):
    """Where an API key is read from; never the key itself."""

    file: HomePath | None = None
    env: str | None = None

    @model_validator(mode="after")
    def _one_of_them(self) -> KeySource:
        if (self.file is None) == (self.env is None):
            raise ValueError("an API key is read from one place: give either file or env")
        return self


class ModelEntry(_Table):
    """One model. What is not given is decided for this machine.

    Attributes:
        path: its GGUF file; a relative one is looked for beside the configuration file.
        ctx: tokens.
        ttl: seconds without a use after which it leaves; None for never.
        pin: it stays once it is loaded.
        vision: whether it takes pictures; None: if the projector for them lies beside it.
    """

    path: HomePath
    ctx: Tokens | None = None
    kv: Annotated[str, BeforeValidator(_check_kv)] | None = None
    slots: Annotated[int, Field(ge=1, le=256)] = 1
    ttl: Duration = None
    aliases: tuple[str, ...] = Field(default=(), strict=False)
    pin: bool = False
    vision: bool | None = None

    @property
    def has_own_ttl(self) -> bool:
        return "ttl" in self.model_fields_set


class Config(_Table):
    """The whole file.

    Attributes:
        listen: address and port; a port alone means this machine.
        ram: bytes for all models together; None for what is free.
        ttl: for models without one of their own.
        default: the model that a request without a name means.
    """

    listen: str | int = 9292
    api_keys: tuple[KeySource, ...] = Field(default=(), strict=False)
    ram: Annotated[int, BeforeValidator(_parse_ram)] | None = None
    engine: str = "embedded"
    ttl: Duration = None
    default: str | None = None
    models: dict[str, ModelEntry] = Field(min_length=1)

    @model_validator(mode="after")
    def _check_listen(self) -> Config:
        if not _LISTEN.fullmatch(str(self.listen)) or not 0 <= self.port <= 65535:
            raise ValueError(f"listen is '{self.listen}'; write it like 127.0.0.1:9292 or 9292")
        return self

    @property
    def host(self) -> str:
        match = _LISTEN.fullmatch(str(self.listen))
        return ((match and match["host"]) or "127.0.0.1").strip("[]")

    @property
    def port(self) -> int:
        return int(str(self.listen).rpartition(":")[2])


def load_config(path: Path) -> Config:
    """Read and check a file. Relative model paths start at its folder.

    Raises:
        ConfigProblem: all that is wrong with it, each with its line.
    """
    tree = _parse(path)
    if _is_llama_swap(tree):
        raise ConfigProblem(
            f"{path}: is a llama-swap file (its models have a 'cmd'), which this version does not"
            " read; give each model a 'path' instead"
        )
    try:
        config = Config.model_validate(_plain(tree))
    except ValidationError as error:
        said = [_describe(path, tree, dict(detail)) for detail in error.errors()]
        raise ConfigProblem("; ".join(dict.fromkeys(said))) from None
    folder = path.absolute().parent
    models = {
        id_: entry.model_copy(update={"path": folder / entry.path})
        for id_, entry in config.models.items()
    }
    return config.model_copy(update={"models": models})


def _parse(path: Path) -> CommentedMap:
    """The tree with its line numbers."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_FILE_BYTES + 1)
    except OSError as error:
        raise ConfigProblem(f"{path}: cannot be read: {error.strerror}") from error
    if len(content) > _MAX_FILE_BYTES:
        raise ConfigProblem(f"{path}: is larger than a configuration file can be")
    try:
        tree = YAML(typ="rt").load(content.decode("utf-8"))
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        line = f":{mark.line + 1}" if mark else ""
        raise ConfigProblem(f"{path}{line}: {error.problem or error.context}") from None
    except (YAMLError, UnicodeDecodeError, ValueError) as error:
        raise ConfigProblem(f"{path}: is no YAML: {error}") from None
    if not isinstance(tree, CommentedMap):
        raise ConfigProblem(f"{path}: holds no keys; it needs at least 'models:'")
    return tree


def _is_llama_swap(tree: CommentedMap) -> bool:
    models = tree.get("models")
    entries = models.values() if isinstance(models, Mapping) else ()
    return any(isinstance(entry, Mapping) and "cmd" in entry for entry in entries)


def _plain(node: Any) -> Any:
    """Python's own types, as pydantic's strict mode wants them."""
    if isinstance(node, Mapping):
        return {str(key): _plain(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_plain(value) for value in node]
    for kind in (bool, int, float, str):
        if isinstance(node, kind):
            return kind(node)
    return node


def _describe(path: Path, tree: CommentedMap, detail: dict[str, Any]) -> str:
    """`hotset.yaml:14: unknown key 'ctx_sise' under models.qwen (did you mean 'ctx'?)`."""
    place = [str(part) for part in detail["loc"]]
    line, known = _locate(tree, place)
    here = f"{path.name}:{line}"
    key, parent = (place[-1], ".".join(place[:-1])) if place else ("", "")
    under = f" under {parent}" if parent else ""
    if detail["type"] == "extra_forbidden":
        near = difflib.get_close_matches(key, _keys_at(place), 1, 0.5)
        hint = f" (did you mean '{near[0]}'?)" if near else f"; known: {', '.join(_keys_at(place))}"
        return f"{here}: unknown key '{key}'{under}{hint}"
    if detail["type"] == "missing":
        return f"{here}: '{key}' is missing{under}"
    if detail["type"] == "too_short":
        return f"{here}: {key}{under} is empty; give at least one"
    reason = str(detail["msg"])
    for words in _NOT_FOR_PEOPLE:
        reason = reason.removeprefix(words)
    if not known:
        return f"{here}: {reason}"
    verb = "" if reason.startswith(("is ", "has ")) else "must be "
    return f"{here}: {key}{under} is '{detail['input']}', which {verb}{reason}"


def _keys_at(place: list[str]) -> list[str]:
    """The keys that are known where `place` ends."""
    if place[0] == "models" and len(place) > 2:
        return list(ModelEntry.model_fields)
    return list(KeySource.model_fields if place[0] == "api_keys" else Config.model_fields)


def _locate(tree: CommentedMap, place: list[str]) -> tuple[int, bool]:
    """The line, from 1, of the deepest part of `place` that is in the file; is it all there?"""
    node: Any = tree
    line = 1
    for part in place:
        if isinstance(node, CommentedMap):
            key = next((key for key in node if str(key) == part), None)
            if key is None:
                return line, False
            line = node.lc.key(key)[0] + 1
            node = node[key]
        elif isinstance(node, CommentedSeq) and part.isdigit() and int(part) < len(node):
            line = node.lc.item(int(part))[0] + 1
            node = node[int(part)]
        else:
            return line, True  # pydantic names the alternatives of a type, too
    return line, bool(place)
