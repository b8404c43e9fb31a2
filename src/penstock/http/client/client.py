"""The router's HTTP client: targets, origins and their connections. It implements `penstock.http.client.transport`."""

from __future__ import annotations

import asyncio
import ssl
from typing import TYPE_CHECKING, Final

from penstock.errors import InvalidArgument
from penstock.http.client.call import Deadlines, HttpCall
from penstock.http.client.dial import AddressPolicy, Dialer, OpeningConnection
from penstock.http.client.http1 import Http1Connection
from penstock.http.client.origin import SWEEPS_KEPT, Origin, OriginStats
from penstock.http.client.target import Target, parse_target
from penstock.http.client.transport import Done, Failure, FailureKind, TransportOptions

if TYPE_CHECKING:
    from penstock.http.client.http2 import Http2Connection

IDLE_TIMEOUT: Final = 60.0
MOST_KEPT: Final = 1_000
"""Connections to all targets. While there are more, idle ones are closed. The pools limit those with calls."""
KNOWN_TARGETS: Final = 4096
KEPT_LENGTH: Final = 1024
"""The longest URL in the cache: longer ones are rare, or an attempt to fill the memory."""


class HttpTransport:
    """Sends POST requests over HTTP/1.1 and HTTP/2. Create it inside the event loop that it belongs to."""

    def __init__(
        self,
        options: TransportOptions,
        reach: AddressPolicy,
        *,
        tls: ssl.SSLContext | None = None,
        idle_timeout: float = IDLE_TIMEOUT,
        most_kept: int = MOST_KEPT,
    ) -> None:
        self._options = options
        self._reach = reach
        self._tls = tls
        self._context_made: ssl.SSLContext | None = None
        self._loop = asyncio.get_running_loop()
        self._deadlines = Deadlines(self._loop)
        self._begin = self._deadlines.begin
        self._targets: dict[str, tuple[Target, Origin]] = {}
        self._origins: dict[str, Origin] = {}
        self._pause = idle_timeout / SWEEPS_KEPT
        self._sweeper: asyncio.TimerHandle | None = None
        self._most_kept = most_kept
        self._opened = 0
        """Connections opened since all were last counted."""
        self._is_closed = False

    def post(self, url: str, headers: bytes, body: bytes, timeout: float, done: Done) -> HttpCall:
        """Send a request; `done` is called once, from the loop, never before this returns."""
        known = self._targets.get(url)
        if known is None:
            if self._is_closed:
                return self._refuse(CLOSED, done)
            try:
                known = self._know(url)
            except InvalidArgument as error:
                return self._refuse(Failure(FailureKind.MALFORMED, str(error)), done)
        target, origin = known
        call = self._begin(target, headers, body, timeout, done)
        origin.submit(call)
        return call

    def stats(self) -> list[OriginStats]:
        """The numbers of connections and calls of each origin."""
        return [origin.stats() for origin in self._origins.values()]

    async def close(self) -> None:
        """End all calls under way with `done(Failure(CANCELLED))`, and close every connection."""
        self._is_closed = True
        self._targets.clear()  # so that `post` checks `_is_closed`
        if self._sweeper is not None:
            self._sweeper.cancel()
        self._deadlines.close(CLOSED)
        origins, self._origins = list(self._origins.values()), {}
        await asyncio.gather(*(origin.close() for origin in origins))

    def _refuse(self, failure: Failure, done: Done) -> HttpCall:
        """A call that fails in the next turn of the loop."""
        call = HttpCall(NO_TARGET, b"", b"", done, {})
        call.lane[call] = 0.0
        self._loop.call_soon(call.finish, failure)
        return call

    def _know(self, url: str) -> tuple[Target, Origin]:
        """The target of a URL and its origin, cached because most messages go to few targets."""
        target = parse_target(url)
        origin = self._origins.get(target.origin)
        if origin is None:
            origin = self._origins[target.origin] = self._new_origin(target)
            if self._sweeper is None:
                self._sweeper = self._loop.call_later(self._pause, self._sweep)
        if len(self._targets) >= KNOWN_TARGETS:
            self._targets.clear()
        if len(url) <= KEPT_LENGTH:
            self._targets[url] = target, origin
        return target, origin

    def _new_origin(self, target: Target) -> Origin:
        options = self._options
        tls = self._context() if target.is_secure else None
        is_open = target.is_secure and options.http_version == "HTTP_2"
        dialer = Dialer(target.host, target.port, reach=self._reach, timeout=options.connect_timeout, tls=tls)
        return Origin(
            target.origin,
            dialer,
            limit=options.per_target,
            protocol=self._negotiated if is_open else self._plain,
            is_shared=None if is_open else False,
            grew=self._grew,
        )

    def _plain(self, origin: Origin) -> OpeningConnection:
        return Http1Connection(origin, self._options.body_limit)

    def _negotiated(self, origin: Origin) -> OpeningConnection:
        from penstock.http.client.http2 import Http2Connection  # noqa: PLC0415  # a quarter of the start time, only needed for calls over TLS

        return _Negotiated(origin, self._options.body_limit, Http2Connection)

    def _context(self) -> ssl.SSLContext:
        if self._context_made is None:
            self._context_made = self._tls or ssl.create_default_context()
            self._context_made.set_alpn_protocols(["h2", "http/1.1"] if self._options.http_version == "HTTP_2" else ["http/1.1"])
        return self._context_made

    def _grew(self) -> None:
        """A connection was opened. From time to time all are counted, because messages may name any number of targets."""
        self._opened += 1
        if self._opened * 4 < self._most_kept:
            return
        self._opened = 0
        if sum(origin.open for origin in self._origins.values()) > self._most_kept:
            for origin in self._origins.values():
                origin.close_idle()

    def _sweep(self) -> None:
        """Close connections that are idle for too long, and remove origins without connections and calls."""
        gone = [name for name, origin in self._origins.items() if not origin.sweep()]
        for name in gone:
            del self._origins[name]
        if gone:
            self._targets.clear()
        self._sweeper = self._loop.call_later(self._pause, self._sweep) if self._origins else None


class _Negotiated(OpeningConnection):
    """The protocol until TLS is set up; then the one that ALPN selected replaces it."""

    _chosen: Http1Connection | Http2Connection

    def __init__(self, origin: Origin, body_limit: int, http2: type[Http2Connection]) -> None:
        self._origin = origin
        self._body_limit = body_limit
        self._http2 = http2

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]  # of TLS it is one that writes
        secure = transport.get_extra_info("ssl_object")
        made = self._http2 if secure.selected_alpn_protocol() == "h2" else Http1Connection
        self._chosen = made(self._origin, self._body_limit)
        transport.set_protocol(self._chosen)
        self._chosen.connection_made(transport)

    async def ready(self) -> None:
        await self._chosen.ready()

    def discard(self) -> None:
        self._chosen.discard()


CLOSED: Final = Failure(FailureKind.CANCELLED, "the router stops")
NO_TARGET: Final = Target("", "", 0, "", "", "", b"")
