"""Hosts and addresses as text: which are of the internet at large, and which lead inside somebody's network.

What calls an address that a stranger chose asks here first, with the address that it is about to connect to: a name does not
tell where it leads, and may lead elsewhere a second later.
"""

from __future__ import annotations

import re
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address

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
