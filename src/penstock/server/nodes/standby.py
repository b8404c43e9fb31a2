"""A node that does not own the log: it listens on every port, relays to the owner, and answers requests about itself."""

from __future__ import annotations

import asyncio
import json
import ssl
from collections.abc import Callable, Iterable

from penstock.errors import Unavailable
from penstock.http.authentication import Gate
from penstock.http.limits import HttpLimits
from penstock.http.port import HttpServer
from penstock.http.routes import Route, path_of
from penstock.http.traffic import Traffic
from penstock.native.port import NativeEndpoint, discovery_route
from penstock.server.nodes.relay import PREFACE, Owner, Relay
from penstock.wire.frames import VERSION

BACKLOG = 1024
MAX_HEAD_LINE = 16 * 1024
NO_OWNER = "no node owns the log now"


class Standby:
    """Start once; stop is always safe. `routes` are those that it serves itself."""

    is_lasting = True

    def __init__(
        self,
        relay: Relay,
        owner: Callable[[], Owner | None],
        routes: Iterable[Route],
        *,
        gate: Gate,
        limits: HttpLimits,
        hosts: Iterable[str],
    ) -> None:
        self._relay = relay
        self._owner = owner
        own = [*routes, discovery_route(self._native_place)]
        self._paths = frozenset(route.path for route in own)
        self.traffic = Traffic()
        self._limits = limits
        self._http = HttpServer(own, gate=gate, limits=limits, traffic=self.traffic, hosts=[*hosts], takeovers=[self])
        self._listeners: list[asyncio.Server] = []
        self._native: tuple[int, bool] | None = None

    # ── the ports ────────────────────────────────────────────────────────────────────────────────────────────────────────

    async def start_http(self, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        return await self._http.start(host, port, tls)

    async def start(self, name: str, host: str, port: int, tls: ssl.SSLContext | None) -> int:
        """Relay the connections to one more port; returns the port."""
        listener = await asyncio.get_running_loop().create_server(
            lambda: _Arriving(self, "http" if name == "grpc" else name), host, port, ssl=tls, backlog=BACKLOG
        )
        self._listeners.append(listener)
        bound: int = listener.sockets[0].getsockname()[1]
        if name == "native":
            self._native = bound, tls is not None
        return bound

    async def stop(self, grace_seconds: float = 0.0) -> None:
        """Stop listening, and end relayed connections."""
        listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener.close()
        self._relay.cut()
        await self._http.stop(grace_seconds)

    # ── connections ──────────────────────────────────────────────────────────────────────────────────────────────────────

    def wants(self, data: bytes) -> bool | None:
        """Whether a connection to the HTTP port is for the owner: all but those that start with a request about this node."""
        line, end, _ = data.partition(b"\n")
        words = line.split(b" ")
        if len(words) > 1 and (end or len(words) > 2):
            return path_of(words[1].decode("latin-1")) not in self._paths
        return True if end or len(line) > MAX_HEAD_LINE else None

    def take(self, transport: asyncio.Transport, data: bytes, on_end: Callable[[], None]) -> None:
        if data.startswith(PREFACE):  # another node believes that this one is the owner
            transport.abort()
            on_end()
            return
        is_http1 = not data.startswith(b"PRI ")
        self._relay.take(transport, "http", data, refusal=_unavailable() if is_http1 else b"", on_end=on_end)

    def arrived(self, transport: asyncio.Transport, port: str) -> None:
        """Relay a connection to a port of another protocol."""
        if self.traffic.open >= self._limits.max_connections:
            self.traffic.refused += 1
            transport.abort()
            return
        self.traffic.open += 1
        self._relay.take(transport, port, on_end=self._ended)

    def _ended(self) -> None:
        self.traffic.open -= 1

    def _native_place(self) -> NativeEndpoint | None:
        if self._native is None:
            return None
        port, has_tls = self._native
        owner = self._owner()
        if owner is None:
            raise Unavailable(NO_OWNER, hint="try again in a moment")
        return NativeEndpoint(port, VERSION, has_tls, owner.epoch, owner.address)


class _Arriving(asyncio.Protocol):
    """A new connection to a port other than that of HTTP."""

    def __init__(self, standby: Standby, port: str) -> None:
        self._standby = standby
        self._port = port

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        assert isinstance(transport, asyncio.Transport) or hasattr(transport, "write")
        self._standby.arrived(transport, self._port)  # type: ignore[arg-type]  # uvloop's are no subclass


def _unavailable() -> bytes:
    error = {"code": 503, "message": NO_OWNER, "status": "UNAVAILABLE", "reason": "unavailable", "hint": "try again in a moment"}
    body = json.dumps({"error": error}).encode()
    head = "HTTP/1.1 503 Service Unavailable\r\nContent-Type: application/json\r\nRetry-After: 1\r\nConnection: close\r\n"
    return f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body
