"""Which addresses the router may connect to: public ones, and of the others those that the operator named.

A message names its target, and whoever wrote the message may be a stranger to the operator's network: metadata services,
databases and this machine itself are not for the stranger to call. What counts is the address at the moment of connecting.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_network
from typing import NamedTuple

from penstock.errors import InvalidArgument
from penstock.http.client.addresses import Address, is_number, is_public, parsed, wildcard

Network = IPv4Network | IPv6Network

_MAPPED = IPv6Network("::ffff:0:0/96")
_HOST = re.compile(r"[0-9a-zA-Z._-]+", re.ASCII)
_PATTERN = re.compile(r"[0-9a-z._*-]+", re.ASCII)
_PIECES = re.compile(r"(?:\[(?P<inside>[^\[\]]*)\]|(?P<bare>[^\[\]:]*))(?::(?P<port>.*))?", re.DOTALL)
_WANTED = "a host name, an address or a network, perhaps with a port"
_HINT = "for example hooks.example, *.internal.example:8443, 10.1.2.3, 10.0.0.0/8:443, fd00::/8 or [fd00::/8]:443"


class Reach:
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
        # What is not plainly a host could be read as one host here and as another by who connects to it.
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
    """What a pattern means."""
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
