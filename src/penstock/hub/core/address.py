"""The names of actors: `@(browser/client-ui)`, a kind and a name in lower case."""

from __future__ import annotations

import re

HUB = "@(cloudflare/signal-hub)"
"""Who the hub is, by specification 002: the sender of its replies, and what forwarded messages came through."""
EVERYONE = "@(broadcast/all)"
"""Whom a broadcast is for, where a recipient has to be named."""
MAX_ADDRESS = 256

_ADDRESS = re.compile(r"@\([a-z0-9-]+/[a-z0-9-]+\)").fullmatch


def is_address(text: str) -> bool:
    """Whether this is the canonical address of an actor."""
    return len(text) <= MAX_ADDRESS and _ADDRESS(text) is not None


def address_of(kind_and_name: str) -> str:
    """The address of an actor as a token names it: `browser/client-ui`, or the address itself."""
    return kind_and_name if kind_and_name.startswith("@(") else f"@({kind_and_name})"
