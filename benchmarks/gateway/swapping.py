"""The gateway with two models of which one fits, in a process of its own.

`python -m benchmarks.gateway.swapping FOLDER RAM_BYTES SWITCH` serves on a free port until its
signal. It reads ahead only while the file SWITCH exists, so that one process can be measured with
it and without it in turn.
"""

from __future__ import annotations

import dataclasses
import sys
import threading
from collections.abc import Callable
from pathlib import Path

from hotset.cli.fleet import Fleet, fleet_of_folders
from hotset.cli.gateway import Service, run_gateway
from hotset.cli.tokenizers import TokenizerEngines
from hotset.core.plan import Wishes
from hotset.gateway.offers import Claims
from hotset.gateway.settings import GatewaySettings

_CONTEXT_TOKENS = 2048


class _Switched(Fleet):
    """A fleet that looks for the switch before it reads ahead."""

    switch: Path

    def read_ahead(
        self, model_id: str, claims: Callable[[], Claims], cancel: threading.Event
    ) -> str:
        return super().read_ahead(model_id, claims, cancel) if self.switch.exists() else ""


def main(folder: str, ram_bytes: int, switch: Path) -> None:
    wishes = Wishes(context_tokens=_CONTEXT_TOKENS, ram_bytes=ram_bytes, is_serving=True)
    fleet = fleet_of_folders([folder], wishes, "embedded", ttl_s=None)
    _Switched.switch = switch
    fields = {field.name: getattr(fleet, field.name) for field in dataclasses.fields(fleet)}
    switched = _Switched(**fields)
    offers = [member.offer for member in switched.members.values()]
    counting = TokenizerEngines(lambda id_: switched.members[id_].path, switched.engine)
    run_gateway(Service(offers, switched, GatewaySettings(listen_port=0), counting.start))


if __name__ == "__main__":
    main(sys.argv[1], int(sys.argv[2]), Path(sys.argv[3]))
