"""Tokenizers of models that are not loaded: the engine with a stand-in for the weights."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable
from contextlib import ExitStack
from pathlib import Path

from hotset.cli.experts import ExpertWatch
from hotset.cli.fleet import ServedEngine
from hotset.cli.machines import engine_called
from hotset.core.errors import MachineProblem
from hotset.core.settings import Settings
from hotset.engine.llama_server import LlamaServerEngine
from hotset.engine.start import start
from hotset.gguf.standin import write_stand_in

__all__ = ["TokenizerEngines"]

_BATCH_TOKENS = 32


class TokenizerEngines:
    """Starts them (see `hotset.gateway.counting.TokenizerStarter`).

    Args:
        path_of: each model's file, by id.
        engine: as `--engine`; the one that runs the models, so that both count the same.
        chat_template: a text instead of the models' own.
    """

    def __init__(
        self, path_of: Callable[[str], Path], engine: str, *, chat_template: str | None = None
    ) -> None:
        self._path_of = path_of
        self._engine = engine
        self._chat_template = chat_template

    def start(self, model_id: str) -> ServedEngine:
        """See `hotset.gateway.counting.TokenizerStarter`."""
        try:
            folder = tempfile.TemporaryDirectory(prefix="hotset-tokenizer-")
        except OSError as error:
            raise MachineProblem(
                f"{model_id}: its tokens cannot be counted: no temporary file can be made"
                f" ({error.strerror}); name a writable folder with TMPDIR"
            ) from error
        # Once the engine has mapped the file, nobody needs its name any more.
        with folder:
            path = Path(folder.name) / f"{model_id.replace('/', '-')}.gguf"
            write_stand_in(self._path_of(model_id), path)
            running = start(engine_called(self._engine), self._settings(model_id, path), os.environ)
        return ServedEngine(running, {}, ExpertWatch(None), ExitStack(), lambda: None)

    def _settings(self, model_id: str, path: Path) -> Settings:
        engine = engine_called(self._engine)
        return Settings(
            model=path,
            alias=model_id,
            context_tokens=_BATCH_TOKENS,
            batch_tokens=_BATCH_TOKENS,
            ubatch_tokens=_BATCH_TOKENS,
            threads=1,
            is_repacked=False,
            is_warmed_up=False,
            gpu_layers=0 if isinstance(engine, LlamaServerEngine) else None,
            chat_template=self._chat_template,
        )
