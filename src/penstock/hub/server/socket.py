"""One WebSocket of the hub: frames are read and written here, many in one call. aiohttp only does the handshake."""

from __future__ import annotations

import asyncio
import socket
from collections import deque
from collections.abc import Sequence
from struct import Struct
from typing import Self

from penstock.clock import monotonic
from penstock.durations import SECOND
from penstock.http.connection import Connection
from penstock.http.request import Request
from penstock.hub.core.close_codes import FLOODING, Close
from penstock.hub.core.rules import READ_UNIT
from penstock.hub.server.frames import CLOSE, PING, FrameReader
from penstock.hub.server.frames import Frame as Read
from penstock.hub.service import Frame
from penstock.rate_limit import RateLimit

FULL = 64 * 1024
"""How many bytes the transport may buffer before frames wait in the outbox, where they are counted; and how many bytes may arrive
before the frames in them are handled."""
UNSENT = 128 * 1024
"""How many unsent bytes the operating system may buffer. By default it buffers megabytes for a client that does not read: memory
that no limit of the hub counts, and that fills up before a limit of the hub is reached."""
CUT_SECONDS = 3.0
"""How long a client may take to answer a close frame."""
TAKE_SECONDS = 10.0
"""How long a slow reader may read nothing of the data before the close frame, which has the reason of the close."""
LEAVE_SECONDS = 60.0
"""How long it may take to read all of it, even if it keeps reading slowly."""
SIGNALS = RateLimit(10, burst=1000)
"""The rate limit of pings and pongs: far more than any client needs."""
TURN = 64
"""How many frames of one client are read, or pings and pongs handled, in a row before other clients get a turn."""

_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, b"\x89\x00", 0x8A
_SHORT = [bytes((_TEXT, length)) for length in range(126)]
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack
_code = Struct("!H").pack


