"""One WebSocket of the hub. aiohttp shakes hands and reads; what is written goes past it, many frames by one call."""

from __future__ import annotations

import asyncio
import socket
from collections.abc import Sequence
from struct import Struct
from typing import Self

from aiohttp import WSMsgType, web

from penstock.clock import monotonic
from penstock.http import Request
from penstock.http.connection import Connection
from penstock.hub.core.close_codes import FLOODING, Close
from penstock.hub.core.refusal import Refusal
from penstock.hub.service import Frame
from penstock.rate_limit import RateLimit

FULL = 64 * 1024
"""How many bytes the transport may hold before frames wait in the outbox, where they are counted."""
UNSENT = 128 * 1024
"""How many bytes the system may hold beyond what is on its way to the client. By itself it takes megabytes for one that does not
read: memory that no limit of ours counts, filled before any of ours is noticed."""
CUT_SECONDS = 3.0
"""How long a client may take to answer a close."""
TAKE_SECONDS = 10.0
"""How long a client that did not read may take nothing of what is before the close, which says why it is closed."""
LEAVE_SECONDS = 60.0
"""How long it may take for all of that, however slowly it reads."""
SIGNALS = RateLimit(10, burst=1000)
"""How many pings and pongs a client may send: far more than any has a use for."""
TURN = 64
"""How many of them are handled in a row before other clients have their turn."""
MAX_UTF8 = 4
"""Bytes of one character, at most."""

_TEXT, _CLOSE, _PING, _PONG = 0x81, 0x88, b"\x89\x00", 0x8A
_SHORT = [bytes((_TEXT, length)) for length in range(126)]
_medium = Struct("!BBH").pack
_long = Struct("!BBQ").pack
_code = Struct("!H").pack


