"""The engine that comes with hotset: llama.cpp in the `xllamacpp` package, in a child process."""

from __future__ import annotations

import importlib.metadata
import importlib.util
import json
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

from hotset.core.devices import Device
from hotset.core.errors import ConfigProblem, EngineProblem
from hotset.core.settings import Settings
from hotset.engine.base import Engine, EngineInfo, Launch, file_identity, scrubbed

__all__ = ["EmbeddedEngine"]

_WORKER = Path(__file__).with_name("embedded_worker.py")
_PROBE_TIMEOUT_S = 60.0
# The lowest verbosity at which the engine prints its memory; prompts and keys do not appear at it.
_VERBOSITY = 4
_LOAD_MODES = {"mmap": "MMAP", "none": "NONE", "mlock": "MMAP_MLOCK"}
_FLASH_ATTENTION = {"auto": "AUTO", "on": "ENABLED", "off": "DISABLED"}


class EmbeddedEngine(Engine):
    """llama.cpp's own server through `xllamacpp`: CPU only in the published wheel."""

    name = "embedded"

    @property
    def build(self) -> str:
        if importlib.util.find_spec("xllamacpp") is None:
            raise EngineProblem(
                "engine embedded: the package xllamacpp is not installed;"
                " install it with `pip install xllamacpp`, or name a llama-server with --engine"
            )
        return f"xllamacpp {importlib.metadata.version('xllamacpp')}"

    @property
    def identity(self) -> str:
        library = self.library
        return f"{self.build} {file_identity(library)}" if library else self.build

    @property
    def library(self) -> Path | None:
        found = importlib.util.find_spec("xllamacpp")
        folders = list(found.submodule_search_locations or ()) if found else []
        return next((path for f in folders for path in sorted(Path(f).glob("*.so"))), None)

    def describe(self, environ: Mapping[str, str]) -> EngineInfo:
        build = self.build
        try:
            done = subprocess.run(
                self._argv(),
                input='{"probe": true}\n',
                env=scrubbed(environ),
                capture_output=True,
                text=True,
                timeout=_PROBE_TIMEOUT_S,
                check=False,
            )
            answer = json.loads(done.stdout.splitlines()[-1])
        except (OSError, subprocess.TimeoutExpired, ValueError, IndexError) as error:
            raise EngineProblem(
                f"engine embedded: {build} does not run here ({error});"
                " it needs a processor with AVX2"
            ) from error
        return EngineInfo(
            name=self.name,
            build=build,
            cpu=answer["system"].strip(" |"),
            devices=tuple(Device(*device) for device in answer["devices"]),
            has_moe_cache=answer["has_moe_cache"],
            backend_api=answer["api_version"],
        )

    def launch(self, settings: Settings, environ: Mapping[str, str]) -> Launch:
        _ = self.build
        if settings.gpu_layers:
            raise ConfigProblem(
                f"gpu_layers is {settings.gpu_layers}, but the embedded engine computes on the CPU"
                " only; name a llama-server for your graphics card with --engine"
            )
        store = settings.expert_store
        env = scrubbed(environ) | (dict(store.environment) if store else {})
        order = {
            "model": str(settings.model),
            "projector": str(settings.projector) if settings.projector else "",
            "threads": settings.threads,
            "plugin": str(store.plugin) if store else "",
            "params": _params(settings),
        }
        return Launch(self._argv(), env, json.dumps(order) + "\n")

    @staticmethod
    def _argv() -> tuple[str, ...]:
        return (sys.executable, "-I", str(_WORKER))


def _params(settings: Settings) -> dict[str, object]:
    """The names of llama.cpp's `common_params`."""
    return {
        "model_alias": [settings.alias],
        "n_ctx": settings.context_tokens * settings.slots,
        "n_parallel": settings.slots,
        "n_batch": settings.batch_tokens,
        "n_ubatch": settings.ubatch_tokens,
        "cache_type_k": {"member": f"GGML_TYPE_{settings.kv_type_k.upper()}"},
        "cache_type_v": {"member": f"GGML_TYPE_{settings.kv_type_v.upper()}"},
        "flash_attn_type": {
            "member": f"LLAMA_FLASH_ATTN_TYPE_{_FLASH_ATTENTION[settings.flash_attention]}"
        },
        "load_mode": {"member": f"LLAMA_LOAD_MODE_{_LOAD_MODES[settings.load_mode]}"},
        "no_extra_bufts": not settings.is_repacked,
        "cache_ram_mib": settings.prompt_cache_mib,
        "cache_idle_slots": settings.prompt_cache_mib > 0,
        "n_ctx_checkpoints": settings.checkpoints,
        # The engine joins folder and file name as they are.
        "slot_save_path": f"{settings.slot_folder}/" if settings.slot_folder else "",
        "chat_template": settings.chat_template or "",
        "hostnames": [settings.host],
        "port": settings.port,
        "api_keys": [settings.api_key.reveal()] if settings.api_key else [],
        "embedding": settings.is_embedding,
        "warmup": settings.is_warmed_up,
        "verbosity": _VERBOSITY,
        # The plan has decided; the engine must not adjust anything to its own idea of what fits.
        "fit_params": False,
        "kv_unified": False,
        "cors_origins": "",
        "cors_credentials": False,
        "ui": False,
        "offline": True,
        "endpoint_metrics": True,
    }
