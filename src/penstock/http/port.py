"""The HTTP port: listens, limits connections and stops cleanly."""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable, Collection, Iterable, Sequence

from aiohttp import web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.http_parser import RawRequestMessage
from aiohttp.streams import StreamReader

from penstock.http.authentication import Gate
from penstock.http.bodies import BodyBudget
from penstock.http.connection import Connection, RefusedConnection, SlowConnectionWatch, Takeover
from penstock.http.http2_relay import Http2Relay
from penstock.http.limits import HttpLimits
from penstock.http.request import Request
from penstock.http.routes import Route, RouteTable
from penstock.http.shell import Shell
from penstock.http.traffic import Traffic

log = logging.getLogger("penstock.http")

BACKLOG = 1024
CANCEL_SECONDS = 0.25
"""How long cancelled requests have to end, after `grace_seconds`."""


class HttpServer:
    """Serves routes on one port: HTTP, and WebSocket where a handler upgrades. Start it once; `stop` is always safe.

    Without a `gate` every caller is let in. `origins` are the web origins whose pages may call, such as `https://app.example.com`,
    or `*`. `hosts` are the names under which the server may be called, beside addresses and localhost; they are checked if no
    token is needed. Connections that speak HTTP/2 go to `relay`, those with other protocols to `takeovers`.
    """

    def __init__(
        self,
        routes: Iterable[Route] | RouteTable,
        *,
        gate: Gate | None = None,
        limits: HttpLimits | None = None,
        origins: Collection[str] = (),
        hosts: Collection[str] = (),
        traffic: Traffic | None = None,
        relay: Http2Relay | None = None,
        takeovers: Sequence[Takeover] = (),
    ) -> None:
        self.table = routes if isinstance(routes, RouteTable) else RouteTable(routes)
        self.limits = limits or HttpLimits()
        self.traffic = traffic or Traffic()
        self._relay = relay
        self._takeovers = (*takeovers, *([] if relay is None else [relay]))
        self._shell = Shell(self.table, gate=gate, limits=self.limits, traffic=self.traffic, origins=origins, hosts=hosts)
        self._server: web.Server | None = None
        self._listener: asyncio.Server | None = None
        self._watch: SlowConnectionWatch | None = None
        self._stopped = asyncio.Event()
        self._make: Callable[[], asyncio.Protocol]

    @property
    def stopping(self) -> asyncio.Event:
        """Set when `stop` begins."""
        return self._shell.stopping

    @property
    def bodies(self) -> BodyBudget:
        return self._shell.bodies

    def protocol(self) -> asyncio.Protocol:
        """A protocol that serves one more connection, accepted elsewhere. Call it after `start`."""
        return self._make()

    async def start(self, host: str, port: int, ssl_context: ssl.SSLContext | None = None) -> int:
        """Listen, and return the port: the given one, or a free one for 0."""
        loop, limits = asyncio.get_running_loop(), self.limits
        server = web.Server(self._shell.handle, request_factory=self._request, handler_cancellation=True, loop=loop)

        def make() -> asyncio.Protocol:
            if self.traffic.open >= limits.max_connections:
                self.traffic.refused += 1
                return RefusedConnection()
            self.traffic.accepted += 1
            return Connection(
                server,
                loop=loop,
                traffic=self.traffic,
                takeovers=self._takeovers,
                keepalive_timeout=limits.idle_seconds,
                max_line_size=limits.max_line_bytes,
                max_field_size=limits.max_field_bytes,
                max_headers=limits.max_fields,
                lingering_time=min(limits.head_seconds / 2, 5.0),
                access_log=None,
                auto_decompress=False,  # it would decompress on arrival, before the caller is authenticated
                logger=log,
            )

        self._listener = await loop.create_server(
            make,
            host,
            port,
            ssl=ssl_context,
            backlog=BACKLOG,
            ssl_handshake_timeout=limits.head_seconds if ssl_context is not None else None,
        )
        self._server, self._make = server, make
        self._watch = SlowConnectionWatch(server, limits, self.traffic)
        bound: int = self._listener.sockets[0].getsockname()[1]
        return bound

    async def stop(self, grace_seconds: float = 10.0) -> None:
        """Accept nothing more, close WebSockets with 1001, wait up to `grace_seconds` for running requests, cancel the rest."""
        server, self._server = self._server, None
        if server is None or self._listener is None or self._watch is None:
            if self.stopping.is_set():
                await self._stopped.wait()  # another call of `stop` is running
            return
        self.stopping.set()
        self._listener.close()
        for connection in server.connections:
            if isinstance(connection, Connection) and connection.request is None and connection.transport is not None:
                connection.transport.close()
        try:
            async with asyncio.timeout(grace_seconds):
                await asyncio.gather(*(_send_going_away(socket) for socket in self._shell.websockets))
                await self._shell.drain()
        except TimeoutError:
            log.warning("%d requests still run after %g s and are cancelled", self.traffic.running, grace_seconds)
        if self._relay is not None:
            await self._relay.stop(grace_seconds)
        await server.shutdown(CANCEL_SECONDS)
        self._watch.stop()
        await asyncio.sleep(0)  # transports close in the next turn of the loop
        self._stopped.set()

    def _request(
        self,
        message: RawRequestMessage,
        payload: StreamReader,
        protocol: web.RequestHandler,
        writer: AbstractStreamWriter,
        task: asyncio.Task[None],
    ) -> Request:
        request = Request(
            message, payload, protocol, writer, task, asyncio.get_running_loop(), client_max_size=self.limits.max_request_bytes
        )
        request.server_context = self._shell
        return request


async def _send_going_away(socket: web.WebSocketResponse) -> None:
    await socket.close(code=1001, message=b"the server is stopping")
