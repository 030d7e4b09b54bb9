"""Run by test_orphans: start, ask, stop, again and again, until it is killed."""

from __future__ import annotations

import os
import sys
from pathlib import Path

from enginekit import settings_for
from hotset.engine import engine_named
from hotset.engine.client import ChatStream
from hotset.engine.start import start


def main() -> None:
    model, engine = sys.argv[1:]
    while True:
        running = start(engine_named(engine, ""), settings_for(Path(model)), os.environ)
        messages = [{"role": "user", "content": "Tell me a long story."}]
        with ChatStream(running, messages, {"max_tokens": 20}) as stream:
            for _ in stream:
                pass
        running.stop(grace_s=5)


if __name__ == "__main__":
    main()