class HubSocket:
    """A connection as `HubService` needs it. Iterate over it to read its frames."""

    __slots__ = (
        "_connection",
        "_cut",
        "_full_at",
        "_held",
        "_is_gone",
        "_is_paused",
        "_later",
        "_rate",
        "_reader",
        "_ready",
        "_request",
        "_signals",
        "_waiter",
        "due",
        "is_asked",
    )

    def __init__(self, request: Request, max_message_bytes: int, rate: RateLimit | None) -> None:
        assert isinstance(request.protocol, Connection)  # the server only creates these
        self._connection: Connection = request.protocol
        self._connection.is_minded = True
        self._request = request
        self._cut: asyncio.TimerHandle | None = None
        self._signals = 0
        self._reader = FrameReader(max_message_bytes)
        self._rate = rate
        self._full_at = 0
        """State of the read rate."""
        self._ready: deque[Read] = deque()
        self._held = 0
        """Bytes that arrived since all frames were last consumed."""
        self._waiter: asyncio.Future[None] | None = None
        self._is_paused = False
        """Whether reading is paused: until all frames are consumed, and while `_later` runs."""
        self._later: asyncio.TimerHandle | None = None
        self._is_gone = False
        self.due = 0.0
        """When it is pinged next, and whether it has been pinged before: see `HeartbeatScheduler`."""
        self.is_asked = False
        plain = None if request.transport is None else request.transport.get_extra_info("socket")
        if plain is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not available on every platform
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)
        self._connection.set_parser(self)  # type: ignore[arg-type]  # it needs two methods of a parser, `feed_data` and `feed_eof`

    # --- writing --------------------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """The number of bytes that may be written now. 0 only while `drained` waits, so a writer never gets stuck."""
        if self._connection.writing_paused:
            return 0
        return max(FULL - self._unsent(), 1)

    def write(self, frames: Sequence[tuple[int, tuple[bytes, ...]]]) -> None:
        """Write text frames with one call. If the connection is gone, nothing is written; its reader notices."""
        chunks: list[bytes] = []
        for length, parts in frames:
            if length < 126:
                chunks.append(_SHORT[length])
            elif length < 65536:
                chunks.append(_medium(_TEXT, 126, length))
            else:
                chunks.append(_long(_TEXT, 127, length))
            chunks += parts
        self._send(b"".join(chunks))

    async def drained(self) -> None:
        """Return when there is room again. Raises ConnectionError if the connection is lost."""
        await self._request.writer.drain()
        if self._connection.transport is None:
            raise ConnectionResetError("the client is gone")

    def close(self, close: Close) -> None:
        """Send a close frame after the buffered data. The connection ends when the client answers, or after a timeout."""
        if self._cut is None:
            self._say_close(_code(close.code) + close.reason.encode())
            if self._reader.is_over:
                self._end_writing()
            loop = asyncio.get_running_loop()
            if self._connection.writing_paused:
                self._cut = loop.call_later(TAKE_SECONDS, self._look, self._unsent(), loop.time() + LEAVE_SECONDS)
            else:
                self._cut = loop.call_later(CUT_SECONDS, self.abort)

    def _look(self, before: int, until: float) -> None:
        """Abort a client that read nothing since the last check, or any client when the time is over; let others continue."""
        left, loop = self._unsent(), asyncio.get_running_loop()
        if left >= before or loop.time() >= until:
            self.abort()
        else:
            self._cut = loop.call_at(min(loop.time() + TAKE_SECONDS, until), self._look, left, until)

    def _unsent(self) -> int:
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def abort(self) -> None:
        """End the connection at once; unsent data is dropped."""
        transport = self._connection.transport
        if transport is not None:
            transport.abort()

    def ask(self) -> bool:
        """Send a ping; False if nothing was received since the last one."""
        # If the connection is not being read now, the client is waiting for the hub, not the other way round.
        is_there = self._connection.is_heard or not self.is_asked or self._waiter is None or self._is_paused
        self.is_asked, self._connection.is_heard = True, False
        self._send(_PING)
        return is_there

    def forget(self) -> None:
        """Cancel the timers of a connection that has ended."""
        for timer in (self._cut, self._later):
            if timer is not None:
                timer.cancel()
        self._connection.is_minded = False  # from here on the port cuts off a client that does not read the last bytes

    def _say_close(self, payload: bytes) -> None:
        self._send(bytes((_CLOSE, len(payload))) + payload)

    def _send(self, data: bytes) -> None:
        transport = self._connection.transport
        if self._cut is None and transport is not None and not transport.is_closing():  # nothing is sent after a close frame
            transport.write(data)

    # --- received bytes -------------------------------------------------------------------------------------------------------

    def feed_data(self, data: bytes) -> tuple[bool, bytes]:
        """Handle received bytes. The result is for aiohttp: continue."""
        self._reader.feed(data)
        self._held += len(data)
        self._read(len(data) // READ_UNIT + 1)
        return False, b""

    def feed_eof(self) -> None:
        self._is_gone = True
        self._wake()

    def _read(self, cost: int) -> None:
        """Parse some of the received bytes. Pause the connection if there are more, or if its client exceeds its rate."""
        reader, ready, wait = self._reader, self._ready, 0
        fragments = reader.read(TURN, ready)
        if self._rate is not None:
            wait, self._full_at = self._rate.spend(self._full_at, monotonic(), cost + fragments)
        if wait or reader.has_more or (self._held > FULL and ready):
            if not self._is_paused:
                self._is_paused = True
                self._connection.pause_reading()
            if self._later is None and (wait or not ready):
                self._later = asyncio.get_running_loop().call_later(wait / SECOND, self._go_on)
        elif self._is_paused and not ready:
            self._is_paused = False
            self._connection.resume_reading()
        if ready:
            self._wake()

    def _go_on(self) -> None:
        """Continue after the pause of the connection is over."""
        self._later = None
        if not self._ready:
            self._resume()

    def _resume(self) -> None:
        """All frames are consumed: parse what arrived after them, or resume reading."""
        self._held = 0
        if self._is_paused and self._later is None and not self._is_gone:
            self._read(0)

    def _wake(self) -> None:
        waiter, self._waiter = self._waiter, None
        if waiter is not None and not waiter.done():
            waiter.set_result(None)

    # --- reading --------------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        signals = 0
        while True:
            while not self._ready:
                self._resume()
                if not self._ready:
                    await self._more()
            frame = self._ready.popleft()
            if isinstance(frame, str):
                return frame
            if not isinstance(frame, tuple):
                if isinstance(frame, Close) and self._cut is not None:
                    raise self._ended()  # the close frame is already sent, and the client's data cannot be read any more
                return frame
            opcode, payload = frame
            if opcode == CLOSE:
                if self._cut is None:
                    self._say_close(payload[:2])  # unless it is the answer to the hub's close frame
                raise self._ended()
            wait, self._signals = SIGNALS.take(self._signals, monotonic())
            if wait:
                return FLOODING
            if opcode == PING:
                if self.room() <= 0:
                    await self.drained()  # a client that sends pings but does not read the pongs has to wait
                self._send(bytes((_PONG, len(payload))) + payload)
            signals += 1
            if signals % TURN == 0:
                await asyncio.sleep(0)

    async def _more(self) -> None:
        """Wait for frames. Raises StopAsyncIteration if the connection is gone."""
        if self._is_gone:
            raise StopAsyncIteration
        self._waiter = asyncio.get_running_loop().create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def _ended(self) -> StopAsyncIteration:
        """Close the connection once everything is written."""
        transport = self._connection.transport
        if transport is not None:
            transport.close()
        return StopAsyncIteration()

    def _end_writing(self) -> None:
        """Close the sending side after the close frame, while data of the client is still read and dropped.

        Unread data would reset the connection, and the client might not receive the close frame.
        """
        transport = self._connection.transport
        if transport is not None and transport.can_write_eof():
            transport.write_eof()
