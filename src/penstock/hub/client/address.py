"""Where a hub is: the address of a server as people write it, and the WebSocket that belongs to it."""

from __future__ import annotations

from urllib.parse import urlsplit

from penstock.errors import InvalidArgument
from penstock.hub.core.names import is_address
from penstock.wire.address import HINT as SERVER_HINT
from penstock.wire.address import Address

PATH = "/ws"
HINT = "http://HOST:8085 or https://HOST:8085, or the WebSocket itself: ws://HOST:8085/ws"


def hub_url(server: object) -> str:
    """The WebSocket of a server: `http://host:8085` becomes `ws://host:8085/ws`."""
    if not isinstance(server, str) or not server.startswith(("ws://", "wss://")):
        try:
            address = Address.parse(server)
        except InvalidArgument as error:
            error.hint = (error.hint or "").replace(SERVER_HINT, HINT)  # a hub is not at the native port
            raise
        if address.scheme not in {"http", "https"}:
            raise InvalidArgument.of("server", server, "the address of a server's HTTP port", hint=HINT)
        host = f"[{address.host}]" if ":" in address.host else address.host
        return f"{'wss' if address.has_tls else 'ws'}://{host}:{address.port}{PATH}"
    try:
        parts = urlsplit(server)
        is_whole = bool(parts.hostname) and parts.port != 0 and " " not in server
    except ValueError:
        parts, is_whole = None, False
    if parts is None or not is_whole:
        raise InvalidArgument.of("server", server, "the address of a hub", hint=HINT)
    if parts.username is not None or parts.query or parts.fragment:
        # What stands there may be a secret: it is not repeated.
        raise InvalidArgument(
            f"server has more than a host, a port and a path (the host is {parts.hostname!r}), expected the address of a hub",
            hint=f"{HINT}; a token is given as token=…",
        )
    return server if parts.path.strip("/") else f"{parts.scheme}://{parts.netloc}{PATH}"


def checked_address(address: object, name: str = "address") -> str:
    """The address of an actor."""
    if not isinstance(address, str) or not is_address(address):
        raise InvalidArgument.of(
            name,
            address,
            "an actor's address such as '@(browser/ui)'",
            hint="a kind and a name: lower-case letters, digits and -",
        )
    return address
