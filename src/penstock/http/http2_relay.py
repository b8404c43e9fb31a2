"""Relays HTTP/2 connections of the HTTP port to the gRPC server of this process, over a Unix socket.

    client ── TCP, TLS ends here ── Connection ── sees the preface ──> Http2Relay ── Unix socket ── gRPC server

So one address serves REST and gRPC. The gRPC server sees a Unix socket as its peer; the socket of each relayed connection has a
name of its own, by which the relay finds the address of the client. See decision 0047.
"""

from __future__ import annotations

import asyncio
import logging
import os
import secrets
import socket
from collections.abc import Callable

from penstock.http.splice import FarEnd, NearEnd, begins_with

log = logging.getLogger("penstock.http")

PREFACE = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"
"""The first bytes of every HTTP/2 connection (RFC 9113, 3.4)."""
PROTOCOLS = ("http/1.1", "h2")
"""The protocols offered by ALPN. Clients that support both, as browsers do, get the first; gRPC supports only the second."""
RETRY_SECONDS, TRIES = 0.01, 500
"""Retries of connecting while the backlog of the gRPC server is full."""


class Http2Relay:
    """Relays connections to the gRPC server, and knows the client of each. Belongs to one event loop."""

    is_lasting = False

    def __init__(self) -> None:
        self._name: str | None = None
        self._clients: dict[str, NearEnd] = {}
        """By the name of the Unix socket, as gRPC reports its peer."""
        self._connecting: set[asyncio.Task[None]] = set()
        self._idle = asyncio.Event()
        self._idle.set()

    def open(self) -> str:
        """Choose the address that the gRPC server must listen on, and return it in gRPC's notation.

        The name is not a file, so a killed process leaves nothing behind. It is not a secret either: it gives no more access
        than the gRPC port.
        """
        self._name = f"penstock-{os.getpid()}-{secrets.token_hex(16)}"
        return f"unix-abstract:{self._name}"

    def close(self) -> None:
        """Note that the gRPC server has stopped. Safe to call twice."""
        self._name = None

    def wants(self, data: bytes) -> bool | None:
        return begins_with(PREFACE, data)

    def address_of(self, peer: str) -> str | None:
        """The address of the client behind a peer of the gRPC server; None for a client of the gRPC port itself."""
        client = self._clients.get(peer)
        if client is not None:
            return client.address
        return "unix" if peer.startswith("unix") else None  # another process of this machine, which bypassed the HTTP port

    def take(self, transport: asyncio.Transport, data: bytes, on_end: Callable[[], None]) -> None:
        """Relay a connection from which `data` was read so far; `on_end` is called once, when the connection has ended."""
        client = NearEnd(transport, on_end)
        transport.set_protocol(client)
        if self._name is None:
            transport.abort()
            return
        transport.pause_reading()
        connecting = asyncio.get_running_loop().create_task(self._connect(client, data, f"\0{self._name}"))
        self._connecting.add(connecting)
        connecting.add_done_callback(self._ended)

    async def stop(self, grace_seconds: float) -> None:
        """Wait for the gRPC server to end its connections, and cut the remaining ones after `grace_seconds`."""
        try:
            async with asyncio.timeout(grace_seconds):
                await self._idle.wait()
        except TimeoutError:
            for client in [*self._clients.values()]:
                client.transport.abort()

    async def _connect(self, client: NearEnd, data: bytes, path: str) -> None:
        upstream = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM | socket.SOCK_NONBLOCK)
        try:
            upstream.bind("")  # the kernel chooses a name
            await _connected(upstream, path)
            name = f"unix-abstract:{upstream.getsockname()[1:].decode()}"
            # Registered before the gRPC server can see a call of it.
            self._clients[name] = client
            self._idle.clear()
            client.on_gone = lambda: self._forget(name)
            server, _ = await asyncio.get_running_loop().create_unix_connection(lambda: FarEnd(client), sock=upstream)
        except BaseException:
            upstream.close()
            client.transport.abort()
            raise
        server.write(data)
        client.begin(server)

    def _ended(self, connecting: asyncio.Task[None]) -> None:
        self._connecting.discard(connecting)
        if not connecting.cancelled() and (error := connecting.exception()) is not None:
            log.warning("a connection could not be relayed to the gRPC server: %s", error)

    def _forget(self, name: str) -> None:
        self._clients.pop(name, None)
        if not self._clients:
            self._idle.set()


async def _connected(upstream: socket.socket, path: str) -> None:
    for _ in range(TRIES):
        try:
            upstream.connect(path)
        except BlockingIOError:
            await asyncio.sleep(RETRY_SECONDS)
        else:
            return
    raise TimeoutError("the gRPC server does not accept connections")
