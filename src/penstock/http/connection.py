"""One connection, and the watch that cuts slow connections.

Instead of timers for every request, one round a second checks every connection for a head that does not end, a body that is too
slow, and an answer that is not read. So a request costs two assignments here, and a slow client stays at most a second too long.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Sequence
from typing import Any, Protocol

from aiohttp import web

from penstock.http.limits import HttpLimits
from penstock.http.refusal import GOOGLE_ERRORS, Refusal, code_location, refusal_of
from penstock.http.request import SERVER_NAME, Request
from penstock.http.traffic import Traffic

log = logging.getLogger("penstock.http")

ROUND_SECONDS = 1.0


class Takeover(Protocol):
    """Serves connections of this port that do not speak HTTP/1.1."""

    is_lasting: bool
    """Whether it may also take over later, when another request begins."""

    def wants(self, data: bytes) -> bool | None:
        """Whether it serves a connection that begins with `data`; None while that is not known."""

    def take(self, transport: asyncio.Transport, data: bytes, on_end: Callable[[], None]) -> None:
        """Serve a connection from which `data` was read so far; `on_end` is called once, when the connection has ended."""


class Connection(web.RequestHandler):
    """aiohttp's connection, with the state that the watch needs."""

    __slots__ = (
        "is_heard",
        "is_minded",
        "lasting",
        "opening",
        "request",
        "since",
        "stuck_bytes",
        "stuck_since",
        "takeovers",
        "traffic",
    )

    def __init__(
        self,
        server: web.Server,
        *,
        loop: asyncio.AbstractEventLoop,
        traffic: Traffic,
        takeovers: Sequence[Takeover] = (),
        **options: Any,
    ) -> None:
        super().__init__(server, loop=loop, **options)
        self.traffic = traffic
        self.takeovers = takeovers
        self.lasting = [one for one in takeovers if one.is_lasting]
        """The takeovers that are still possible when another request begins."""
        self.opening = b""
        """The data read while a takeover is still possible."""
        self.request: Request | None = None
        """The request that runs; None between requests."""
        self.since: float | None = loop.time()
        """When the request, or the head that is arriving, began; None while nothing arrives."""
        self.stuck_bytes = 0
        self.stuck_since = 0.0
        self.is_minded = False
        """Whether the handler itself watches for a client that does not read, so that the watch need not."""
        self.is_heard = False
        """Set when data arrives. A handler that sets `is_minded` reads it and resets it."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.traffic.open += 1
        super().connection_made(transport)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.traffic.open -= 1
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        """Record when a head begins, offer the connection to the takeovers, or pass the data on."""
        self.is_heard = True
        if self.since is None:
            self.since = self._loop.time()
            self.takeovers = self.lasting
        if self.takeovers:
            data = self.opening + data
            wishes = [one.wants(data) for one in self.takeovers]
            if True in wishes:
                self._hand_over(self.takeovers[wishes.index(True)], data)
                return
            if None in wishes:
                self.opening = data
                return
            self.takeovers, self.opening = (), b""
        super().data_received(data)

    def _hand_over(self, takeover: Takeover, data: bytes) -> None:
        """Pass the connection to a takeover. It still counts as open until it ends."""
        transport, traffic = self.transport, self.traffic
        assert transport is not None, "data arrived on it"
        self.transport = None  # aiohttp would close it
        super().connection_lost(None)

        def end() -> None:
            traffic.open -= 1

        takeover.take(transport, data, end)

    def begin(self, request: Request) -> None:
        self.request = request
        self.since = self._loop.time()

    def end(self) -> None:
        self.request = None
        self.since = None

    def handle_error(
        self, request: web.BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
    ) -> web.StreamResponse:
        """Answer a request that is not HTTP, or whose head is too large. Its content is neither shown nor logged."""
        if request.writer.output_size > 0:
            raise ConnectionError("an answer has started already")
        if status >= 500 and isinstance(exc, Exception):
            self.log_exception("a request failed outside its handler", exc_info=exc)
            refusal = refusal_of(exc)
        elif type(exc).__name__ == "LineTooLong":
            refusal = Refusal(431, "the request line or a header is too long", reason="head_too_large", word="INVALID_ARGUMENT")
        else:
            log.debug("%s sent a request that cannot be read: %s", request.remote, type(exc).__name__)
            refusal = Refusal(status, "the request is not well-formed HTTP/1.1", reason="malformed_request")
        response = GOOGLE_ERRORS.render(refusal)
        response.headers["Server"] = SERVER_NAME
        response.force_close()
        return response

    def log_exception(self, *args: Any, **kw: Any) -> None:
        """Log an error that aiohttp could not handle as the shell logs errors: with the place in the code, without its text."""
        error = kw.get("exc_info")
        if isinstance(error, web.RequestPayloadError):
            log.debug("a malformed body has ended")
        elif isinstance(error, BaseException):
            log.error("a connection failed with %s at\n%s", type(error).__name__, code_location(error))
        else:
            log.error(*args)


class RefusedConnection(asyncio.Protocol):
    """A connection beyond the limit. It is closed before a byte is read."""

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        if isinstance(transport, asyncio.Transport):
            transport.abort()
        else:
            transport.close()


class SlowConnectionWatch:
    """Cuts connections that are too slow, in rounds."""

    def __init__(self, server: web.Server, limits: HttpLimits, traffic: Traffic) -> None:
        self._server = server
        self._limits = limits
        self._traffic = traffic
        self._loop = asyncio.get_running_loop()
        shortest = min(limits.head_seconds, limits.body_seconds, limits.body_stall_seconds, limits.write_seconds)
        self._round_seconds = min(ROUND_SECONDS, shortest / 4)
        self._timer = self._loop.call_later(self._round_seconds, self._round)

    def stop(self) -> None:
        self._timer.cancel()

    def _round(self) -> None:
        now = self._loop.time()
        for connection in self._server.connections:
            transport = connection.transport
            if isinstance(connection, Connection) and transport is not None:
                fault = self._fault(connection, transport, now)
                if fault is not None:
                    self._traffic.cut[fault] += 1
                    log.debug("cut a connection: its %s was too slow", fault)
                    transport.abort()
        self._timer = self._loop.call_later(self._round_seconds, self._round)

    def _fault(self, connection: Connection, transport: asyncio.Transport, now: float) -> str | None:
        limits, request, since = self._limits, connection.request, connection.since
        if since is not None and now - since > limits.head_seconds and request is None:
            return "head"
        if (
            request is not None
            and since is not None
            and not request.content.is_eof()
            and now - since > limits.body_seconds + request.content.total_bytes / limits.min_body_rate
        ):
            return "body"
        if request is not None and request.share is not None and not request.content.is_eof() and request.share.is_stalled(now):
            return "body"
        if connection.is_minded:
            return None
        waiting = transport.get_write_buffer_size()
        if waiting == 0 or waiting < connection.stuck_bytes or not connection.stuck_bytes:
            connection.stuck_bytes, connection.stuck_since = waiting, now
        elif now - connection.stuck_since > limits.write_seconds:
            return "write"
        return None
