"""The configuration file: what is meant is read, what is not understood is refused by its line."""

from __future__ import annotations

from pathlib import Path

import pytest

from hotset.core.errors import ConfigProblem
from hotset.gateway.config import load_config

GOOD = """\
# comments are fine
listen: 0.0.0.0:8080
api_keys:
  - file: ~/key
  - env: SOME_KEY
ram: 16GiB
ttl: 30m
models:
  qwen:
    path: models/qwen.gguf
    ctx: 64k
    kv: q8_0
    slots: 2
    ttl: never
    aliases: [default, best]
    pin: true
    vision: false
  "other:q4":
    path: /elsewhere/other.gguf
"""


def write(folder: Path, text: str) -> Path:
    path = folder / "hotset.yaml"
    path.write_text(text)
    return path


def test_a_file_says_all_that_can_be_said(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, GOOD))
    qwen, other = config.models["qwen"], config.models["other:q4"]
    assert (config.host, config.port, config.ram, config.ttl) == ("0.0.0.0", 8080, 16 << 30, 1800.0)
    assert [key.env for key in config.api_keys] == [None, "SOME_KEY"]
    assert config.api_keys[0].file == Path("~/key").expanduser()
    assert qwen.path == tmp_path / "models/qwen.gguf"
    assert (qwen.ctx, qwen.kv, qwen.slots, qwen.aliases) == (65536, "q8_0", 2, ("default", "best"))
    assert (qwen.ttl, qwen.has_own_ttl, qwen.pin) == (None, True, True)
    assert (other.path, other.has_own_ttl) == (Path("/elsewhere/other.gguf"), False)


def test_a_port_alone_means_this_machine(tmp_path: Path) -> None:
    config = load_config(write(tmp_path, "listen: 1234\nmodels: {a: {path: a}}"))
    assert (config.host, config.port) == ("127.0.0.1", 1234)


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ("ctx: 64k", "ctx_sise: 1", "hotset.yaml:11: unknown key 'ctx_sise' under models.qwen"),
        ("ctx: 64k", "ctx_sise: 1", "under models.qwen (did you mean 'ctx'?)"),
        ("listen:", "lisen:", "hotset.yaml:2: unknown key 'lisen' (did you mean 'listen'?)"),
        ("env: SOME_KEY", "key: abc", "hotset.yaml:5: unknown key 'key' under api_keys.1"),
        ("ctx: 64k", "ctx: many", "hotset.yaml:11: ctx under models.qwen is 'many', which is no"),
        ("ctx: 64k", "ctx: 1", "hotset.yaml:11: ctx under models.qwen is '1', which must be"),
        ("kv: q8_0", "kv: q3_0", "hotset.yaml:12: kv under models.qwen is 'q3_0', which is no KV"),
        ("slots: 2", "slots: 0", "hotset.yaml:13: slots under models.qwen is '0', which must be"),
        ("slots: 2", "slots: two", "hotset.yaml:13: slots under models.qwen is 'two'"),
        ("ttl: 30m", "ttl: soon", "hotset.yaml:7: ttl is 'soon', which is no time"),
        ("ram: 16GiB", "ram: lots", "hotset.yaml:6: ram is 'lots', which is no size"),
        ("ram: 16GiB", "ram: 16", "hotset.yaml:6: ram is '16', which has no unit"),
        ("vision: false", "vision: maybe", "hotset.yaml:17: vision under models.qwen is 'maybe'"),
        ("pin: true", "pin: 3", "hotset.yaml:16: pin under models.qwen is '3', which must be"),
        ("0.0.0.0:8080", "some where", "listen is 'some where'; write it like"),
        ("0.0.0.0:8080", "127.0.0.1:99999", "listen is '127.0.0.1:99999'"),
        ("path: /elsewhere/other.gguf", "pin: true", "hotset.yaml:18: 'path' is missing under"),
        ("- env: SOME_KEY", "- {env: A, file: b}", "read from one place"),
        ('"other:q4"', "qwen", 'hotset.yaml:18: found duplicate key "qwen"'),
        ("ttl: 30m", "ttl: [", "hotset.yaml:"),
        ("path: models/qwen.gguf", "cmd: llama-server", "is a llama-swap file"),
    ],
)
def test_what_is_wrong_is_named_with_its_line(
    tmp_path: Path, old: str, new: str, message: str
) -> None:
    assert old in GOOD
    with pytest.raises(ConfigProblem) as caught:
        load_config(write(tmp_path, GOOD.replace(old, new, 1)))
    assert message in caught.value.message
    assert "pydantic" not in caught.value.message


def test_all_problems_are_told_at_once(tmp_path: Path) -> None:
    text = GOOD.replace("slots: 2", "slots: 0").replace("ram: 16GiB", "rom: 1")
    with pytest.raises(ConfigProblem, match=r"yaml:6: unknown key 'rom'") as caught:
        load_config(write(tmp_path, text))
    assert "yaml:13: slots" in caught.value.message


@pytest.mark.parametrize(
    ("text", "message"),
    [("", "holds no keys"), ("- a", "holds no keys"), ("listen: 1", "'models' is missing")],
)
def test_a_file_without_models_is_no_configuration(tmp_path: Path, text: str, message: str) -> None:
    with pytest.raises(ConfigProblem, match=message):
        load_config(write(tmp_path, text))


def test_a_file_that_is_not_there_or_no_text_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem, match="cannot be read: No such file"):
        load_config(tmp_path / "none.yaml")
    (tmp_path / "x.yaml").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(ConfigProblem, match="is no YAML"):
        load_config(tmp_path / "x.yaml")


def test_a_file_without_any_model_says_so_in_words(tmp_path: Path) -> None:
    with pytest.raises(ConfigProblem) as caught:
        load_config(write(tmp_path, "models: {}\n"))
    assert caught.value.message == "hotset.yaml:1: models is empty; give at least one"