class HubSocket:
    """What a `HubService` needs of a connection, and its frames: iterate over it to read them."""

    __slots__ = ("_connection", "_cut", "_is_reading", "_max_bytes", "_request", "_signals", "_websocket", "due", "is_asked")

    def __init__(self, request: Request, websocket: web.WebSocketResponse, max_message_bytes: int) -> None:
        assert isinstance(request.protocol, Connection)  # the door makes no others
        self._connection: Connection = request.protocol
        self._connection.is_minded = True
        self._request = request
        self._websocket = websocket
        self._max_bytes = max_message_bytes
        self._cut: asyncio.TimerHandle | None = None
        self._is_reading = False
        self._signals = 0
        self.due = 0.0
        """When it is next asked whether it is still there, and whether it has been asked before: see `Pulse`."""
        self.is_asked = False
        plain = None if request.transport is None else request.transport.get_extra_info("socket")
        if plain is not None and hasattr(socket, "TCP_NOTSENT_LOWAT"):  # not everywhere
            plain.setsockopt(socket.IPPROTO_TCP, socket.TCP_NOTSENT_LOWAT, UNSENT)

    # --- writing --------------------------------------------------------------------------------------------------------------

    def room(self) -> int:
        """How many bytes may be written now. Zero only while `drained` waits: so there is always a way on."""
        if self._connection.writing_paused:
            return 0
        return max(FULL - self._unsent(), 1)

    def write(self, frames: Sequence[tuple[int, tuple[bytes, ...]]]) -> None:
        """Write text frames by one call. To a connection that is gone nothing is written; its reader notices."""
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
        """Return when there is room again; ConnectionError when the connection is gone."""
        await self._request.writer.drain()
        if self._connection.transport is None:
            raise ConnectionResetError("the client is gone")

    def close(self, close: Close) -> None:
        """Say why, after what the transport holds; the client's answer ends the connection, or a few seconds do."""
        if self._cut is None:
            self._say_close(_code(close.code) + close.reason.encode())
            loop = asyncio.get_running_loop()
            if self._connection.writing_paused:
                self._cut = loop.call_later(TAKE_SECONDS, self._look, self._unsent(), loop.time() + LEAVE_SECONDS)
            else:
                self._cut = loop.call_later(CUT_SECONDS, self.abort)

    def _look(self, before: int, until: float) -> None:
        """Cut a client that took nothing since the last look, and any when it is time; let others read on."""
        left, loop = self._unsent(), asyncio.get_running_loop()
        if left >= before or loop.time() >= until:
            self.abort()
        else:
            self._cut = loop.call_at(min(loop.time() + TAKE_SECONDS, until), self._look, left, until)

    def _unsent(self) -> int:
        """How many bytes the transport holds."""
        transport = self._connection.transport
        return 0 if transport is None else transport.get_write_buffer_size()

    def abort(self) -> None:
        """End the connection at once; what was not sent is dropped."""
        transport = self._connection.transport
        if transport is not None:
            transport.abort()

    def ask(self) -> bool:
        """Send a ping; False when nothing was heard since the last one."""
        # One that is not being read waits for the hub, not the hub for it.
        is_there = self._connection.is_heard or not self.is_asked or not self._is_reading
        self.is_asked, self._connection.is_heard = True, False
        self._send(_PING)
        return is_there

    def forget(self) -> None:
        """The connection is over: leave no timer behind."""
        if self._cut is not None:
            self._cut.cancel()
        self._connection.is_minded = False  # a client that does not take the last of it is for the port to cut

    def _say_close(self, payload: bytes) -> None:
        self._send(bytes((_CLOSE, len(payload))) + payload)

    def _send(self, data: bytes) -> None:
        transport = self._connection.transport
        if self._cut is None and transport is not None and not transport.is_closing():  # nothing comes after a close
            transport.write(data)

    # --- reading --------------------------------------------------------------------------------------------------------------

    def __aiter__(self) -> Self:
        return self

    async def __anext__(self) -> Frame:
        signals = 0
        while True:
            self._is_reading = True
            message = await self._websocket.receive()
            self._is_reading = False
            kind, data = message.type, message.data
            if kind is WSMsgType.TEXT:
                size = self._size(data)
                return data if size <= self._max_bytes else _too_large(size, self._max_bytes)
            if kind is WSMsgType.BINARY:
                return _BINARY
            if kind is not WSMsgType.PING and kind is not WSMsgType.PONG:
                self._finish(kind, data)
                raise StopAsyncIteration
            wait, self._signals = SIGNALS.take(self._signals, monotonic())
            if wait:
                return FLOODING
            if kind is WSMsgType.PING:
                if self.room() <= 0:
                    await self.drained()  # whoever pings and does not read what comes back has to wait for it
                self._send(bytes((_PONG, len(data))) + data)
            signals += 1
            if signals % TURN == 0:
                await asyncio.sleep(0)

    def _size(self, text: str) -> int:
        """The bytes of a frame, if it may be too large; of others, which need not be encoded again for it, its characters."""
        length = len(text)
        return length if text.isascii() or length * MAX_UTF8 <= self._max_bytes else len(text.encode())

    def _finish(self, kind: WSMsgType, data: object) -> None:
        """The frames are over. A client's close is answered, if it is not itself the answer to ours."""
        if kind is WSMsgType.CLOSE:
            if self._cut is None:
                self._say_close(_code(data) if isinstance(data, int) and data else b"")
            transport = self._connection.transport
            if transport is not None:
                transport.close()


def _too_large(size: int, limit: int) -> Refusal:
    return Refusal(
        "message_too_large",
        f"the frame has {size} bytes, at most {limit} are accepted",
        reason="message_too_large",
        resolution="send less at once, or raise the server's hub_max_message_bytes",
        details={"size": size, "limit": limit},
    )


_BINARY = Refusal(
    "internal_error",
    "the frame is binary, wanted a text frame with a JSON object",
    reason="binary_frame",
    resolution="send JSON as text; put bytes into it as base64",
)
