"""The `hotset` command, as a script and as `python -m hotset`."""

from __future__ import annotations

import signal

__all__ = ["main"]


def main() -> None:
    """Load the command line and run it. A Ctrl-C while modules load ends the process silently."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from hotset.cli.main import main as run

    run()


if __name__ == "__main__":
    main()
