"""Every failure that hotset reports, as one tree.

    HotsetError                 exit   HTTP
    ├── FileProblem              2     422   a model file is missing, damaged or unusable
    ├── MachineProblem           3     503   memory, disk, port or device falls short
    ├── ConfigProblem            4     400   an option or a configuration value is wrong
    ├── EngineProblem            5     502   the inference engine failed or cannot do this
    └── ClientProblem            1     4xx   a request is wrong; its status is its own

A message is one line: the thing, the value found, the reason, the remedy. The command line
prints it after "hotset: "; the gateway puts it into the client's own error shape.
"""

from __future__ import annotations

__all__ = [
    "ClientProblem",
    "ConfigProblem",
    "EngineProblem",
    "FileProblem",
    "HotsetError",
    "MachineProblem",
]


class HotsetError(Exception):
    """Base of all reported failures. `exit_code` and `http_status` belong to the kind."""

    exit_code: int = 1
    http_status: int = 500
    kind: str = "internal"

    def __init__(self, message: str) -> None:
        # One line that the terminal only shows: a newline or an escape sequence in a file name,
        # a model's text or an engine's output must not forge a log entry or drive the terminal.
        line = " ".join(message.split())
        super().__init__(
            "".join(c if c.isprintable() else "\N{REPLACEMENT CHARACTER}" for c in line)
        )

    @property
    def message(self) -> str:
        return str(self.args[0])


class FileProblem(HotsetError):
    """A model file that is missing, damaged, incomplete, or not what it claims to be."""

    exit_code = 2
    http_status = 422
    kind = "file"


class MachineProblem(HotsetError):
    """The machine falls short: memory, disk, an address in use, a missing device."""

    exit_code = 3
    http_status = 503
    kind = "machine"


class ConfigProblem(HotsetError):
    """An option, a setting or a configuration file that cannot be meant as written."""

    exit_code = 4
    http_status = 400
    kind = "config"


class EngineProblem(HotsetError):
    """The inference engine failed, hung, or cannot do what the plan needs."""

    exit_code = 5
    http_status = 502
    kind = "engine"


class ClientProblem(HotsetError):
    """A request that cannot be served as sent.

    Args:
        message: one line.
        http_status: the 4xx status that fits (400, 404, 413, 429 ...).
        retry_after_s: when it is worth asking again; None if never as sent.

    Raises:
        ValueError: when `http_status` is not in 400..499.
    """

    kind = "client"

    def __init__(
        self, message: str, http_status: int = 400, *, retry_after_s: float | None = None
    ) -> None:
        if not 400 <= http_status <= 499:
            raise ValueError(f"a client problem has a 4xx status, not {http_status}")
        super().__init__(message)
        self.http_status = http_status
        self.retry_after_s = retry_after_s
