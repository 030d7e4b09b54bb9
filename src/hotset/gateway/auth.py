"""Who may ask: API keys, and no foreign web pages.

A browser on this machine reaches every local port, and any page in it can send requests there. So
before anything else the gateway looks at where a request comes from: a `Host` that is a foreign
name (DNS rebinding), an `Origin` or `Sec-Fetch-Site` of another page. Programs send neither.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import hmac
from collections.abc import Sequence
from ipaddress import ip_address
from urllib.parse import urlsplit

from starlette.datastructures import Headers

from hotset.core.errors import ClientProblem
from hotset.core.settings import Secret
from hotset.gateway.settings import GatewaySettings

__all__ = ["Gate"]

OPEN_PATHS = ("/health", "/v1/health", "/ready", "/favicon.ico")
"""They say nothing but that the gateway lives; load balancers ask them without a key."""

_MAX_AGE_S = 600


class Gate:
    """Decides for each request; holds no state of its own."""

    def __init__(self, settings: GatewaySettings) -> None:
        self._digests = [_digest(key) for key in settings.api_keys]
        names = {"localhost", settings.listen_host, *settings.allowed_hosts}
        self._hosts = {name.lower().rstrip(".") for name in names}
        self._origins = {origin.lower() for origin in settings.allowed_origins}
        self._max_header_bytes = settings.max_header_bytes

    def check_place(self, headers: Headers) -> None:
        """Where the request comes from, and how large its head is.

        Raises:
            ClientProblem: 403 or 431.
        """
        size = sum(len(name) + len(value) for name, value in headers.raw)
        if size > self._max_header_bytes:
            raise ClientProblem(
                f"the headers have {size} bytes; at most {self._max_header_bytes} are taken", 431
            )
        self._check_host(headers.get("host", ""))
        self._check_origin(headers)

    def _check_host(self, host: str) -> None:
        """Addresses are always fine: only a name can be pointed at this machine by a stranger."""
        name = _host_name(host)
        if not name or name in self._hosts or "*" in self._hosts or _is_address(name):
            return
        raise ClientProblem(
            f"this gateway does not answer to the name '{name}'; if it is yours, add it to the"
            " allowed hosts",
            403,
        )

    def _check_origin(self, headers: Headers) -> None:
        origin = headers.get("origin")
        if origin is not None:
            if not self.is_allowed_origin(origin, headers.get("host", "")):
                raise ClientProblem(
                    f"web pages of '{origin}' may not use this gateway; if it is yours, add it to"
                    " the allowed origins",
                    403,
                )
        elif headers.get("sec-fetch-site") in ("cross-site", "same-site"):
            raise ClientProblem("another web page may not use this gateway", 403)

    def is_allowed_origin(self, origin: str, host: str) -> bool:
        """Whether it is the gateway's own page, or one of the configured ones."""
        origin = origin.lower()
        if origin in self._origins or ("*" in self._origins and origin != "null"):
            return True
        return bool(host) and urlsplit(origin).netloc == host.lower()

    def cors_headers(self, origin: str | None) -> list[tuple[bytes, bytes]]:
        """For an answer to a page of a configured origin; none for all others."""
        if origin is None or not ({origin.lower(), "*"} & self._origins):
            return []
        # A header cannot hold anything else; the server has refused it before.
        return [
            (b"access-control-allow-origin", origin.encode("latin-1")),
            (b"access-control-expose-headers", b"x-request-id, retry-after"),
            (b"vary", b"Origin"),
        ]

    def preflight_headers(self, asked_headers: str) -> list[tuple[bytes, bytes]]:
        """For a browser that asks beforehand what it may send."""
        names = [name.strip() for name in asked_headers.split(",")]
        named = ", ".join(n for n in names if n.replace("-", "").replace("_", "").isalnum())
        return [
            (b"access-control-allow-methods", b"GET, POST, DELETE, OPTIONS"),
            (b"access-control-allow-headers", (named or "Authorization, Content-Type").encode()),
            (b"access-control-max-age", str(_MAX_AGE_S).encode()),
        ]

    def check_key(self, path: str, headers: Headers) -> None:
        """All keys are compared, each in constant time: neither which one nor how much of it was
        right shows in how long it takes.

        Raises:
            ClientProblem: 401.
        """
        if not self._digests or path in OPEN_PATHS:
            return
        is_right = False
        for given in _keys_of(headers):
            digest = _digest(Secret(given))
            for known in self._digests:
                is_right |= hmac.compare_digest(digest, known)
        if not is_right:
            raise ClientProblem(
                "the API key is missing or wrong; send it as 'Authorization: Bearer KEY' or"
                " 'x-api-key: KEY'",
                401,
            )


def _digest(key: Secret) -> bytes:
    return hashlib.sha256(key.reveal().encode("utf-8", "surrogateescape")).digest()


def _keys_of(headers: Headers) -> Sequence[str]:
    found = []
    scheme, _, rest = headers.get("authorization", "").partition(" ")
    if scheme.lower() == "bearer":
        found.append(rest.strip())
    elif scheme.lower() == "basic":  # what browsers and curl make of user:key@host
        with contextlib.suppress(ValueError):
            found.append(base64.b64decode(rest, validate=True).decode().partition(":")[2])
    if key := headers.get("x-api-key"):
        found.append(key)
    return found


def _host_name(host: str) -> str:
    """The name in a `Host` header, without the port; lower case."""
    host = host.strip().lower()
    if host.startswith("["):
        return host.partition("]")[0].removeprefix("[")
    return host.partition(":")[0].rstrip(".")


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True
