"""Options of the commands as wishes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from hotset.core.errors import ConfigProblem
from hotset.core.machine_text import read_size

if TYPE_CHECKING:
    from hotset.core.plan import Wishes

__all__ = ["wishes_from"]

# llama.cpp warms up with two tokens and aborts where the context holds one.
_LEAST_CONTEXT_TOKENS = 2
_MAX_THREADS = 512  # GGML_MAX_N_THREADS in llama.cpp's ggml/include/ggml.h


def wishes_from(  # the options that run and serve share
    ctx: int | None,
    kv: str | None,
    slots: int,
    threads: int | None,
    ram: str | None,
    *,
    is_serving: bool,
) -> Wishes:
    """Options as wishes.

    Raises:
        ConfigProblem: a value out of its range.
    """
    from hotset.core.plan import Wishes
    from hotset.core.settings import KV_TYPES, MAX_SLOTS

    for name, value, least in (
        ("--ctx", ctx, _LEAST_CONTEXT_TOKENS),
        ("--slots", slots, 1),
        ("--threads", threads, 1),
    ):
        if value is not None and value < least:
            raise ConfigProblem(f"{name} is {value}; it must be at least {least}")
    for name, value, most in (("--slots", slots, MAX_SLOTS), ("--threads", threads, _MAX_THREADS)):
        if value is not None and value > most:
            raise ConfigProblem(f"{name} is {value}; the engine takes at most {most}")
    if kv is not None and kv not in KV_TYPES:
        raise ConfigProblem(f"--kv is '{kv}'; choose one of {', '.join(KV_TYPES)}")
    return Wishes(
        context_tokens=ctx,
        kv_type=kv,
        slots=slots,
        threads=threads,
        ram_bytes=read_size(ram, "--ram") if ram is not None else None,
        is_serving=is_serving,
    )
