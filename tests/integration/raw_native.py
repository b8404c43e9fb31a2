"""A client of the native protocol that says whatever a test wants, made of a socket and MessagePack alone.

It shares nothing with Penstock's own client and encoders, so a mistake in those shows.
"""

from __future__ import annotations

import socket
import ssl
from typing import Any, Self

import msgspec

HELLO, CALL, PUBLISH, ENQUEUE, OPEN, SETTLE, ADJUST, CLOSE, PING = range(9)
DONE, REFUSED, DELIVERED, ENDED, LEAVING = range(5)
PATIENCE = 30.0

pack = msgspec.msgpack.encode


def frame(*items: object) -> bytes:
    """An array as a frame."""
    return framed(pack(items))


def framed(body: bytes) -> bytes:
    """A body as a frame."""
    return len(body).to_bytes(4, "little") + body


class RawClient:
    """One connection. `greet` says Hello; `closed` tells whether the server has ended it."""

    def __init__(self, port: int, tls: ssl.SSLContext | None = None) -> None:
        plain = socket.create_connection(("127.0.0.1", port), PATIENCE)
        self.socket = plain if tls is None else tls.wrap_socket(plain, server_hostname="127.0.0.1")
        self._buffer = b""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def greet(self, token: str | None = None, project: str | None = None) -> Any:
        """Say Hello; returns the answer."""
        return self.ask(HELLO, 1, 1, token, project)

    def send(self, *items: object) -> None:
        """Send a frame."""
        self.socket.sendall(frame(*items))

    def ask(self, *items: object) -> Any:
        """Send a frame and return the next answer."""
        self.send(*items)
        return self.read()

    def call(self, operation: str, **arguments: object) -> Any:
        """Have an operation done; returns the answer."""
        return self.ask(CALL, 7, operation, arguments)

    def read(self) -> Any:
        """The next answer; None when the server has closed the connection."""
        header = self._take(4)
        body = self._take(int.from_bytes(header, "little")) if header is not None else None
        return msgspec.msgpack.decode(body) if body is not None else None

    def read_until(self, kind: int) -> Any:
        """The next answer of a kind; the others are forgotten."""
        while (answer := self.read()) is not None:
            if answer[0] == kind:
                return answer
        raise AssertionError(f"the server closed the connection before an answer of kind {kind}")

    def is_answered(self) -> bool:
        """Whether a Ping gets its answer, whatever else comes before it."""
        self.send(PING, 987_654)
        while (answer := self.read()) is not None:
            if answer == [DONE, 987_654, None]:
                return True
        return False

    def _take(self, size: int) -> bytes | None:
        while len(self._buffer) < size:
            try:
                data = self.socket.recv(65_536)
            except ConnectionError:
                data = b""
            if not data:
                return None
            self._buffer += data
        taken, self._buffer = self._buffer[:size], self._buffer[size:]
        return taken
