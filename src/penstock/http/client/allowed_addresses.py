"""Which addresses the router may connect to: public ones, and of the others those that the operator named.

A message names its target, and whoever wrote the message may be a stranger to the operator's network: metadata services,
databases and this machine itself are not for the stranger to call. What counts is the address at the moment of connecting: a
name does not tell where it leads, and may lead elsewhere a second later. Push uses the functions for single addresses too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from penstock.errors import InvalidArgument

Address = IPv4Address | IPv6Address

_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)", re.ASCII)
"""What ends in a number is no name but an address, perhaps in an odd spelling: 127.1, 0x7f.1, 2130706433."""

_GLOBAL = IPv6Network("2000::/3")
"""All that is given out for public use; the rest has local meanings, and more of them with every version of the tables."""
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = {0x00005EFE, 0x02005EFE}
"""The third quarter of an address whose last quarter is an IPv4 address that a tunnel leads to."""
_NOT_PUBLIC = [
    IPv4Network("192.0.0.0/24"),  # for protocols of the own network; some clouds keep their metadata here
    IPv4Network("192.88.99.0/24"),  # the nearest 6to4 relay
    IPv4Network("168.63.129.16/32"),  # a public number, but in one cloud the host of the virtual machine
]
_NOT_PUBLIC_6 = [
    IPv6Network("2001::/23"),  # Teredo, which leads to an IPv4 address, and what protocols use inside a network
    IPv6Network("2002::/16"),  # 6to4: leads to an IPv4 address
    IPv6Network("3fff::/20"),  # for documents
]

Network = IPv4Network | IPv6Network

_MAPPED = IPv6Network("::ffff:0:0/96")
_HOST = re.compile(r"[0-9a-zA-Z._-]+", re.ASCII)
_PATTERN = re.compile(r"[0-9a-z._*-]+", re.ASCII)
_PIECES = re.compile(r"(?:\[(?P<inside>[^\[\]]*)\]|(?P<bare>[^\[\]:]*))(?::(?P<port>.*))?", re.DOTALL)
_WANTED = "a host name, an address or a network, perhaps with a port"
_HINT = "for example hooks.example, *.internal.example:8443, 10.1.2.3, 10.0.0.0/8:443, fd00::/8 or [fd00::/8]:443"


def parsed(text: str) -> Address | None:
    """An address in the one spelling that everybody reads alike, IPv6 perhaps in brackets; None for anything else."""
    try:
        return IPv6Address(text[1:-1]) if text.startswith("[") and text.endswith("]") else ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether this is an address of the internet at large."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:  # it is of one interface of this machine
            return False
        inner = _inner(address)
        if inner is None:
            return address in _GLOBAL and address.is_global and not _is_special(address)
        address = inner
    return address.is_global and not address.is_multicast and not any(address in net for net in _NOT_PUBLIC)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address that an IPv6 address stands for, if a system or a NAT64 gateway takes it for one."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _is_special(address: IPv6Address) -> bool:
    """Whether it only carries packets to an IPv4 address, or has no public use."""
    return (int(address) >> 32) & 0xFFFFFFFF in _ISATAP or any(address in net for net in _NOT_PUBLIC_6)


def is_number(host: str) -> bool:
    """Whether a host in a URL is read as an address, not as a name, in this spelling or in one that some systems accept."""
    return host.startswith("[") or _NUMBER.fullmatch(host) is not None


def wildcard(pattern: str) -> re.Pattern[str]:
    """What a text must match as a whole; `*` stands for any text."""
    first, *rest = (re.escape(piece) for piece in pattern.split("*"))
    if not rest:
        return re.compile(first)
    *middle, last = rest
    # Each piece takes the first place that fits and looks for no other: a pattern full of stars stays cheap.
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}")


class AllowedAddresses:
    """What may be connected to: public addresses, and what `allow` opens beside them.

    - A host name, `*` for any text in it: `*.internal.example`. It may lead anywhere.
    - An address or a network: `10.1.2.3`, `10.0.0.0/8`, `fd00::/8`. Any name may lead there; an IPv4 address that is written as
      IPv6 (`::ffff:10.1.2.3`) is the same address.

    Each is meant on every port, or on one: `10.0.0.0/8:443`, `[fd00::/8]:443`.
    """

    def __init__(self, allow: Iterable[str] = ()) -> None:
        self._names: list[_Name] = []
        self._networks: list[_Network] = []
        for text in allow:
            rule = _rule(text)
            if isinstance(rule, _Name):
                self._names.append(rule)
            else:
                self._networks.append(rule)

    def may_connect(self, host: str, address: str, port: int) -> bool:
        """Whether a connection may be opened to this address, to which this host of a URL led. No address at all: no."""
        found = parsed(address)
        if found is None:
            return False
        return is_public(found) or self._is_open(_plain(found), port) or self._is_trusted(host, port)

    def _is_open(self, address: Address, port: int) -> bool:
        return any(rule.port in {0, port} and address in rule.network for rule in self._networks)

    def _is_trusted(self, host: str, port: int) -> bool:
        # What is not plainly a host could be read as one host here and as another by the code that connects to it.
        if _HOST.fullmatch(host) is None:
            return False
        name = host.lower().removesuffix(".")
        return any(rule.port in {0, port} and rule.name.fullmatch(name) for rule in self._names)


class _Name(NamedTuple):
    name: re.Pattern[str]
    port: int
    """0: any."""


class _Network(NamedTuple):
    network: Network
    port: int


def _plain(address: Address) -> Address:
    """An IPv4 address that is written as IPv6 is that IPv4 address: so the system takes it, too."""
    return (isinstance(address, IPv6Address) and address.ipv4_mapped) or address


def _rule(text: str) -> _Name | _Network:
    host, port = _split(text)
    if "/" in host or parsed(host) is not None:
        return _Network(_network(host, text), port)
    if _PATTERN.fullmatch(host) is None:
        raise InvalidArgument.of("allow_targets", text, _WANTED, hint=_HINT)
    if is_number(host):
        raise InvalidArgument.of("allow_targets", text, "an address in full, such as 127.0.0.1", hint=_HINT)
    name = host.removesuffix(".")
    # Whose a name is, its end says: 10.* looks like addresses, and would trust 10.evil.example.
    if not (last := name.rpartition(".")[2]) or "*" in last:
        raise InvalidArgument.of(
            "allow_targets",
            text,
            "a name whose last part is without `*`",
            hint="networks are written as 10.0.0.0/8; 0.0.0.0/0 and ::/0 open every address",
        )
    return _Name(wildcard(name), port)


def _split(text: object) -> tuple[str, int]:
    """The host of a pattern and its port, 0 where it has none."""
    if not isinstance(text, str) or not text.isascii():
        raise InvalidArgument.of("allow_targets", text, _WANTED, hint=_HINT)
    text = text.lower()
    if ":" in text.partition(":")[2] and "[" not in text:  # an IPv6 address without brackets has no port
        return text, 0
    found = _PIECES.fullmatch(text)
    if found is None:
        raise InvalidArgument.of("allow_targets", text, _WANTED, hint=_HINT)
    inside, bare, port = found["inside"], found["bare"], found["port"]
    if inside is not None and ":" not in inside:
        raise InvalidArgument.of("allow_targets", text, "brackets around IPv6 alone", hint=_HINT)
    if port is None:
        return inside or bare, 0
    if not (port.isascii() and port.isdigit() and len(port) <= 5 and 1 <= int(port) <= 65_535):
        raise InvalidArgument.of("allow_targets", text, "a port from 1 to 65535 after the colon", hint=_HINT)
    return inside or bare, int(port)


def _network(host: str, text: str) -> Network:
    if "%" in host:
        raise InvalidArgument.of("allow_targets", text, "an address without the name of an interface", hint=_HINT)
    try:
        network = ip_network(host, strict=False)
    except ValueError:
        raise InvalidArgument.of("allow_targets", text, "a network such as 10.0.0.0/8 or fd00::/8", hint=_HINT) from None
    if "/" in host and parsed(host.partition("/")[0]) != network.network_address:
        raise InvalidArgument.of(
            "allow_targets", text, f"the first address of the network: {network}", hint="or the address alone, without `/`"
        )
    if isinstance(network, IPv6Network) and network.subnet_of(_MAPPED):
        inner = IPv4Address(int(network.network_address) & 0xFFFFFFFF)
        return IPv4Network((inner, network.prefixlen - 96))
    return network
