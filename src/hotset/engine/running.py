"""A started engine: asked, and stopped."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from types import TracebackType

import psutil

from hotset.core.errors import EngineProblem
from hotset.core.loaded import Loaded
from hotset.core.proof import Account
from hotset.core.settings import Settings
from hotset.engine.process import EngineProcess

__all__ = ["Running"]

_ASK_TIMEOUT_S = 2.0
# The store's line is written before the engine's answer, and read by another thread.
_LINE_TIMEOUT_S = 1.0
_STORE_MARK = "hotset: "


class Running:
    """An engine that answers. Use as a context manager, or call `stop`.

    Attributes:
        url: base address, `http://127.0.0.1:<port>`.
        api_key: what it asks clients for; None if it asks for nothing.
        loaded: its own account of memory and settings.
        accounts: the plan against that account; empty where nobody has compared them.
        remarks: what was worth telling about the start, a line each.
        after_answer: to be called once an answer is there; what it returns, unless it is empty, is
            a line for people.
    """

    def __init__(
        self, process: EngineProcess, url: str, settings: Settings, loaded: Loaded
    ) -> None:
        self._process = process
        self.url = url
        self.settings = settings
        self.api_key = settings.api_key
        self.loaded = loaded
        self.accounts: tuple[Account, ...] = ()
        self.remarks: tuple[str, ...] = ()
        self.after_answer: Callable[[], str] = str

    @property
    def pid(self) -> int:
        return self._process.pid

    @property
    def exit_status(self) -> int | None:
        """How it ended, once it has; negative for a signal."""
        return self._process.exit_status

    def is_alive(self) -> bool:
        return self._process.is_alive()

    def wait(self, timeout_s: float) -> bool:
        """Wait for its end; True if it has ended."""
        return self._process.wait(timeout_s)

    def resident_bytes(self) -> int:
        """Memory of the engine in RAM now, mapped file pages included; 0 after its end."""
        try:
            return int(psutil.Process(self.pid).memory_info().rss)
        except psutil.Error:
            return 0

    def headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self.api_key.reveal()}"} if self.api_key else {}

    def died(self) -> EngineProblem:
        """The error to raise when a request found the engine gone."""
        self._process.wait(2.0)
        status = self.exit_status
        how = "is gone" if status is None else f"ended with status {status}"
        if status is not None and status < 0:
            how = f"was killed by signal {-status}"
        if status == -signal.SIGBUS:
            return EngineProblem(
                f"{self.settings.alias}: the engine ended because a part of the model's file that"
                " is in use could not be read; was it cut off or written over, or does the disk"
                " fail?"
            )
        return EngineProblem(f"{self.settings.alias}: the engine {how} in the middle of its work")

    @property
    def num_lines(self) -> int:
        """How much the engine has said so far, for `store_fault`."""
        return self._process.num_lines

    def store_fault(self, since: int) -> str:
        """Why the expert store failed since `num_lines` was `since`; empty where it did not."""
        deadline = time.monotonic() + (_LINE_TIMEOUT_S if self.settings.expert_store else 0)
        while True:
            num_new = self._process.num_lines - since
            for line in reversed(list(self._process.lines)[-num_new:] if num_new > 0 else []):
                # Anywhere in a line: the engine may just have written the beginning of its own.
                _, mark, fault = line.partition(_STORE_MARK)
                if mark:
                    product, _, reason = fault.partition(": ")
                    return reason or product
            if time.monotonic() >= deadline:
                return ""
            time.sleep(0.01)

    def num_busy_slots(self) -> int:
        """Requests in work now; 0 when the engine cannot be asked any more."""
        import httpx

        try:
            answer = httpx.get(
                f"{self.url}/slots", headers=self.headers(), timeout=_ASK_TIMEOUT_S, trust_env=False
            )
            return sum(bool(slot["is_processing"]) for slot in answer.json())
        except (httpx.HTTPError, ValueError, TypeError, KeyError):
            return 0

    def stop(self, *, drain_s: float = 0.0, grace_s: float = 5.0) -> None:
        """Drain, terminate, kill: in that order, each only as far as needed.

        Args:
            drain_s: wait so long for running requests to finish.
            grace_s: wait so long for a clean exit before the kill.
        """
        deadline = time.monotonic() + drain_s
        while time.monotonic() < deadline and self.is_alive() and self.num_busy_slots():
            time.sleep(0.1)
        self._process.end(grace_s)

    def __enter__(self) -> Running:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.stop()
