"""Addresses of servers as users write them, and the native port of a server."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from collections.abc import Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument, PenstockError

HTTP_PORT, NATIVE_PORT = 8085, 8087
MAX_ANSWER = 10_000
"""The maximum length of the answer to `GET /native`, in bytes."""
HINT = "http://HOST:8085, https://HOST:8085, or penstock://HOST:8087 for the native port itself"

NOT_HTTP = "not a Penstock server: it does not speak HTTP"

Servers = str | Sequence[str]
"""One server or several nodes of a cluster: an address, addresses with commas between them, or a sequence of addresses."""

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


def split_servers(server: object) -> list[str]:
    """Each address in `"http://a:8085, http://b:8085"` or `["http://a:8085", "http://b:8085"]`, once, not checked yet."""
    if isinstance(server, list | tuple) and server and all(isinstance(one, str) for one in server):
        server = ",".join(server)
    if not isinstance(server, str) or not server:
        raise InvalidArgument.of("server", server, "the address of a server, or a list of addresses", hint=HINT)
    return [*dict.fromkeys(one.strip() for one in server.split(","))]


@dataclass(frozen=True, slots=True)
class NativePlace:
    """What a server answers to `GET /native`."""

    port: int
    has_tls: bool
    epoch: int = 0
    """Which ownership of the log the answer is about, in a cluster: a higher one is newer."""
    owner: str | None = None
    """The address of the node that owns the log, if it is another one."""


@dataclass(frozen=True, slots=True)
class Address:
    """The address of a server: its HTTP port (`http`, `https`), or its native port (`penstock`, `penstocks` with TLS)."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, server: object) -> Address:
        """Parse an address; without a scheme it is HTTP."""
        if not isinstance(server, str) or not server:
            raise InvalidArgument.of("server", server, "the address of a server", hint=HINT)
        try:
            parts = urlsplit(server if "://" in server else f"http://{server}")
            port = parts.port
        except ValueError:
            raise InvalidArgument.of("server", server, "an address with a port from 1 to 65535", hint=HINT) from None
        if parts.username is not None or parts.query or parts.fragment:
            # This part may be a secret, so it is not repeated.
            raise InvalidArgument(
                f"server has more than a host and a port (the host is {parts.hostname!r}), expected the address of a server",
                hint=f"{HINT}; a token is given as token=…, or in PENSTOCK_TOKEN",
            )
        is_bare = not parts.path.strip("/") and " " not in server
        if parts.scheme not in {"http", "https", "penstock", "penstocks"} or not parts.hostname or not is_bare or port == 0:
            raise InvalidArgument.of("server", server, "the address of a server", hint=HINT)
        return cls(parts.scheme, parts.hostname, port or (NATIVE_PORT if parts.scheme.startswith("penstock") else HTTP_PORT))

    @property
    def has_tls(self) -> bool:
        """Whether the port uses TLS."""
        return self.scheme in {"https", "penstocks"}

    @classmethod
    def parse_all(cls, server: object) -> list[Address]:
        """The addresses of one server or of several nodes."""
        return [cls.parse(one) for one in split_servers(server)]

    def __str__(self) -> str:
        host = f"[{self.host}]" if ":" in self.host else self.host
        return f"{self.scheme}://{host}:{self.port}"

    async def native(self, tls: ssl.SSLContext | None) -> NativePlace:
        """The place of the native protocol, requested each time: a restart or a new owner may have moved it.

        Raises ConnectionError if the address is not of a Penstock server.
        """
        if self.scheme.startswith("penstock"):
            return NativePlace(self.port, self.has_tls)
        answer = await self._get("/native", tls)
        status = _STATUS.match(answer)
        if status is None:
            raise ConnectionError(NOT_HTTP)
        if status[1] != b"200":
            raise ConnectionError(f"it answers {int(status[1])} to GET /native: is it a Penstock server with a native port?")
        try:
            place = json.loads(answer.partition(b"\r\n\r\n")[2])
            owner = place.get("owner")
            return NativePlace(
                int(place["port"]), bool(place["tls"]), int(place.get("epoch") or 0), None if owner is None else str(owner)
            )
        except (ValueError, KeyError, TypeError, AttributeError):
            raise ConnectionError("not a Penstock server: its GET /native returns no port") from None

    async def _get(self, path: str, tls: ssl.SSLContext | None) -> bytes:
        """GET a path. It is written for asyncio, so that it can be cancelled at any moment."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=tls if self.has_tls else None)
        try:
            host = f"[{self.host}]" if ":" in self.host else self.host
            # HTTP/1.0: the connection ends with the answer.
            writer.write(f"GET {path} HTTP/1.0\r\nHost: {host}:{self.port}\r\nConnection: close\r\n\r\n".encode())
            answer = b""
            while len(answer) < MAX_ANSWER and not _is_whole(answer):
                chunk = await reader.read(MAX_ANSWER)
                if not chunk:
                    break
                answer += chunk
            return answer
        finally:
            writer.transport.abort()


def _is_whole(answer: bytes) -> bool:
    head, end, body = answer.partition(b"\r\n\r\n")
    length = _LENGTH.search(head) if end else None
    return length is not None and len(body) >= int(length[1])


def text_of(error: BaseException) -> str:
    """Why a connection failed, as text for users."""
    if isinstance(error, PenstockError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it does not answer"
    # asyncio lists the addresses that it tried, which mean nothing to users of a name.
    numbers = [error.errno] if isinstance(error, OSError) and error.errno else [int(one) for one in _ERRNO.findall(str(error))]
    if numbers and numbers[-1] > 0 and not isinstance(error, ssl.SSLError):
        text = os.strerror(numbers[-1])
    else:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text if text[:2].isupper() else text[0].lower() + text[1:]


_ERRNO = re.compile(r"\[Errno (\d+)\]")
