"""What an engine is told, in hotset's own terms. Each engine translates it, or refuses."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from ipaddress import ip_address
from pathlib import PurePath

from hotset.core.errors import ConfigProblem

__all__ = [
    "KV_TYPES",
    "LOOPBACK",
    "MAX_SLOTS",
    "ExpertStore",
    "Secret",
    "Settings",
    "validate_settings",
]

LOOPBACK = "127.0.0.1"

KV_TYPES = ("f32", "f16", "bf16", "q8_0", "q5_1", "q5_0", "q4_1", "q4_0", "iq4_nl")
"""Types that the engine accepts for the K and the V cache."""

_LOAD_MODES = ("mmap", "none", "mlock")
_FLASH_ATTENTION = ("auto", "on", "off")
MAX_SLOTS = 256  # LLAMA_MAX_SEQ in llama.cpp's src/llama-cparams.h


class Secret:
    """A text that does not show itself in `repr`, `str` or a log."""

    __slots__ = ("_text",)

    def __init__(self, text: str) -> None:
        self._text = text

    def reveal(self) -> str:
        return self._text

    def __repr__(self) -> str:
        return "Secret(***)"

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Secret) and other._text == self._text

    def __hash__(self) -> int:
        return hash(self._text)


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertStore:
    """How an engine's process is started with the expert store.

    Attributes:
        plugin: the library that the engine loads.
        ram_bytes: memory for experts.
        counters: the page that the store shares its counters in.
        environment: for every engine's process.
        server_environment, server_arguments: for a llama-server besides.
    """

    plugin: PurePath
    ram_bytes: int
    counters: PurePath
    environment: Mapping[str, str]
    server_environment: Mapping[str, str]
    server_arguments: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """Everything that decides how one model is served. No field is left to the engine's taste.

    Attributes:
        model: the GGUF file, or the first file of a shard set.
        alias: the name that the engine gives the model in its answers.
        context_tokens: cache length of one slot.
        slots: requests served at the same time, each with its own context.
        kv_type_k, kv_type_v: one of `KV_TYPES`.
        batch_tokens, ubatch_tokens: logical and physical prefill batch.
        flash_attention: "auto", "on" or "off".
        threads: compute threads; 0 leaves the number to the engine.
        load_mode: "mmap", "none" (read into memory) or "mlock" (mapped and locked).
        is_repacked: whether the CPU backend may rearrange weights for speed.
        prompt_cache_mib: RAM for the prompts of earlier requests; 0 turns it off.
        checkpoints: context checkpoints per slot (recurrent and window models).
        gpu_layers: units placed on graphics cards, from the end: the output counts as one, then
            come the blocks, the last first. None says nothing; 0 keeps the cards out altogether.
        devices: the cards, by the engine's names and in its order; empty leaves the choice to it.
        device_layers: how many of the units each of `devices` takes; empty for one card.
        cpu_moe_layers: blocks from the first on whose experts stay in RAM.
        cpu_moe_blocks: the same where the blocks are not the first ones; one of the two.
        moe_cache_mib: memory of the card for the engine's own cache of those experts.
        slot_folder: where the engine may save and restore the state of a slot; None: nowhere.
        projector: vision or audio projector file.
        is_projector_on_card: whether pictures are computed there; only with `gpu_layers`.
        chat_template: a Jinja text that replaces the file's own.
        host, port: where it listens; port 0 takes a free one, read back after the start.
        api_key: what clients must send; None leaves the endpoints open (loopback only).
        is_embedding: serve embeddings instead of text.
        is_warmed_up: compute one empty token before reporting readiness.
        tells_memory_first: have the engine print what it will take of each device before it reads
            weights, which takes it some tenths of a second; nothing else changes by it.
        expert_store: keep experts in hotset's store instead of the mapping; None leaves it out.
    """

    model: PurePath
    alias: str
    context_tokens: int
    slots: int = 1
    kv_type_k: str = "f16"
    kv_type_v: str = "f16"
    batch_tokens: int = 2048
    ubatch_tokens: int = 512
    flash_attention: str = "auto"
    threads: int = 0
    load_mode: str = "mmap"
    is_repacked: bool = True
    prompt_cache_mib: int = 0
    checkpoints: int = 0
    gpu_layers: int | None = None
    devices: tuple[str, ...] = ()
    device_layers: tuple[int, ...] = ()
    cpu_moe_layers: int | None = None
    cpu_moe_blocks: tuple[int, ...] = ()
    moe_cache_mib: int = 0
    slot_folder: PurePath | None = None
    projector: PurePath | None = None
    is_projector_on_card: bool = True
    chat_template: str | None = None
    host: str = LOOPBACK
    port: int = 0
    api_key: Secret | None = field(default=None)
    is_embedding: bool = False
    is_warmed_up: bool = True
    tells_memory_first: bool = False
    expert_store: ExpertStore | None = None


def _is_loopback(host: str) -> bool:
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:  # a name, which may mean any machine
        return False


def validate_settings(settings: Settings) -> None:
    """The one gate before any engine sees the settings.

    Raises:
        ConfigProblem: for the first field out of its range, or a combination without meaning.
    """
    at_least = {
        "context_tokens": 1,
        "slots": 1,
        "batch_tokens": 1,
        "ubatch_tokens": 1,
        "threads": 0,
        "prompt_cache_mib": 0,
        "checkpoints": 0,
        "moe_cache_mib": 0,
        "port": 0,
    }
    for name, least in at_least.items():
        value = getattr(settings, name)
        if value < least:
            raise ConfigProblem(f"{name} is {value}; it must be at least {least}")
    choices = {
        "kv_type_k": KV_TYPES,
        "kv_type_v": KV_TYPES,
        "flash_attention": _FLASH_ATTENTION,
        "load_mode": _LOAD_MODES,
    }
    for name, allowed in choices.items():
        value = getattr(settings, name)
        if value not in allowed:
            raise ConfigProblem(f"{name} is '{value}'; choose one of {', '.join(allowed)}")
    at_most = {"port": 65535, "slots": MAX_SLOTS}
    for name, most in at_most.items():
        value = getattr(settings, name)
        if value > most:
            raise ConfigProblem(f"{name} is {value}; it must be at most {most}")
    if not settings.host.strip():
        raise ConfigProblem(f"host is empty; {LOOPBACK} is this machine alone")
    if settings.chat_template is not None and not settings.chat_template.strip():
        # The engine would take the model's own without a word.
        raise ConfigProblem("chat_template is empty; leave it out for the model's own")
    if settings.ubatch_tokens > settings.batch_tokens:
        raise ConfigProblem(
            f"ubatch_tokens is {settings.ubatch_tokens}, more than batch_tokens"
            f" {settings.batch_tokens}; the physical batch is a part of the logical one"
        )
    if settings.flash_attention == "off" and settings.kv_type_v not in ("f32", "f16", "bf16"):
        raise ConfigProblem(
            f"kv_type_v is '{settings.kv_type_v}' with flash attention off; a quantized V cache"
            " needs flash attention"
        )
    _validate_cards(settings)
    if settings.expert_store and settings.load_mode != "mmap":
        raise ConfigProblem(
            f"load_mode is '{settings.load_mode}' with the expert store; it needs the model mapped"
        )
    if not _is_loopback(settings.host) and settings.api_key is None:
        raise ConfigProblem(
            f"host is '{settings.host}', which other machines can reach; give an API key,"
            f" or listen on {LOOPBACK}"
        )


def _validate_cards(settings: Settings) -> None:
    """What the engine would refuse, or take and ignore, of the fields about graphics cards."""
    hosted = settings.cpu_moe_layers or settings.cpu_moe_blocks
    for name in ("cpu_moe_layers", "cpu_moe_blocks", "devices", "device_layers"):
        value = getattr(settings, name)
        if value and not settings.gpu_layers:
            raise ConfigProblem(
                f"{name} is {value} without gpu_layers; on a CPU everything is in RAM already"
            )
    if settings.cpu_moe_layers and settings.cpu_moe_blocks:
        raise ConfigProblem(
            f"cpu_moe_layers is {settings.cpu_moe_layers} beside cpu_moe_blocks;"
            " both say which experts stay in RAM, so give one"
        )
    if settings.moe_cache_mib and not hosted:
        raise ConfigProblem(
            f"moe_cache_mib is {settings.moe_cache_mib} without experts in RAM;"
            " it caches those of cpu_moe_layers or cpu_moe_blocks"
        )
    if settings.moe_cache_mib and settings.expert_store:
        raise ConfigProblem(
            f"moe_cache_mib is {settings.moe_cache_mib} with the expert store;"
            " both would keep the same experts, so choose one"
        )
    if settings.device_layers and len(settings.device_layers) != len(settings.devices):
        raise ConfigProblem(
            f"device_layers has {len(settings.device_layers)} numbers for"
            f" {len(settings.devices)} devices; give one for each"
        )
    if settings.device_layers and sum(settings.device_layers) != settings.gpu_layers:
        raise ConfigProblem(
            f"device_layers make {sum(settings.device_layers)} together, but gpu_layers is"
            f" {settings.gpu_layers}; they deal out the same units"
        )
