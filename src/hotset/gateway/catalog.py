"""Served models as other programs list them: OpenAI, Anthropic, llama-swap, llama-server's router.

One row holds the fields of all of them. Commands and paths are not in it: they may hold secrets.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hotset.gateway.dialects.streams import event_bytes
from hotset.gateway.pool import Capability, Residence, ServedModel, State

__all__ = ["listed_row", "router_events", "router_props", "running_row"]

_ROUTER_STATES = {
    State.UNLOADED: "unloaded",
    State.QUEUED: "loading",
    State.LOADING: "loading",
    State.READY: "loaded",
    State.DRAINING: "unloading",
    State.FAILED: "unloaded",
}
_SWAP_STATES = {
    State.LOADING: "starting",
    State.READY: "ready",
    State.DRAINING: "stopping",
}


def listed_row(model: ServedModel) -> dict[str, Any]:
    """An element of `GET /v1/models`."""
    can_see = Capability.VISION in model.capabilities
    makes_text = Capability.CHAT in model.capabilities
    row: dict[str, Any] = {
        "id": model.id,
        "object": "model",
        "created": model.created_s,
        "owned_by": "hotset",
        "aliases": list(model.aliases),
        "type": "model",
        "display_name": model.id,
        "created_at": datetime.fromtimestamp(model.created_s, UTC).isoformat(),
        "architecture": {
            "input_modalities": ["text", "image"] if can_see else ["text"],
            "output_modalities": ["text"] if makes_text else [],
        },
        "capabilities": {
            "vision": can_see,
            "function_calling": makes_text,
            "embedding": Capability.EMBEDDING in model.capabilities,
            "reranker": Capability.RERANK in model.capabilities,
        },
        "status": {
            "value": _ROUTER_STATES[model.state],
            "state": model.state.value,
            "failed": model.state is State.FAILED,
            "why": model.why,
        },
        "meta": {
            "size": model.n_bytes,
            "llamaswap": {"type": "model", "aliases": list(model.aliases)},
        },
    }
    if model.context_tokens is not None:
        row["context_length"] = model.context_tokens
        row["max_model_len"] = model.context_tokens
        row["meta"]["n_ctx"] = model.context_tokens
    return row


def running_row(model: ServedModel, residence: Residence) -> dict[str, Any] | None:
    """An element of llama-swap's `GET /running`; None for a model that has no engine."""
    state = _SWAP_STATES.get(model.state)
    if state is None:
        return None
    return {
        "model": model.id,
        "state": state,
        "cmd": "",
        "proxy": "",
        "ttl": -1 if residence.leaves_in_s is None else round(residence.leaves_in_s),
        "name": model.id,
        "description": model.why,
    }


def router_props(build: str) -> dict[str, Any]:
    """`GET /props` without a model, as llama-server's router answers it."""
    return {
        "role": "router",
        "models_autoload": True,
        "build_info": build,
        "model_path": "none",
        "chat_template": "",
        "default_generation_settings": {"params": {}, "n_ctx": 0},
    }


def router_events(event: dict[str, Any]) -> bytes:
    """One of the hub's events as `GET /models/sse` of llama-server's router has it; empty for those
    that the router has not.

    The router says `model_status` when an engine starts and `status_change` from then on; its own
    documentation knows only the first name. Readers of either see a start.
    """
    if event["type"] != "model":
        return b""
    row = event["model"]
    state = State(row["state"])
    names = ["model_status"] if state is State.LOADING else []
    status = {"status": _ROUTER_STATES[state]}
    return b"".join(
        event_bytes({"model": row["id"], "event": name, "data": status})
        for name in (*names, "status_change")
    )
