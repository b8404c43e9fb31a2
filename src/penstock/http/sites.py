"""What web pages may do here. Browsers send requests for any page, also to a server that only this machine can reach.

- A page of another origin that says so (Origin) is refused, unless the server's settings name its origin.
- What a browser sends without saying for whom (an image, a link, a frame) is refused when another site caused it
  (Sec-Fetch-Site): a GET may take messages. Only the pages for people may be linked to.
- A stranger's page may give its own name the address of this server, and then is of the same origin. Where no token keeps it
  out, the name (Host) must therefore be one that no stranger can point here.

Other clients send neither Origin nor Sec-Fetch-Site, and call the server by an address or a name that it was given.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from functools import lru_cache
from ipaddress import ip_address
from urllib.parse import urlsplit

from penstock.http.refusal import Refusal

ANY_HOST = "*"
"""Among the hosts: every name will do, because others than this machine are meant to call."""
_FOREIGN = frozenset({"cross-site", "same-site"})


class OriginCheck:
    """Refuses what foreign web pages send.

    `origins` are those whose pages may call, `*` for all; `hosts` are names of this server, `*` for any; `needs_token` says that
    nobody comes in without a token, so that the name does not matter.
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
        """Return when a request with these headers may continue.

        `is_page` says that it is for a page for people; `origins` are further ones whose pages may send this very request.
        """
        origin, host = headers.get("Origin"), headers.get("Host", "")
        if self._asks_host and host and not self._is_known(host):
            raise Refusal(
                421,
                f"this server asks for no tokens, so it does not answer to the host {host[:100]!r}",
                reason="host_not_allowed",
                hint="call it by its address or as localhost, set public_url to the URL with this name, or ask for tokens",
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
                return  # somebody followed a link to it
            raise _not_allowed(
                "requests that a page of another site causes are not allowed",
                "type the address, or call it by a script of a page whose origin is in the server's cors_origins",
            )

    def _is_own(self, origin: str, host: str) -> bool:
        return origin.partition("://")[2] == host and self._is_known(host)

    def _is_known_host(self, host: str) -> bool:
        """Whether a Host header has a name that no stranger can point at this server, or an address."""
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
