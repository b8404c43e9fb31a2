"""The target of a request: a URL, parsed and checked once, with the prepared start of its requests.

The URL comes from a message, so it is not trusted. A URL that two parsers could read differently, or that could smuggle a second
line into a request, is refused, never repaired.
"""

from __future__ import annotations

import re
from ipaddress import IPv6Address
from typing import Final
from urllib.parse import quote, urlsplit

import msgspec

from penstock.errors import InvalidArgument
from penstock.http.client.allowed_addresses import is_number, parsed

MAX_LENGTH: Final = 8192
"""Characters of a URL: common servers accept no longer request lines."""
USER_AGENT: Final = "penstock-router"

_PORTS: Final = {"http": 80, "https": 443}
_BLANK: Final = re.compile(r"[\x00-\x20\x7f-\x9f\u2028\u2029]")
_LABEL: Final = r"[a-z0-9_](?:[a-z0-9_-]{0,61}[a-z0-9_])?"
_NAME: Final = re.compile(rf"{_LABEL}(?:\.{_LABEL})*", re.ASCII)
_PORT: Final = re.compile(r"[0-9]{1,5}", re.ASCII)
_KEPT: Final = "!$%&'()*+,/:;=?@[]~"
"""Characters that are not escaped in a path or a query, beside letters and digits."""
_HINT: Final = "for example https://hooks.example/orders"


class Target(msgspec.Struct, frozen=True, gc=False):
    """A URL that may be called."""

    scheme: str
    host: str
    """The host as it is resolved and compared with a certificate: lower case, without brackets."""
    port: int
    origin: str
    """Scheme, host and port. Calls to one origin share connections. It contains no secret."""
    authority: str
    """The value of the Host header."""
    path: str
    """The path with the query."""
    head: bytes
    """The start of an HTTP/1.1 request, up to the value of Content-Length."""

    @property
    def is_secure(self) -> bool:
        return self.scheme == "https"


def parse_target(url: str) -> Target:
    """The target of a URL; InvalidArgument if it cannot be called."""
    if len(url) > MAX_LENGTH:
        raise InvalidArgument(f"target has {len(url)} characters, expected at most {MAX_LENGTH}", hint=_HINT)
    if _BLANK.search(url):
        raise _wrong(url, "a URL without blanks, line ends and control characters")
    if "#" in url:
        raise _wrong(url, "a URL without a fragment (#…)")
    scheme, separator, rest = url.partition("://")
    scheme = scheme.lower()
    if not separator or scheme not in _PORTS:
        raise _wrong(url, "a URL that begins with http:// or https://")
    try:
        parts = urlsplit(f"{scheme}://{rest}")
        path = quote(parts.path or "/", safe=_KEPT) + (f"?{quote(parts.query, safe=_KEPT)}" if parts.query else "")
    except ValueError:  # brackets that do not match, or half a character
        raise _wrong(url, "a URL") from None
    if "@" in parts.netloc:
        raise _wrong(url, "a URL without user and password", hint="a message's authToken is sent as a bearer token")
    host, port = _place(url, parts.netloc, _PORTS[scheme])
    shown = f"[{host}]" if ":" in host else host
    authority = shown if port == _PORTS[scheme] else f"{shown}:{port}"
    head = (
        f"POST {path} HTTP/1.1\r\nHost: {authority}\r\nContent-Type: application/json\r\nAccept: application/json\r\n"
        f"User-Agent: {USER_AGENT}\r\nContent-Length: "
    )
    return Target(scheme, host, port, f"{scheme}://{shown}:{port}", authority, path, head.encode("ascii"))


def _place(url: str, netloc: str, default: int) -> tuple[str, int]:
    """The host and the port of the part between `//` and the path."""
    inside, bracket, rest = netloc.rpartition("]")
    name, colon, port = rest.partition(":")
    if colon and not (_PORT.fullmatch(port) and 0 < int(port) < 65536):
        raise _wrong(url, "a port from 1 to 65535")
    number = int(port) if colon else default
    if bracket:
        address = parsed(inside.removeprefix("["))
        if name or not inside.startswith("[") or not isinstance(address, IPv6Address) or address.scope_id:
            raise _wrong(url, "an IPv6 address in brackets, without a zone")
        return str(address), number
    return _named(url, name), number


def _named(url: str, name: str) -> str:
    """A host that is a name or an IPv4 address, in its standard notation."""
    try:
        host = name.lower() if name.isascii() else name.encode("idna").decode("ascii").lower()
    except UnicodeError:
        raise _wrong(url, "a host name that can be written in ASCII (IDNA)") from None
    host = host.removesuffix(".")
    if not host or len(host) > 253 or _NAME.fullmatch(host) is None:
        raise _wrong(url, "a host name or an address after ://")
    if is_number(host) and parsed(host) is None:
        raise _wrong(url, "an IPv4 address as four decimal numbers")
    return host


def _wrong(url: str, wanted: str, hint: str = _HINT) -> InvalidArgument:
    """The error for a URL. A query or a password, and everything after it, may be secret and is not shown."""
    shown = "a URL with a user" if "@" in url else re.split(r"[?#]", url, maxsplit=1)[0]
    return InvalidArgument.of("target", shown, wanted, hint=hint)


def shown_target(url: str) -> str:
    """A target for display: without user, password and query."""
    try:
        parts = urlsplit(url)
    except ValueError:
        return "a target that is no URL"
    return f"{parts.scheme}://{parts.netloc.rpartition('@')[2]}{parts.path}"
