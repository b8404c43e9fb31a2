"""The port of the native protocol: connections, their limits, and their end."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import Callable, Iterator
from dataclasses import dataclass

import msgspec
from aiohttp import web

from penstock.api.service import Service
from penstock.errors import FailedPrecondition
from penstock.http.authentication import Gate
from penstock.http.monitoring.samples import Metric, Sample
from penstock.http.request import Request, json_response
from penstock.http.routes import Operation, Reply, Route
from penstock.native.connection import Connection
from penstock.wire.frames import VERSION

BACKLOG = 1024
"""Connections that may wait to be accepted."""

_CONNECTIONS = Metric("penstock_native_connections", "gauge", "Open connections of the native protocol.")
_STREAMS = Metric("penstock_native_streams", "gauge", "Open streams of the native protocol.")
_REQUESTS = Metric("penstock_native_requests_total", "counter", "Requests of the native protocol.")


@dataclass(frozen=True, slots=True)
class NativeLimits:
    """The limits of one client."""

    max_frame_bytes: int = 16 * 1024 * 1024
    max_connections: int = 10_000
    idle_seconds: float = 120.0
    """How long a client may be silent: Penstock's client pings four times as often."""
    hello_seconds: float = 10.0
    """How long a client may take to authenticate."""
    max_running: int = 256
    """Publishes of one connection that run concurrently, or a sixteenth of that many operations; more wait in its socket."""
    max_waits: int = 200
    """Requests of one connection that may wait for a message."""
    max_streams: int = 1_000
    """Streams that one connection may have open."""


class NativeServer:
    """The server of the native protocol on one port. Start it once; stopping is always safe."""

    def __init__(self, service: Service, *, gate: Gate | None = None, limits: NativeLimits | None = None, epoch: int = 0) -> None:
        self.service = service
        self._epoch = epoch
        self.gate = gate
        self.limits = limits or NativeLimits()
        self.connections: set[Connection] = set()
        self.requests = 0
        self._listener: asyncio.Server | None = None
        self._place: NativeEndpoint | None = None

    def protocol(self) -> asyncio.Protocol:
        """The protocol for one more connection."""
        return Connection(self)

    async def start(self, host: str, port: int, tls: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port: the given one, or a free one for 0."""
        loop = asyncio.get_running_loop()
        self._listener = await loop.create_server(
            self.protocol,
            host,
            port,
            ssl=tls,
            ssl_handshake_timeout=self.limits.hello_seconds if tls is not None else None,
            backlog=BACKLOG,
        )
        bound: int = self._listener.sockets[0].getsockname()[1]
        self._place = NativeEndpoint(bound, VERSION, tls is not None, self._epoch)
        return bound

    async def stop(self, grace_seconds: float = 5.0) -> None:
        """Accept nothing more, end the streams, answer running requests, close."""
        listener, self._listener = self._listener, None
        if listener is not None:
            listener.close()
        connections = [*self.connections]
        running = [task for connection in connections for task in connection.leave()]
        if running:
            _, late = await asyncio.wait(running, timeout=grace_seconds)
            for task in late:
                task.cancel()
        for connection in connections:
            connection.close()
        await asyncio.sleep(0)  # transports are closed in the next iteration of the loop

    def routes(self) -> list[Route]:
        """The route by which clients of the HTTP port find this port."""
        return [discovery_route(lambda: self._place)]

    def collect(self) -> Iterator[Sample]:
        """The metrics of the API, for `/metrics`."""
        yield Sample(_CONNECTIONS, (), len(self.connections))
        yield Sample(_STREAMS, (), len(self.service.feeds))
        yield Sample(_REQUESTS, (), self.requests)


class NativeEndpoint(msgspec.Struct, omit_defaults=True):
    """The native port, on the same host; for a node, also which node owns the log, and the epoch."""

    port: int
    version: int
    tls: bool
    epoch: int = 0
    owner: str | None = None


def discovery_route(place: Callable[[], NativeEndpoint | None]) -> Route:
    """The route; `place` is None if the port is closed."""

    async def native(_: Request) -> web.StreamResponse:
        found = place()
        if found is None:
            raise FailedPrecondition("the native port is closed", hint="start the server with --native-port")
        return json_response(found)

    operation = Operation(
        "Where is the native port",
        "Penstock's own clients ask before they connect.",
        ("monitoring",),
        replies={200: Reply("The port, on this host.", NativeEndpoint)},
    )
    return Route("GET", "/native", native, operation, is_open=True)
