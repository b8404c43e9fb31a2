"""Where an ActiveMQ queue is: `activemq://[user:password@]host[:port][,host…]/QUEUE[?option=value…]`."""

from __future__ import annotations

import re
from typing import Final
from urllib.parse import parse_qsl, unquote, urlsplit

import msgspec

from penstock.errors import InvalidArgument
from penstock.router.sources.stomp_connection import Login

PORT: Final = 61613
TLS_PORT: Final = 61614
PREFETCH: Final = 5_000
MOST_PREFETCH: Final = 100_000

_HOST: Final = re.compile(r"(\[[0-9A-Fa-f:.]+\]|[^\[\]:\s]+)(?::(\d{1,5}))?")
_NO_QUEUE: Final = re.compile(r"[,*>?\x00-\x1f\x7f]")
"""Names of several queues, and what cannot be in a name."""
_SWITCH: Final = {"true": True, "false": False}


class Address(msgspec.Struct, frozen=True):
    """What a queue's URI says."""

    hosts: tuple[tuple[str, int], ...]
    queue: str
    login: Login
    prefetch: int = PREFETCH
    """How many messages the server may have given out and not heard of."""
    is_exclusive: bool = False
    """Only one router at a time is given messages; the next takes over, in order, when it is gone."""
    has_tls: bool = False
    ca: str = ""
    """A file of certificates to trust; "": those that the machine trusts."""


def parse_address(uri: str) -> Address:
    """The parts of a URI; InvalidArgument, without its password, when it is none."""
    try:
        parts = urlsplit(uri)
    except ValueError:
        raise _wrong("something else") from None
    if parts.fragment or parts.scheme.lower() != "activemq":
        raise _wrong("something else")
    options = _options(parts.query)
    has_tls = _switch(options, "tls")
    if "ca" in options and not has_tls:
        raise InvalidArgument.of("ca of an ActiveMQ URI", options["ca"], "tls=true beside it")
    user, _, places = parts.netloc.rpartition("@")
    name, _, password = user.partition(":")
    login = Login(unquote(name), unquote(password))
    if any(character in login.user + login.password for character in "\r\n\0"):
        raise InvalidArgument("the user or the password in an ActiveMQ URI holds a control character")
    queue = unquote(parts.path.removeprefix("/"))
    if not queue or _NO_QUEUE.search(queue):
        raise InvalidArgument.of("the queue in an ActiveMQ URI", queue, "the name of one queue", hint=_WANTED)
    return Address(
        tuple(_place(place, TLS_PORT if has_tls else PORT) for place in places.split(",")),
        queue,
        login,
        _prefetch(options.get("prefetch", str(PREFETCH))),
        _switch(options, "exclusive"),
        has_tls,
        options.get("ca", ""),
    )


def _place(text: str, port: int) -> tuple[str, int]:
    found = _HOST.fullmatch(text)
    number = int(found[2] or port) if found is not None else 0
    if found is None or not 1 <= number <= 65535:
        raise InvalidArgument.of("a host in an ActiveMQ URI", text, "a host, or a host and a port of 1 to 65535", hint=_WANTED)
    return found[1].strip("[]"), number


def _options(query: str) -> dict[str, str]:
    try:
        options = dict(parse_qsl(query, keep_blank_values=True, strict_parsing=bool(query)))
    except ValueError:
        raise _wrong("options that cannot be read") from None
    if unknown := options.keys() - {"prefetch", "exclusive", "tls", "ca"}:
        raise InvalidArgument.of("an option of an ActiveMQ URI", min(unknown), "prefetch, exclusive, tls or ca", hint=_WANTED)
    return options


def _switch(options: dict[str, str], name: str) -> bool:
    value = options.get(name, "false")
    if value not in _SWITCH:
        raise InvalidArgument.of(f"{name} of an ActiveMQ URI", value, "true or false")
    return _SWITCH[value]


def _prefetch(text: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) <= 6 and 1 <= int(text) <= MOST_PREFETCH):
        raise InvalidArgument.of("prefetch of an ActiveMQ URI", text, f"1 to {MOST_PREFETCH:,}")
    return int(text)


def _wrong(found: str) -> InvalidArgument:
    return InvalidArgument(f"the URI of an ActiveMQ queue is {found}", hint=_WANTED)


_WANTED = "wanted activemq://user:password@host:61613/QUEUE; several hosts are separated by commas"
