"""One connection to a server: requests and their answers, streams and their deliveries. It knows nothing of reconnecting."""

from __future__ import annotations

import asyncio
import itertools
import ssl
from typing import cast

import msgspec

from penstock.api import frames
from penstock.api.frames import Answer, Delivered, Done, Ended, Hello, Inbox, Leaving, Refused, Welcome
from penstock.client.link import Channel, Receiver
from penstock.errors import InvalidArgument, PenstockError, Unavailable

MAX_FRAME_BYTES = 1 << 30
PING_SECONDS = 20.0
"""A connection on which nothing came for twice as long is dead."""

_welcome = msgspec.msgpack.Decoder(Welcome).decode


class ConnectionLost(Exception):
    """The connection ended before the answer came: the request may or may not have been done."""


class StreamEnd:
    """The client's end of a stream, as a connection knows it."""

    number: int
    receiver: Receiver
    channel: Channel

    def answered(self, call: int, result: bytes) -> None:
        """A request that was announced for it is done."""

    def refused(self, call: int, error: PenstockError) -> None:
        """A request that was announced for it is not."""

    def closed(self) -> None:
        """It is over: the server has closed it, or the connection is lost."""


class Connection(asyncio.Protocol):
    """A connection that has been greeted. Make it with `connect`."""

    def __init__(self, address: str) -> None:
        self._address = address
        self._loop = asyncio.get_running_loop()
        self._inbox = Inbox(MAX_FRAME_BYTES)
        self._calls = itertools.count(1)
        self._waiting: dict[int, asyncio.Future[bytes] | StreamEnd] = {}
        self._numbers = itertools.count(1)
        self.streams: dict[int, StreamEnd] = {}
        self._out: list[bytes] = []
        self._heard_at = self._loop.time()
        self._watch: asyncio.TimerHandle | None = None
        self.is_usable = True
        """Whether requests may be made: it is not lost, and the server is not stopping."""
        self.lost = asyncio.Event()
        self.welcome: Welcome
        self._transport: asyncio.Transport

    @classmethod
    async def connect(cls, host: str, port: int, tls: ssl.SSLContext | None, hello: Hello) -> Connection:
        """Connect and be greeted; OSError when there is nobody, PenstockError when the server refuses."""
        loop = asyncio.get_running_loop()
        _, connection = await loop.create_connection(lambda: cls(f"{host}:{port}"), host, port, ssl=tls)
        try:
            hello.call = next(connection._calls)
            connection.welcome = _welcome(await connection.request(hello.call, hello))
        except ConnectionLost:
            raise ConnectionResetError("it closed the connection without a greeting") from None
        except BaseException:
            connection.close()
            raise
        connection._ping()
        return connection

    # ── asking ───────────────────────────────────────────────────────────────────────────────────────────────────────────

    def next_call(self) -> int:
        """A number for a request."""
        return next(self._calls)

    def next_stream(self) -> int:
        """A number for a stream."""
        return next(self._numbers)

    async def request(self, call: int, frame: object) -> bytes:
        """Send a request and return its result, still encoded; raises what the server says, or ConnectionLost."""
        if not self.is_usable:
            raise ConnectionLost
        answer: asyncio.Future[bytes] = self._loop.create_future()
        self._waiting[call] = answer
        self.send(frame)
        try:
            return await answer
        finally:
            self._waiting.pop(call, None)

    def announce(self, call: int, end: StreamEnd, frame: object) -> None:
        """Send a request whose answer a stream wants to hear of."""
        self._waiting[call] = end
        self.send(frame)

    def send(self, frame: object) -> None:
        """Send a frame, with others of the same turn of the loop."""
        if not self._out:
            self._loop.call_soon(self._flush)
        self._out.append(frames.framed(frame))

    def close(self) -> None:
        """End the connection when everything is written."""
        self.is_usable = False
        self._flush()
        self._transport.close()

    # ── the socket ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        """There is somebody."""
        self._transport = cast(asyncio.Transport, transport)  # uvloop's are no subclass

    def data_received(self, data: bytes) -> None:
        """Take every answer that is complete."""
        self._heard_at = self._loop.time()
        try:
            for body in self._inbox.feed(data):
                self._take(frames.decode_answer(body))
        except (InvalidArgument, *frames.UNREADABLE):
            # Whoever speaks there does not speak our language.
            self._transport.abort()

    def connection_lost(self, error: Exception | None) -> None:
        """Nobody answers any more."""
        self.is_usable = False
        self.lost.set()
        if self._watch is not None:
            self._watch.cancel()
        waiting, self._waiting = self._waiting, {}
        for one in waiting.values():
            if isinstance(one, asyncio.Future) and not one.done():
                one.set_exception(ConnectionLost())
        self._end_streams("the connection to the server was lost")

    def _flush(self) -> None:
        out, self._out = self._out, []
        if out and not self._transport.is_closing():
            self._transport.write(out[0] if len(out) == 1 else b"".join(out))

    def _ping(self) -> None:
        """Ask for a sign of life, and give the connection up when there has been none for long."""
        if self._loop.time() - self._heard_at > 2 * PING_SECONDS:
            self._transport.abort()
            return
        call = next(self._calls)
        self.send(frames.Ping(call))
        self._watch = self._loop.call_later(PING_SECONDS, self._ping)

    # ── answers ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _take(self, answer: Answer) -> None:
        match answer:
            case Delivered():
                end = self.streams.get(answer.stream)
                if end is not None:
                    end.receiver.receive(end.channel, answer.parcels)
            case Done():
                waiting = self._waiting.pop(answer.call, None)
                if isinstance(waiting, StreamEnd):
                    waiting.answered(answer.call, bytes(answer.result))
                elif waiting is not None and not waiting.done():
                    waiting.set_result(bytes(answer.result))
            case Refused():
                self._refuse(answer)
            case Ended():
                end = self.streams.pop(answer.stream, None)
                if end is not None:
                    end.closed()
                    end.receiver.ended(end.channel, frames.error_in(answer) if answer.reason is not None else None)
            case Leaving():
                self.is_usable = False
                self._end_streams("the server is stopping")

    def _refuse(self, answer: Refused) -> None:
        waiting = self._waiting.pop(answer.call, None)
        if isinstance(waiting, StreamEnd):
            waiting.refused(answer.call, frames.error_in(answer))
        elif waiting is not None and not waiting.done():
            waiting.set_exception(frames.error_in(answer))

    def _end_streams(self, problem: str) -> None:
        ends, self.streams = [*self.streams.values()], {}
        for end in ends:
            end.closed()
            end.receiver.ended(end.channel, Unavailable(problem))


def text_of(error: BaseException) -> str:
    """Why a connection failed, for people."""
    if isinstance(error, PenstockError):
        return str(error)
    if isinstance(error, TimeoutError):
        return "it does not answer"
    if isinstance(error, OSError) and error.strerror:
        return error.strerror[0].lower() + error.strerror[1:]
    return str(error) or type(error).__name__
