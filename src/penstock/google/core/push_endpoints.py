"""The endpoints to which the operator allows push.

A pattern is compared with the host in the URL. On a server with authentication, callers may be outsiders, so a second rule
applies, `public_only`: push connects to public addresses, and to others only if a pattern names the host or the address. A name
may resolve to another address a second later: the address is checked at connect time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument
from penstock.http.client.allowed_addresses import is_number, is_public, parsed, wildcard

ANY = "*"

_HOST = re.compile(r"[0-9a-z._-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_SAYS_SOMETHING = re.compile(r"[0-9a-z:]")


class Endpoints:
    """Hosts as patterns, `*` for any text: `*.example.com` on any port, `127.0.0.1:9000` on that one, `*` for every host."""

    def __init__(self, patterns: Iterable[str] = (ANY,), *, public_only: bool = False) -> None:
        self._texts = tuple(patterns)
        self._public_only = public_only
        self._all = _Patterns(self._texts)
        named = [text for text in self._texts if _SAYS_SOMETHING.search(_split(text)[0])]
        self._addresses = _Patterns(named)
        # The end of a name decides who owns it: 10.* means addresses, but would also match 10.evil.example.
        self._names = _Patterns(text for text in named if "*" not in _split(text)[0].rpartition(".")[2])

    def allow(self, url: str) -> bool:
        """Whether push to this URL is allowed, as far as the URL shows. `may_connect` decides the rest."""
        place = _place(url)
        if ANY not in self._texts and not (place.is_plain and self._all.match(place.host, place.port)):
            return False
        if not self._public_only or self.trusts(url):
            return True
        if is_number(place.host):
            return self.may_connect(place.host, place.port)
        return not _is_local(place.host)

    def trusts(self, url: str) -> bool:
        """Whether push may connect to any address of the name in this URL: the operator named it, or allows everything."""
        place = _place(url)
        is_name = place.is_plain and not is_number(place.host)
        return not self._public_only or (is_name and self._names.match(place.host, place.port))

    def may_connect(self, address: str, port: int) -> bool:
        """Whether push may connect to this address for a name that is not trusted."""
        if not self._public_only:
            return True
        found = parsed(address)
        return found is not None and (is_public(found) or self._addresses.match(_written(str(found)), port))

    def check(self, subscription: Any) -> None:
        """Refuse a subscription that pushes to a forbidden URL."""
        url = subscription.push_config.push_endpoint
        if url and not self.allow(url):
            # Callers with tokens may be outsiders: they must not learn what is inside the operator's network.
            names = "" if self._public_only else f": {', '.join(self._texts) or 'none'}"
            raise InvalidArgument.of(
                "push_config.push_endpoint",
                url,
                f"a host that this server may push to{names}",
                hint="the operator opens others with the setting push_allow",
            )


class _Place(NamedTuple):
    host: str
    port: int

    @property
    def is_plain(self) -> bool:
        """Whether it is plainly a host. Anything else could be one host here and another one for the code that connects."""
        return _HOST.fullmatch(self.host) is not None


def _place(url: str) -> _Place:
    parts = urlsplit(url)
    return _Place(_written((parts.hostname or "").rstrip(".")), parts.port or _PORTS.get(parts.scheme, 0))


def _written(host: str) -> str:
    """A host in the form for comparisons: an IPv6 address in brackets, and in one spelling."""
    return f"[{parsed(host) or host}]" if ":" in host else host


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


class _Patterns:
    """A set of patterns, those of hosts and those of a host with its port."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._hosts: list[re.Pattern[str]] = []
        self._places: list[re.Pattern[str]] = []
        for text in texts:
            host, port = _split(text)
            if port:
                self._places.append(wildcard(f"{host}:{port}"))
            else:
                self._hosts.append(wildcard(host))

    def match(self, host: str, port: int) -> bool:
        place = f"{host}:{port}"
        return any(one.fullmatch(host) for one in self._hosts) or any(one.fullmatch(place) for one in self._places)


def _split(pattern: str) -> tuple[str, str]:
    """The host of a pattern and its port; empty if it has none."""
    inside, bracket, rest = pattern.lower().rpartition("]")
    host, _, port = rest.partition(":")
    return (_written(inside.removeprefix("[")) if bracket else host), port
