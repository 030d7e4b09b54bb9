"""A plan and the options of a command as an engine's settings."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from hotset.core.errors import ConfigProblem, FileProblem
from hotset.core.units import MIB, format_bytes

if TYPE_CHECKING:
    from hotset.cli.launching import Launchable
    from hotset.core.settings import ExpertStore, Secret, Settings

__all__ = ["CardSettings", "card_settings", "command_line", "key_from", "settings_of"]

_MAX_TEXT_BYTES = 4 * MIB


class CardSettings(TypedDict, total=False):
    """Fields of `Settings`."""

    gpu_layers: int
    devices: tuple[str, ...]
    device_layers: tuple[int, ...]
    moe_cache_mib: int
    cpu_moe_layers: int
    cpu_moe_blocks: tuple[int, ...]


def settings_of(
    ready: Launchable, *, chat_template: Path | None = None, store: ExpertStore | None = None
) -> Settings:
    """The plan as an engine's settings, on a free port of the loopback address.

    Raises:
        FileProblem: the template cannot be read.
    """
    from hotset.cli.launching import model_id
    from hotset.core.placement import ProjectorPlace
    from hotset.core.settings import Settings
    from hotset.engine.llama_server import LlamaServerEngine

    plan = ready.plan
    # The embedded engine computes on the CPU by itself; there is nothing to tell it.
    has_cards = isinstance(ready.engine, LlamaServerEngine)
    return Settings(
        **(card_settings(ready) if has_cards else {}),
        model=ready.path,
        alias=model_id(ready.path),
        context_tokens=plan.context_tokens,
        slots=plan.slots,
        kv_type_k=plan.kv_type,
        kv_type_v=plan.kv_type,
        ubatch_tokens=plan.ubatch_tokens,
        batch_tokens=max(2048, plan.ubatch_tokens),
        threads=plan.threads,
        load_mode=plan.load_mode,
        projector=ready.projector.absolute() if ready.projector else None,
        is_projector_on_card=plan.placement.projector is not ProjectorPlace.RAM,
        is_repacked=plan.is_repacked,
        prompt_cache_mib=plan.prompt_cache_mib,
        checkpoints=plan.checkpoints,
        is_embedding=ready.is_embedding,
        expert_store=store,
        chat_template=_read_text(chat_template) if chat_template else None,
    )


def command_line(ready: Launchable) -> str:
    """A command that does what the plan says with a `llama-server` of one's own."""
    import shlex
    from dataclasses import replace

    from hotset.core.settings import validate_settings
    from hotset.engine.llama_server import planned_arguments

    settings = replace(settings_of(ready), **card_settings(ready), model=ready.path.absolute())
    validate_settings(settings)
    # Newer builds have --load-mode, but know the older words, too.
    loading = ["--no-mmap"] if settings.load_mode == "none" else []
    return shlex.join(["llama-server", *planned_arguments(settings), *loading])


def card_settings(ready: Launchable) -> CardSettings:
    """The part of the settings about graphics cards, for an engine that can use them."""
    plan = ready.plan
    if not plan.has_devices:
        return {"gpu_layers": 0}
    placement = plan.placement
    used = [
        (taken.device, count)
        for taken, count in zip(plan.footprint.devices, placement.units, strict=True)
        if count
    ]
    hosted = placement.host_moe_units
    settings: CardSettings = {
        "gpu_layers": placement.n_offloaded,
        "devices": tuple(name for name, _ in used),
        "device_layers": tuple(count for _, count in used) if len(used) > 1 else (),
        "moe_cache_mib": placement.moe_cache_bytes // MIB,
    }
    experts = ready.spec.experts
    if hosted and experts:
        first = len(ready.spec.layers) + 1 - placement.n_offloaded
        leading = [layer for layer in experts.layers if first <= layer <= hosted[-1]]
        if leading == list(hosted):
            settings["cpu_moe_layers"] = hosted[-1] + 1
        else:
            settings["cpu_moe_blocks"] = hosted
    return settings


def _read_text(path: Path) -> str:
    """A small text file: a key, a template. What never ends is not read to its end."""
    try:
        with path.open("rb") as file:
            content = file.read(_MAX_TEXT_BYTES + 1)
        if len(content) > _MAX_TEXT_BYTES:
            raise FileProblem(
                f"{path}: larger than {format_bytes(_MAX_TEXT_BYTES)}, so no key and no template"
            )
        return content.decode("utf-8")
    except UnicodeDecodeError as error:
        raise FileProblem(f"{path}: not a text in UTF-8 (byte {error.start})") from error
    except OSError as error:
        raise FileProblem(f"{path}: cannot be read: {error.strerror}") from error


def key_from(path: Path | None) -> Secret | None:
    """The API key: from a file, or from HOTSET_API_KEY; None if neither is given.

    Not an option's value: other users of the machine can read a command line.

    Raises:
        FileProblem: the file cannot be read.
        ConfigProblem: the key is empty, or cannot stand in a header.
    """
    from hotset.core.settings import Secret

    text = _read_text(path) if path else os.environ.get("HOTSET_API_KEY")
    if text is None:
        return None
    if not text.strip():
        raise ConfigProblem(f"{path or 'HOTSET_API_KEY'}: the API key is empty")
    key = text.strip()
    if not (key.isascii() and key.isprintable() and " " not in key):
        raise ConfigProblem(
            f"{path or 'HOTSET_API_KEY'}: the API key must be one word of ASCII characters,"
            " so that it can stand in an HTTP header"
        )
    return Secret(key)
