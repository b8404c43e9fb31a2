"""Which requests of web pages are allowed. Browsers send requests of any page, also to servers that only their machine can reach.

- A request with the Origin of another site is refused, unless the server's settings allow this origin.
- A request without Origin (for an image, a link, a frame) is refused if another site caused it (Sec-Fetch-Site): a GET may
  take messages. Other sites may only link to the pages for people.
- A foreign site may let its own name point to the address of this server (DNS rebinding), and then is of the same origin. So if
  no token is needed, the name (Host) must be one that strangers cannot point here.

Other clients send neither Origin nor Sec-Fetch-Site, and call the server by its address or by a configured name.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from penstock.http.refusal import Refusal

ANY_HOST = "*"
"""In `hosts`: every name is allowed, because the server is open to other machines."""
_FOREIGN = frozenset({"cross-site", "same-site"})


class OriginCheck:
    """Refuses requests of foreign web pages.

    `origins` are those whose pages may call, `*` for all; `hosts` are names of this server, `*` for any. If `needs_token`, every
    call needs a token, so the name is not checked.
    """

    def __init__(self, origins: Collection[str], hosts: Collection[str], *, needs_token: bool) -> None:
        self._origins = frozenset(origins)
        self._hosts = frozenset(host.lower() for host in hosts)
        self._allows_all = "*" in self._origins
        self._asks_host = not needs_token and not self._allows_all and ANY_HOST not in self._hosts
        self._is_known = lru_cache(maxsize=1024)(self._is_known_host)

    def allows(self, origin: str) -> bool:
        """Whether pages of this origin may call, and read the answers."""
        return self._allows_all or origin in self._origins

    def check(self, headers: Mapping[str, str], *, is_page: bool = False, origins: Collection[str] = ()) -> None:
        """Raise unless a request with these headers may continue.

        `is_page`: the request is for a page for people. `origins` are further origins whose pages may send this request.
        """
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if self._asks_host and host and not self._is_known(host):
            raise Refusal(
                421,
                f"this server runs without tokens, so it refuses requests for the host {host[:100]!r}",
                reason="host_not_allowed",
                hint="call it by its address or as localhost, set public_url to the URL with this name, or enable tokens",
                word="PERMISSION_DENIED",
            )
        if origin is not None:
            if not (self.allows(origin) or self._is_own(origin, host) or origin in origins or "*" in origins):
                raise _not_allowed(
                    "requests of web pages of this origin are not allowed",
                    "add the origin to the server's cors_origins, or for the hub alone to its hub_origins",
                )
        elif headers.get("Sec-Fetch-Site") in _FOREIGN and not self._allows_all:
            if is_page and headers.get("Sec-Fetch-Mode") == "navigate":
                return  # a user followed a link to it
            raise _not_allowed(
                "requests that a page of another site causes are not allowed",
                "open the address directly, or call it from a page whose origin is in the server's cors_origins",
            )

    def _is_own(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host and self._is_known(host)

    def _is_known_host(self, host: str) -> bool:
        """Whether a Host header has an address, or a name that strangers cannot point at this server."""
        try:
            name = (urlsplit(f"//{host}").hostname or "").removesuffix(".")
        except ValueError:
            return False
        return name == "localhost" or name.endswith(".localhost") or name in self._hosts or _is_address(name)


def _is_address(name: str) -> bool:
    try:
        ip_address(name)
    except ValueError:
        return False
    return True


def _not_allowed(message: str, hint: str) -> Refusal:
    return Refusal(403, message, reason="origin_not_allowed", hint=hint, word="PERMISSION_DENIED")
