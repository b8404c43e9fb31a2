"""An origin: the connections to one scheme, host and port. Calls wait here, in order, until a connection has room.

    submit ──> a connection with room, the most recently used first ──> release
       └─────> waiting, while another connection is opened, if the limit allows

A connection is in `free` while it can take a call. An HTTP/1.1 connection takes one call, an HTTP/2 connection many.
"""

from __future__ import annotations

import asyncio
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, Protocol

import msgspec

from penstock.http.client.call import HttpCall
from penstock.http.client.dial import ConnectFailed, Dialer, OpeningConnection
from penstock.http.client.transport import Failure, FailureKind

MOST_SHARED: Final = 8
"""HTTP/2 connections to one origin."""
FEW_STREAMS: Final = 100
"""Calls on an HTTP/2 connection before another is opened; more only if `MOST_SHARED` connections would not be enough."""
SWEEPS_KEPT: Final = 3


class Connection(Protocol):
    """The interface between an origin and its connections."""

    is_free: bool
    """Whether it is in the origin's `free`."""
    idle_since: int
    """The number of the last sweep before it was last used."""

    @property
    def load(self) -> int:
        """The number of its calls."""

    def start(self, call: HttpCall) -> bool:
        """Send a request. Returns whether the connection is full now."""

    def drop(self, call: HttpCall) -> None:
        """Drop a call that ended before its answer arrived."""

    def discard(self) -> None:
        """Close it. It must have no call."""

    def check(self) -> None:
        """Check that it is alive, as far as the protocol allows. Called regularly."""


class OriginStats(msgspec.Struct, frozen=True):
    """The current numbers of connections and calls of an origin."""

    origin: str
    open: int
    connecting: int
    in_flight: int
    waiting: int


class Origin:
    """The connections to one origin, and the calls that wait for them."""

    def __init__(
        self,
        name: str,
        dialer: Dialer,
        *,
        limit: int,
        protocol: Callable[[Origin], OpeningConnection],
        is_shared: bool | None,
        grew: Callable[[], None],
    ) -> None:
        self.name = name
        self._dialer = dialer
        self._limit = limit
        self._protocol = protocol
        self._grew = grew
        """Called for each connection that is opened."""
        self._is_shared = is_shared
        """Whether the target speaks HTTP/2; None until the first connection is made."""
        self.shared_limit = max(FEW_STREAMS, -(-limit // MOST_SHARED))
        self._free: list[Connection] = []
        self._open: set[Connection] = set()
        self._connecting: set[asyncio.Task[None]] = set()
        self._waiting: OrderedDict[HttpCall, None] = OrderedDict()
        self._busy = 0
        self._sweep = 0

    def submit(self, call: HttpCall) -> None:
        """Send a request, or queue it."""
        free = self._free
        if free and self._busy < self._limit:
            self._busy += 1
            call.place = connection = free[-1]
            if connection.start(call):
                free.pop()
                connection.is_free = False
        else:
            call.place = self
            self._waiting[call] = None
            self._grow()

    def release(self, connection: Connection) -> None:
        """A call of this connection ended, and it can take another."""
        self._busy -= 1
        connection.idle_since = self._sweep
        if not connection.is_free:
            connection.is_free = True
            self._free.append(connection)
        if self._waiting:
            self._serve()

    def left(self) -> None:
        """A call ended on a connection that can take no other."""
        self._busy -= 1
        if self._waiting:
            self._serve()

    def opened(self, connection: Connection, *, is_shared: bool) -> None:
        """A connection is made. It calls `offer` when it can take calls."""
        self._is_shared = is_shared
        self._open.add(connection)
        connection.idle_since = self._sweep
        self._grew()

    def offer(self, connection: Connection) -> None:
        self._busy += 1  # `release` subtracts it
        self.release(connection)

    def retire(self, connection: Connection) -> None:
        """This connection takes no more calls; those it has continue."""
        if connection.is_free:
            connection.is_free = False
            self._free.remove(connection)

    def lost(self, connection: Connection, calls: int) -> None:
        """This connection is gone; this many of its calls ended with it."""
        self._busy -= calls
        self.retire(connection)
        self._open.discard(connection)
        if self._waiting:
            self._serve()
            self._grow()

    def again(self, call: HttpCall) -> None:
        """Send a call again, before all others: the target has not processed it."""
        call.is_replaced = True
        call.place = self
        self._waiting[call] = None
        self._waiting.move_to_end(call, last=False)
        self._serve()
        self._grow()

    @property
    def open(self) -> int:
        return len(self._open)

    def close_idle(self) -> None:
        for connection in [each for each in self._free if not each.load]:
            connection.discard()

    def drop(self, call: HttpCall) -> None:
        self._waiting.pop(call, None)

    def sweep(self) -> bool:
        """Close connections that were idle for several sweeps. Returns whether any connections or calls remain."""
        self._sweep += 1
        for connection in list(self._open):
            # Also one that is neither busy nor free: its target takes no calls.
            if not connection.load and connection.idle_since < self._sweep - SWEEPS_KEPT:
                connection.discard()
            else:
                connection.check()
        return bool(self._open or self._connecting or self._waiting)

    async def close(self) -> None:
        """Close everything. No call may be under way any more."""
        for connection in list(self._open):
            connection.discard()
        for task in self._connecting:
            task.cancel()
        await asyncio.gather(*self._connecting, return_exceptions=True)
        await self._dialer.close()

    def stats(self) -> OriginStats:
        return OriginStats(self.name, len(self._open), len(self._connecting), self._busy, len(self._waiting))

    def _serve(self) -> None:
        """Give waiting calls to connections that have room."""
        while self._waiting and self._free and self._busy < self._limit:
            call, _ = self._waiting.popitem(last=False)
            self.submit(call)

    def _grow(self) -> None:
        """Open as many connections as the waiting calls need and the limits allow."""
        while self._connects_more():
            task = asyncio.create_task(self._connect())
            self._connecting.add(task)

    def _connects_more(self) -> bool:
        if self._is_shared is False:
            wanted, most = len(self._waiting), self._limit
        else:
            # Until the first connection has shown the protocol, more connections could be too many.
            wanted, most = min(len(self._waiting), 1), MOST_SHARED
        return len(self._connecting) < wanted and len(self._open) + len(self._connecting) < most and self._busy < self._limit

    async def _connect(self) -> None:
        failure = None
        try:
            await self._dialer.connect(lambda: self._protocol(self))
        except ConnectFailed as error:
            failure = error.failure
        except Exception as error:  # noqa: BLE001  # whatever it is, the waiting calls must get the failure
            failure = Failure(FailureKind.UNKNOWN, f"{self.name}: {type(error).__name__} while connecting")
        finally:
            task = asyncio.current_task()
            assert task is not None, "this runs in one"
            self._connecting.discard(task)
        if failure is not None:
            self._tell(failure)
        self._grow()

    def _tell(self, failure: Failure) -> None:
        """No connection: end the call that waited longest, or all calls that would have shared the connection."""
        number = len(self._waiting)
        if self._is_shared is False:
            number = min(number, 1)
        elif self._open:
            number = 0  # the calls use the open connections
        loop = asyncio.get_running_loop()
        for _ in range(number):
            call, _ = self._waiting.popitem(last=False)
            loop.call_soon(call.finish, failure)  # in separate callbacks: one that fails must not stop the others
