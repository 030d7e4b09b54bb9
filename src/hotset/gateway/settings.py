"""What the gateway itself is told: where it listens, who may ask, and its limits."""

from __future__ import annotations

from dataclasses import dataclass
from ipaddress import ip_address
from pathlib import Path

from hotset.core.errors import ConfigProblem
from hotset.core.settings import LOOPBACK, Secret

__all__ = ["GatewaySettings", "is_loopback", "validate_gateway_settings"]

_MIB = 1024 * 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class GatewaySettings:
    """Everything that decides how the gateway meets its clients.

    Attributes:
        listen_host, listen_port: where it listens; port 0 takes a free one.
        api_keys: any of them opens everything; none leaves the gateway open (loopback only).
        allowed_hosts: names besides the loopback ones that a `Host` header may hold; addresses
            always may, because only a name can be pointed elsewhere. "*" allows every name.
        allowed_origins: web pages (`https://chat.example`) that browsers may use the gateway from;
            "*" allows every page.
        takes_any_name: a name that is no model's means the only one there is, as programs that
            serve one model have it.
        max_body_bytes, max_header_bytes: of one request.
        headers_after_s: a stream that is still silent then gets its headers, status 200; before
            that, an error can still be a status of its own.
        keep_alive_s: a silent stream gets a comment so often.
        activity_path: the SQLite file of the activity; None keeps it in memory.
        activity_days: rows older than this are deleted.
        activity_rows: and the oldest beyond this many.
    """

    listen_host: str = LOOPBACK
    listen_port: int = 9292
    api_keys: tuple[Secret, ...] = ()
    allowed_hosts: tuple[str, ...] = ()
    allowed_origins: tuple[str, ...] = ()
    takes_any_name: bool = False
    max_body_bytes: int = 64 * _MIB
    max_header_bytes: int = 64 * 1024
    headers_after_s: float = 1.0
    keep_alive_s: float = 5.0
    activity_path: Path | None = None
    activity_days: float = 30.0
    activity_rows: int = 100_000


def is_loopback(host: str) -> bool:
    """Whether only this machine can reach `host`; a name other than localhost may be any."""
    if host == "localhost":
        return True
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return False


def validate_gateway_settings(settings: GatewaySettings) -> None:
    """The one gate before the gateway listens.

    Raises:
        ConfigProblem: for the first field out of its range, or a combination that is not safe.
    """
    if not settings.listen_host.strip():
        raise ConfigProblem(f"listen_host is empty; {LOOPBACK} is this machine alone")
    if not 0 <= settings.listen_port <= 65535:
        raise ConfigProblem(f"listen_port is {settings.listen_port}; it must be 0 to 65535")
    for key in settings.api_keys:
        text = key.reveal()
        if not text or not text.isascii() or not text.isprintable() or " " in text:
            raise ConfigProblem(
                "an API key is empty or has characters that a header cannot carry;"
                " use letters, digits and punctuation without spaces"
            )
    for origin in settings.allowed_origins:
        if origin != "*" and ("://" not in origin or origin.endswith("/")):
            raise ConfigProblem(
                f"allowed origin '{origin}' is not one; write scheme and host without a path,"
                " like https://chat.example"
            )
    at_least = {
        "max_body_bytes": 1024,
        "max_header_bytes": 1024,
        "headers_after_s": 0,
        "keep_alive_s": 0.05,
        "activity_days": 0,
        "activity_rows": 0,
    }
    for name, least in at_least.items():
        value = getattr(settings, name)
        if value < least:
            raise ConfigProblem(f"{name} is {value}; it must be at least {least}")
    if not is_loopback(settings.listen_host) and not settings.api_keys:
        raise ConfigProblem(
            f"listen_host is '{settings.listen_host}', which other machines can reach; give an API"
            f" key, or listen on {LOOPBACK}"
        )
