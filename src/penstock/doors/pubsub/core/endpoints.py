"""Which endpoints the operator lets push send to.

A pattern is compared with the host in the URL. A server that asks for tokens has callers who do not belong to its network, so
there a second rule holds, `public_only`: push goes to public addresses, and to others only where a pattern names the host or the
address. A name does not tell where it leads, and may lead elsewhere a second later: the address is checked at connect time.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address
from typing import Any, NamedTuple
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument

Address = IPv4Address | IPv6Address

ANY = "*"

_HOST = re.compile(r"[0-9a-z._-]+|\[[0-9a-f:.]+\]", re.ASCII)
_PORTS = {"http": 80, "https": 443}
_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)", re.ASCII)
"""What ends in a number is no name but an address, perhaps in an odd spelling: 127.1, 0x7f.1, 2130706433."""
_SAYS_SOMETHING = re.compile(r"[0-9a-z:]")
_GLOBAL = IPv6Network("2000::/3")
"""All that is given out for public use; the rest has local meanings, and more of them with every version of the tables."""
_NAT64 = IPv6Network("64:ff9b::/96")
_NOT_PUBLIC = [
    IPv4Network("192.0.0.0/24"),  # for protocols of the own network; some clouds keep their metadata here
    IPv4Network("192.88.99.0/24"),  # the nearest 6to4 relay
    IPv4Network("168.63.129.16/32"),  # a public number, but in one cloud the host of the virtual machine
]
_NOT_PUBLIC_6 = [
    IPv6Network("2002::/16"),  # 6to4: leads to an IPv4 address
    IPv6Network("3fff::/20"),  # for documents
]


class Endpoints:
    """Hosts as patterns, `*` for any text: `*.example.com` on any port, `127.0.0.1:9000` on that one, `*` for every host."""

    def __init__(self, patterns: Iterable[str] = (ANY,), *, public_only: bool = False) -> None:
        self._texts = tuple(patterns)
        self._public_only = public_only
        self._all = _Patterns(self._texts)
        named = [text for text in self._texts if _SAYS_SOMETHING.search(_split(text)[0])]
        self._addresses = _Patterns(named)
        # Whose a name is, its end says: 10.* means addresses, and would cover 10.evil.example too.
        self._names = _Patterns(text for text in named if "*" not in _split(text)[0].rpartition(".")[2])

    def allow(self, url: str) -> bool:
        """Whether messages may be pushed there, as far as the URL tells. The rest is for `may_connect` to say."""
        place = _place(url)
        if ANY not in self._texts and not (place.is_plain and self._all.match(place.host, place.port)):
            return False
        if not self._public_only or self.trusts(url):
            return True
        if _is_address(place.host):
            return self.may_connect(place.host, place.port)
        return not _is_local(place.host)

    def trusts(self, url: str) -> bool:
        """Whether push may connect to wherever the name in this URL leads: the operator named it, or lets everything pass."""
        place = _place(url)
        is_name = place.is_plain and not _is_address(place.host)
        return not self._public_only or (is_name and self._names.match(place.host, place.port))

    def may_connect(self, address: str, port: int) -> bool:
        """Whether push may connect to this address for a name that is not trusted."""
        if not self._public_only:
            return True
        found = _parsed(address)
        return found is not None and (is_public(found) or self._addresses.match(_written(str(found)), port))

    def check(self, subscription: Any) -> None:
        """Refuse a subscription that pushes to where it may not."""
        url = subscription.push_config.push_endpoint
        if url and not self.allow(url):
            # Callers with tokens may be strangers: what there is inside the operator's network is not for them to read.
            names = "" if self._public_only else f": {', '.join(self._texts) or 'none'}"
            raise InvalidArgument.of(
                "push_config.push_endpoint",
                url,
                f"a host that this server may push to{names}",
                hint="the operator opens others with the setting push_allow",
            )


def is_public(address: Address) -> bool:
    """Whether this is an address of the internet at large."""
    if isinstance(address, IPv6Address):
        inner = _inner(address)
        if inner is None:
            return address in _GLOBAL and address.is_global and not any(address in net for net in _NOT_PUBLIC_6)
        address = inner
    return address.is_global and not address.is_multicast and not any(address in net for net in _NOT_PUBLIC)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, if a system or a NAT64 gateway takes it for one."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _parsed(text: str) -> Address | None:
    """An address in the one spelling that everybody reads alike; None for anything else."""
    try:
        return ip_address(text.strip("[]"))
    except ValueError:
        return None


class _Place(NamedTuple):
    host: str
    port: int

    @property
    def is_plain(self) -> bool:
        """What is not plainly a host could be read as one host here and as another by who connects to it."""
        return _HOST.fullmatch(self.host) is not None


def _place(url: str) -> _Place:
    parts = urlsplit(url)
    return _Place(_written((parts.hostname or "").rstrip(".")), parts.port or _PORTS.get(parts.scheme, 0))


def _written(host: str) -> str:
    """A host as it is compared: an IPv6 address in brackets, and in one spelling."""
    return f"[{_parsed(host) or host}]" if ":" in host else host


def _is_address(host: str) -> bool:
    return host.startswith("[") or _NUMBER.fullmatch(host) is not None


def _is_local(name: str) -> bool:
    return name == "localhost" or name.endswith(".localhost")


class _Patterns:
    """Some patterns, those of hosts and those of a host with its port."""

    def __init__(self, texts: Iterable[str]) -> None:
        self._hosts: list[re.Pattern[str]] = []
        self._places: list[re.Pattern[str]] = []
        for text in texts:
            host, port = _split(text)
            if port:
                self._places.append(_expression(f"{host}:{port}"))
            else:
                self._hosts.append(_expression(host))

    def match(self, host: str, port: int) -> bool:
        place = f"{host}:{port}"
        return any(one.fullmatch(host) for one in self._hosts) or any(one.fullmatch(place) for one in self._places)


def _split(pattern: str) -> tuple[str, str]:
    """The host of a pattern and its port, or no text where it has none."""
    inside, bracket, rest = pattern.lower().rpartition("]")
    host, _, port = rest.partition(":")
    return (_written(inside.removeprefix("[")) if bracket else host), port


def _expression(pattern: str) -> re.Pattern[str]:
    first, *rest = (re.escape(piece) for piece in pattern.split("*"))
    if not rest:
        return re.compile(first)
    *middle, last = rest
    # Each piece takes the first place that fits and looks for no other: a pattern full of stars stays cheap.
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}")
