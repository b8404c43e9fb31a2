"""Which addresses the router may connect to: public ones, and others that the operator allows.

A message names its target, and its author may not be trusted with the operator's network: it must not reach metadata services,
databases or this machine itself. The address is checked at the moment of connecting, because a name may resolve to any address,
and to another one a second later. Push uses the functions for single addresses too.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from typing import NamedTuple

from penstock.errors import InvalidArgument

Address = IPv4Address | IPv6Address

_NUMBER = re.compile(r"(.*\.)?([0-9]+|0x[0-9a-f]*)", re.ASCII)
"""A host that ends in a number is an address, not a name, perhaps in an unusual notation: 127.1, 0x7f.1, 2130706433."""

_GLOBAL = IPv6Network("2000::/3")
"""All addresses allocated for public use. The others have local meanings, and the list of these grows."""
_NAT64 = IPv6Network("64:ff9b::/96")
_ISATAP = {0x00005EFE, 0x02005EFE}
"""The third quarter of an ISATAP address, whose last quarter is the IPv4 address of the tunnel's end."""
_NOT_PUBLIC = [
    IPv4Network("192.0.0.0/24"),  # for protocols inside a network; some clouds have their metadata service here
    IPv4Network("192.88.99.0/24"),  # the nearest 6to4 relay
    IPv4Network("168.63.129.16/32"),  # a public address, but in one cloud the host of the virtual machine
]
_NOT_PUBLIC_6 = [
    IPv6Network("2001::/23"),  # Teredo, which leads to an IPv4 address, and addresses for protocols inside a network
    IPv6Network("2002::/16"),  # 6to4: leads to an IPv4 address
    IPv6Network("3fff::/20"),  # for documentation
]

Network = IPv4Network | IPv6Network

_MAPPED = IPv6Network("::ffff:0:0/96")
_HOST = re.compile(r"[0-9a-zA-Z._-]+", re.ASCII)
_PATTERN = re.compile(r"[0-9a-z._*-]+", re.ASCII)
_PIECES = re.compile(r"(?:\[(?P<inside>[^\[\]]*)\]|(?P<bare>[^\[\]:]*))(?::(?P<port>.*))?", re.DOTALL)
_WANTED = "a host name, an address or a network, perhaps with a port"
_HINT = "for example hooks.example, *.internal.example:8443, 10.1.2.3, 10.0.0.0/8:443, fd00::/8 or [fd00::/8]:443"


def parsed(text: str) -> Address | None:
    """An address in its standard notation, IPv6 also in brackets; None for any other text."""
    try:
        return IPv6Address(text[1:-1]) if text.startswith("[") and text.endswith("]") else ip_address(text)
    except ValueError:
        return None


def is_public(address: Address) -> bool:
    """Whether this is an address of the public internet."""
    if isinstance(address, IPv6Address):
        if address.scope_id is not None:  # it belongs to one interface of this machine
            return False
        inner = _inner(address)
        if inner is None:
            return address in _GLOBAL and address.is_global and not _is_special(address)
        address = inner
    return address.is_global and not address.is_multicast and not any(address in net for net in _NOT_PUBLIC)


def _inner(address: IPv6Address) -> IPv4Address | None:
    """The IPv4 address inside an IPv6 address, if the system or a NAT64 gateway treats it as one."""
    return IPv4Address(int(address) & 0xFFFFFFFF) if address in _NAT64 else address.ipv4_mapped


def _is_special(address: IPv6Address) -> bool:
    """Whether it is a tunnel to an IPv4 address, or has no public use."""
    return (int(address) >> 32) & 0xFFFFFFFF in _ISATAP or any(address in net for net in _NOT_PUBLIC_6)


def is_number(host: str) -> bool:
    """Whether a host in a URL is an address, not a name, in the standard notation or in one that some systems accept."""
    return host.startswith("[") or _NUMBER.fullmatch(host) is not None


def wildcard(pattern: str) -> re.Pattern[str]:
    """A pattern for full matches, in which `*` stands for any text."""
    first, *rest = (re.escape(piece) for piece in pattern.split("*"))
    if not rest:
        return re.compile(first)
    *middle, last = rest
    # Each piece takes its first match and is not tried elsewhere: a pattern with many stars stays cheap.
    return re.compile(first + "".join(f"(?>.*?{piece})" for piece in middle) + f".*{last}")


class AllowedAddresses:
    """The addresses that connections are allowed to: public ones, and those in `allow`.

    - A host name, `*` for any text in it: `*.internal.example`. It may resolve to any address.
    - An address or a network: `10.1.2.3`, `10.0.0.0/8`, `fd00::/8`. Any name may resolve to it; an IPv4 address that is written
      as IPv6 (`::ffff:10.1.2.3`) is the same address.

    Each applies to every port, or to one: `10.0.0.0/8:443`, `[fd00::/8]:443`.
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
        """Whether a connection may be opened to an address that the host of a URL resolved to. False for an invalid address."""
        found = parsed(address)
        if found is None:
            return False
        return is_public(found) or self._is_open(_plain(found), port) or self._is_trusted(host, port)

    def _is_open(self, address: Address, port: int) -> bool:
        return any(rule.port in {0, port} and address in rule.network for rule in self._networks)

    def _is_trusted(self, host: str, port: int) -> bool:
        # Other texts could be read as one host here, and as another one by the code that connects.
        if _HOST.fullmatch(host) is None:
            return False
        name = host.lower().removesuffix(".")
        return any(rule.port in {0, port} and rule.name.fullmatch(name) for rule in self._names)


class _Name(NamedTuple):
    name: re.Pattern[str]
    port: int
    """0: any port."""


class _Network(NamedTuple):
    network: Network
    port: int


def _plain(address: Address) -> Address:
    """The IPv4 address, if it is written as IPv6: the system treats both alike."""
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
    # The end of a name decides who owns it: 10.* looks like addresses, but would allow 10.evil.example.
    if not (last := name.rpartition(".")[2]) or "*" in last:
        raise InvalidArgument.of(
            "allow_targets",
            text,
            "a name whose last part is without `*`",
            hint="networks are written as 10.0.0.0/8; 0.0.0.0/0 and ::/0 open every address",
        )
    return _Name(wildcard(name), port)


def _split(text: object) -> tuple[str, int]:
    """The host of a pattern and its port, 0 if it has none."""
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
