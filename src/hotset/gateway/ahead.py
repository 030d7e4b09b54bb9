"""The model that comes next: its file is read ahead as long as somebody waits for it."""

from __future__ import annotations

import threading
from collections.abc import Callable

from hotset.gateway.offers import Claims, Starter

__all__ = ["ReadAhead"]


class ReadAhead:
    """At most one model is read ahead at a time. For one event loop.

    Args:
        claims: what engines have and may still take; called from another thread.
        note: gets a model's id and a line for its log, from another thread.
    """

    def __init__(
        self, starter: Starter, claims: Callable[[], Claims], note: Callable[[str, str], None]
    ) -> None:
        self._starter, self._claims, self._note = starter, claims, note
        self._model_id: str | None = None
        self._cancel = threading.Event()
        self._thread: threading.Thread | None = None

    def want(self, model_id: str | None) -> None:
        """Read this model ahead from now on, and no other; without effect if it is the same."""
        if model_id == self._model_id:
            return
        self._model_id = model_id
        self._cancel.set()
        if model_id is not None:
            self._cancel = threading.Event()
            self._thread = threading.Thread(
                target=self._read, args=(model_id, self._cancel), name="read ahead", daemon=True
            )
            self._thread.start()

    def _read(self, model_id: str, cancel: threading.Event) -> None:
        try:
            line = self._starter.read_ahead(model_id, self._claims, cancel)
        except OSError as error:  # its start will say what is wrong with the file
            line = f"not read ahead: {error.strerror}"
        if line:
            self._note(model_id, line)

    def close(self) -> None:
        """Stop; takes a moment at most."""
        self.want(None)
        if self._thread:
            self._thread.join()
