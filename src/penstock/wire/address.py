"""Addresses of servers: what people write, and the native port that belongs to it."""

from __future__ import annotations

import asyncio
import json
import os
import re
import ssl
from dataclasses import dataclass
from urllib.parse import urlsplit

from penstock.errors import InvalidArgument, PenstockError

HTTP_PORT, NATIVE_PORT = 8085, 8087
MAX_ANSWER = 10_000
"""How long the answer to `GET /native` may be."""
HINT = "http://HOST:8085, https://HOST:8085, or penstock://HOST:8087 for the native port itself"

NOT_HTTP = "not a Penstock server: it does not speak HTTP"

_STATUS = re.compile(rb"HTTP/1\.[01] (\d{3})")
_LENGTH = re.compile(rb"\r\ncontent-length: *(\d+)", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Address:
    """Where a server is: its HTTP port (`http`, `https`), or its native one (`penstock`, `penstocks` with TLS)."""

    scheme: str
    host: str
    port: int

    @classmethod
    def parse(cls, server: object) -> Address:
        """An address as people write it; without a scheme it is HTTP's."""
        if not isinstance(server, str) or not server:
            raise InvalidArgument.of("server", server, "the address of a server", hint=HINT)
        try:
            parts = urlsplit(server if "://" in server else f"http://{server}")
            port = parts.port
        except ValueError:
            raise InvalidArgument.of("server", server, "an address with a port from 1 to 65535", hint=HINT) from None
        if parts.username is not None or parts.query or parts.fragment:
            # What stands there may be a secret: it is not repeated.
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
        """Whether what listens there wants TLS."""
        return self.scheme in {"https", "penstocks"}

    async def native(self, tls: ssl.SSLContext | None) -> tuple[int, bool]:
        """(port, whether it has TLS) of the native protocol, asked for again each time: a restart may have moved it.

        ConnectionError when what answers is no Penstock server.
        """
        if self.scheme.startswith("penstock"):
            return self.port, self.has_tls
        answer = await self._get("/native", tls)
        status = _STATUS.match(answer)
        if status is None:
            raise ConnectionError(NOT_HTTP)
        if status[1] != b"200":
            raise ConnectionError(f"it answers {int(status[1])} to GET /native: is it a Penstock server with a native port?")
        try:
            place = json.loads(answer.partition(b"\r\n\r\n")[2])
            return int(place["port"]), bool(place["tls"])
        except (ValueError, KeyError, TypeError):
            raise ConnectionError("not a Penstock server: its GET /native returns no port") from None

    async def _get(self, path: str, tls: ssl.SSLContext | None) -> bytes:
        """What a server answers. One question in a loop's own terms, so that it can be called off at any moment."""
        reader, writer = await asyncio.open_connection(self.host, self.port, ssl=tls if self.has_tls else None)
        try:
            host = f"[{self.host}]" if ":" in self.host else self.host
            # HTTP/1.0: the answer comes in one piece, and the connection ends with it.
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
    """Why a connection failed, for people."""
    if isinstance(error, PenstockError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it does not answer"
    # asyncio puts the addresses it tried into the text, which say nothing to whoever wrote a name.
    numbers = [error.errno] if isinstance(error, OSError) and error.errno else [int(one) for one in _ERRNO.findall(str(error))]
    if numbers and numbers[-1] > 0 and not isinstance(error, ssl.SSLError):
        text = os.strerror(numbers[-1])
    else:
        text = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return text if text[:2].isupper() else text[0].lower() + text[1:]


_ERRNO = re.compile(r"\[Errno (\d+)\]")
